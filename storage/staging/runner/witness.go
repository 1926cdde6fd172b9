package runner

import (
	"errors"
	"io"
	"log/slog"
	"sync"

	"github.com/cockroachdb/errors/oserror"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/storage/staging"
)

// witness is the file that records how much of the log was durable. A mark is a plain write after the fsync that it records, so it costs an ack
// no fsync, is never ahead of the log, and outlives a process that is killed. It is fsynced once a second: after a power cut it may lack the last second.
// A failed write affects no frame; it is logged once, and the next mark is written anyway.
type witness struct {
	fs   vfs.FS
	path string
	log  *slog.Logger
	read *staging.Witness // as it was at the start

	syncing sync.Mutex // held for an fsync, and to close the file; acquired before mu

	mu       sync.Mutex
	file     vfs.File // nil: not made yet, or closed
	now      staging.Mark
	writes   uint64
	dirty    bool // written, and not fsynced
	removals int  // of files, of which no mark is fsynced
	failed   bool // and logged
}

// openWitness reads the file, if it is there. Errors are Unavailable.
func openWitness(fs vfs.FS, dir string, log *slog.Logger) (*witness, error) {
	w := &witness{fs: fs, path: fs.PathJoin(dir, staging.WitnessFile), log: log}
	var err error
	w.read, err = readWitness(fs, w.path)
	if err != nil {
		return nil, err
	}
	w.now, w.writes = w.read.Newest()
	return w, nil
}

func readWitness(fs vfs.FS, path string) (*staging.Witness, error) {
	f, err := fs.Open(path)
	if oserror.IsNotExist(err) {
		return staging.ReadWitness(nil), nil
	}
	if err != nil {
		return nil, fault.Wrap(err, fault.Unavailable, "open %s", path)
	}
	b, err := io.ReadAll(io.LimitReader(f, staging.WitnessBytes+1))
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, fault.Wrap(err, fault.Unavailable, "read %s", path)
	}
	return staging.ReadWitness(b), nil
}

// begin opens the file, and makes it if there is none. The caller syncs the directory.
func (w *witness) begin() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.beginLocked(); w.file != nil && w.removals > 0 { // at the start, which lost frames and is announced by now
		w.writeLocked()
	}
}

// reopen makes a file that there is ready for marks.
func (w *witness) reopen() {
	if w.writes > 0 {
		w.begin()
	}
}

func (w *witness) beginLocked() {
	if w.file != nil {
		return
	}
	f, err := w.fs.OpenReadWrite(w.path, vfs.WriteCategoryUnspecified)
	if err != nil {
		w.failLocked(err)
		return
	}
	w.file = f
}

// durable records that so much of a file was fsynced.
func (w *witness) durable(m staging.Mark) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.file != nil {
		w.now = m
		w.writeLocked()
	}
}

// removing records that files before first are about to be removed, before they are: otherwise a start would miss them. At a start that lost frames nothing is
// written before Run: it would hide the loss from the next start, if the process ended before it registered as one that lost frames.
func (w *witness) removing(first uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.writes == 0 {
		return
	}
	w.now.First = first
	w.removals++
	if w.file != nil {
		w.writeLocked()
	}
}

func (w *witness) writeLocked() {
	w.writes++
	m := w.now
	slot, at := staging.AppendMark(nil, w.writes, m)
	if _, err := w.file.WriteAt(slot, at); err != nil {
		w.failLocked(err)
		return
	}
	w.dirty = true
}

func (w *witness) failLocked(err error) {
	if !w.failed {
		w.log.Warn("the witness of the log of staged frames cannot be written: a log that the disk shortens would not be noticed", "file", w.path, "error", err)
	}
	w.failed = true
}

// sync makes the marks durable. What fails is tried again with the next call.
func (w *witness) sync() {
	w.syncing.Lock()
	defer w.syncing.Unlock()
	w.mu.Lock()
	if w.removals > 0 && w.file == nil { // files were removed at the start
		if w.beginLocked(); w.file != nil {
			w.writeLocked()
		}
	}
	f, dirty, removals := w.file, w.dirty, w.removals
	w.dirty = false
	w.mu.Unlock()
	if f == nil || !dirty {
		return
	}
	err := f.Sync()
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil {
		w.dirty = true
		w.failLocked(err)
		return
	}
	w.failed = false
	if w.removals == removals {
		w.removals = 0
	}
}

// syncRemovals makes durable that files are being removed, before the directory without them is: a power cut between the two would look like a loss.
func (w *witness) syncRemovals() {
	w.mu.Lock()
	removals := w.removals
	w.mu.Unlock()
	if removals > 0 {
		w.sync()
	}
}

// close syncs the file and closes it. Where it was not opened since the start, the start lost frames, and marks nothing: see removing.
func (w *witness) close() error {
	w.mu.Lock()
	if w.file == nil {
		w.removals = 0
	}
	w.mu.Unlock()
	w.sync()
	w.syncing.Lock()
	defer w.syncing.Unlock()
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.file == nil {
		return nil
	}
	err := w.file.Close()
	w.file, w.dirty, w.removals = nil, false, 0
	return err
}
