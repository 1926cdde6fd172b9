package brick

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"sync"

	"github.com/cockroachdb/errors/oserror"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// witness is a small file beside the store that records the durable state: up to where the log was fsynced, and the newest commit
// of the catalogue. It is written after the fact and never waited for, so it may lag behind and never runs ahead: a store that
// holds less than its witness records has lost data.
//
//	offset 0                   offset 4096
//	┌─────────────┐            ┌─────────────┐       each write replaces the older slot, so that one of both is whole at any moment:
//	│ write 6     │ …          │ write 7     │       the number of the write says which is newer
//	└─────────────┘            └─────────────┘
//
// mu is held for a write into the page cache, and not for an fsync: note is called after each fsync of log and catalogue.
type witness struct {
	fs   vfs.FS
	path string
	uuid StoreID

	mu     sync.Mutex
	file   vfs.File // nil: it could not be made, or is closed
	now    testimony
	writes uint64 // of slots
	dirty  bool   // written and not fsynced
	failed error  // of the last write; nil: none
}

// testimony is the content of a witness.
type testimony struct {
	log       position // all of the log before it was fsynced
	catalogue uint64   // the commit was fsynced
}

const (
	witnessFile    = "WITNESS"
	witnessMagic   = 0x54495753 // "SWIT"
	witnessVersion = 1
	witnessSlot    = 64
	witnessApart   = 4096 // the two slots lie in different pages, so that a power cut leaves one slot
)

// appendTestimony encodes one slot of 64 bytes: magic, version, number, store, log, catalogue, 12 zeros, CRC-32C.
func appendTestimony(b []byte, id StoreID, writes uint64, t testimony) []byte {
	b = binary.LittleEndian.AppendUint32(b, witnessMagic)
	b = binary.LittleEndian.AppendUint32(b, witnessVersion)
	b = binary.LittleEndian.AppendUint64(b, writes)
	b = append(b, id[:]...)
	b = binary.LittleEndian.AppendUint64(b, uint64(t.log))
	b = binary.LittleEndian.AppendUint64(b, t.catalogue)
	b = append(b, make([]byte, 12)...)
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

// parseTestimony returns the content of one slot; ok is false when it is not of this store.
func parseTestimony(b []byte, id StoreID) (writes uint64, t testimony, ok bool) {
	if len(b) < witnessSlot || binary.LittleEndian.Uint32(b) != witnessMagic || binary.LittleEndian.Uint32(b[4:]) != witnessVersion ||
		string(b[16:32]) != string(id[:]) || crc32.Checksum(b[:60], castagnoli) != binary.LittleEndian.Uint32(b[60:]) {
		return 0, t, false
	}
	return binary.LittleEndian.Uint64(b[8:]), testimony{position(binary.LittleEndian.Uint64(b[32:])), binary.LittleEndian.Uint64(b[40:])}, true
}

// readTestimony returns the newer of the two slots that are whole; zero for a file that is missing or unreadable.
func readTestimony(fs vfs.FS, path string, id StoreID) (writes uint64, t testimony, err error) {
	f, err := fs.Open(path)
	if oserror.IsNotExist(err) {
		return 0, t, nil
	}
	if err != nil {
		return 0, t, fault.Wrap(err, fault.Unavailable, "open %s", path)
	}
	defer f.Close()
	for slot := range int64(2) {
		b := make([]byte, witnessSlot)
		if n, err := f.ReadAt(b, slot*witnessApart); err != nil && (n < len(b) || !errors.Is(err, io.EOF)) {
			continue // short, or a bad sector: the other slot may be good
		}
		if n, said, ok := parseTestimony(b, id); ok && n > writes {
			writes, t = n, said
		}
	}
	return writes, t, nil
}

// openWitness reads the witness. Its file is opened for writing by begin, after the catalogue was compared with it.
func openWitness(fs vfs.FS, dataDir string, id StoreID) (*witness, error) {
	w := &witness{fs: fs, path: fs.PathJoin(dataDir, witnessFile), uuid: id}
	var err error
	w.writes, w.now, err = readTestimony(fs, w.path, id)
	return w, err
}

// begin makes the file ready for writing. Failing is no reason not to start: the store is whole without it.
func (w *witness) begin() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	f, err := w.fs.OpenReadWrite(w.path, writeCategory)
	if oserror.IsNotExist(err) {
		if f, err = w.fs.Create(w.path, writeCategory); err == nil {
			err = SyncDir(w.fs, w.fs.PathDir(w.path))
		}
	}
	if err != nil {
		if f != nil {
			_ = f.Close()
		}
		return fault.Wrap(err, fault.Unavailable, "open %s", w.path)
	}
	w.file = f
	return nil
}

// note records the durable state; a state older than the last one is skipped. It does not wait for the disk.
func (w *witness) note(t testimony) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.file == nil || t.log <= w.now.log && t.catalogue <= w.now.catalogue {
		return
	}
	w.now = testimony{max(w.now.log, t.log), max(w.now.catalogue, t.catalogue)}
	w.writeLocked()
}

// reset writes t although it may be less than before: damage was accepted, or the store was rebuilt.
func (w *witness) reset(t testimony) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.file != nil && t != w.now {
		w.now = t
		w.writeLocked()
	}
}

// An error is kept for sync to return: note has no caller that could act on it.
func (w *witness) writeLocked() {
	w.writes++
	var b [witnessSlot]byte
	_, w.failed = w.file.WriteAt(appendTestimony(b[:0], w.uuid, w.writes, w.now), int64(w.writes%2)*witnessApart)
	w.dirty = true
}

// sync makes the notes durable. Errors include those of the notes before it.
func (w *witness) sync() error {
	w.mu.Lock()
	f, dirty, failed := w.file, w.dirty, w.failed
	w.dirty, w.failed = false, nil
	w.mu.Unlock()
	if f == nil || !dirty {
		return nil
	}
	if failed == nil {
		failed = f.Sync()
	}
	return fault.Wrap(failed, fault.Unavailable, "write %s", w.path)
}

// close makes the notes durable: after a clean stop they are exact.
func (w *witness) close() error {
	err := w.sync()
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.file != nil {
		err = errors.Join(err, w.file.Close())
		w.file = nil
	}
	return err
}
