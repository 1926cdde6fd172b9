package brick

import (
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/record"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

// Brick is a node's durable store. Open, Recover once, then use from any goroutine; Close last.
//
// Locks, outer first: admin (held over I/O, never by Append) → mu (held for a memcpy and a checksum) → tracker.
type Brick struct {
	// Constant after Open.
	files     func(dir string) Files // nil: files are not counted
	fs        vfs.FS
	log       *slog.Logger
	set       Settings
	m         *metrics
	uuid      StoreID // of the store
	logID     StoreID // of log, mirror and witness
	catalogue *pebble.DB
	commits   commits
	mirror    mirror   // of the catalogue
	metadata  mirror   // of METADATA
	witness   *witness // of catalogue and log
	locks     []io.Closer
	places    []place
	manifest  manifest // read by Open, used up by Recover, then owned by admin: tombs only

	// Positions; all before them is … Invariant: synced <= acked.
	synced     atomic.Int64 // … fsynced
	acked      atomic.Int64 // … for which Wait returns nil; the same unless NoSync
	last       atomic.Int64 // … appended; may lag behind acked for the moment before Append returns
	appended   atomic.Int64 // as last, in bytes of this life
	ackedBytes atomic.Int64 // as acked, in bytes of this life

	err      atomic.Pointer[error]  // why it is fenced
	readOnly atomic.Pointer[string] // why it is read-only for now; written by checkSpace alone
	frozen   atomic.Pointer[string] // why it is read-only for good
	fenced   chan struct{}          // closed by the first Fence
	noted    chan struct{}          // closed once the note of the fence is written, or could not be

	lastFence atomic.Pointer[PastFence] // of this process or one before; nil: there was none

	admin sync.Mutex // serialises RaiseEpoch, Rewrite, Cut and Drop

	mu struct {
		sync.Mutex
		cur     *logFile // nil before Recover and after Close
		next    *logFile
		retired []*logFile // left by Append, to be ended by the runner
		ended   []*logFile // fsynced, and open by the catalogue
		index   index
		sync    record.PendingSyncIndex
	}
	tracker tracker
	lost    struct {
		sync.Mutex
		found LostFound
	}

	garbage garbage

	durable sync.Map // the paths of directories of segments that this process has made, or fsynced the names of

	runner runner
}

// Open locks the directories, finds or makes the store's identity and opens the catalogue. It does not read the log: call Recover.
// Errors: Invalid (settings), Unavailable (in use, not writable), Corrupt. The caller closes the brick.
func Open(d Deps, s Settings) (_ *Brick, err error) {
	d.setDefaults()
	if err := s.Validate(); err != nil {
		return nil, err
	}
	s.setDefaults(d.FS)
	b := &Brick{fs: d.FS, files: d.Files, log: d.Log, set: s, m: newMetrics(), fenced: make(chan struct{}), noted: make(chan struct{})}
	b.mu.index = newIndex()
	b.watchFsyncs()
	b.runner.init()
	defer func() {
		if err != nil {
			if b.Err() != nil {
				<-b.noted
			}
			_ = b.unlock()
		}
	}()
	for _, dir := range []string{s.DataDir, s.LogDir} {
		if err := MakeDir(b.fs, dir); err != nil {
			return nil, err
		}
		l, err := lockDir(b.fs, dir)
		if err != nil {
			return nil, err
		}
		b.locks = append(b.locks, l)
	}
	if _, err := b.fs.Stat(b.fs.PathJoin(s.DataDir, RestoringFile)); err == nil && !s.Restoring {
		return nil, fault.Errorf(fault.Unavailable, "a restore into %s has not ended: run it again, it goes on where it was; or empty the directory", s.DataDir)
	}
	ids, err := identify(b.fs, s.DataDir, s.LogDir)
	if err != nil {
		return nil, err
	}
	b.uuid, b.logID = ids.store, ids.log
	b.readNote(time.Now())
	dir := b.fs.PathJoin(s.DataDir, catalogueDir)
	if err := MakeDir(b.fs, dir); err != nil {
		return nil, err
	}
	b.mirror.mirrorKind, b.metadata.mirrorKind = catalogueMirror, metadataMirror
	for _, m := range []*mirror{&b.mirror, &b.metadata} {
		m.fs, m.path, m.uuid = b.fs, b.fs.PathJoin(s.DataDir, m.name), b.logID
	}
	if b.witness, err = openWitness(b.fs, s.DataDir, b.logID); err != nil {
		return nil, err
	}
	if err = b.openCatalogue(dir); err != nil {
		if b.catalogue != nil {
			err = errors.Join(err, b.catalogue.Close())
		}
		return nil, errors.Join(err, b.mirror.close(), b.metadata.close())
	}
	b.openCopies()
	if b.manifest, err = b.loadManifest(); err != nil {
		return nil, errors.Join(err, b.closeCatalogue())
	}
	if err := b.findPlaces(); err != nil {
		return nil, errors.Join(err, b.closeCatalogue())
	}
	if err := b.m.register(d.Registerer, b); err != nil {
		return nil, errors.Join(err, b.closeCatalogue())
	}
	b.checkSpace()
	b.countLostFound(time.Now(), 0)
	b.log.Info("brick opened", "store", b.uuid.String(), "data_dir", s.DataDir, "log_dir", s.LogDir, "file_bytes_max", s.FileBytesMax,
		"in_flight_bytes_max", s.InFlightBytesMax, "no_sync", s.NoSync, "free_bytes_min", s.FreeBytesMin, "log_files", len(b.manifest.files))
	return b, nil
}

// Fence breaks all promises: every later Append, Commit and unfinished Wait fails with Unavailable, for good. The brick calls it
// at a failed write or fsync, and so does any caller that finds the disk untrustworthy. The first error is kept.
func (b *Brick) Fence(err error) {
	b.fence(fault.Wrap(err, fault.Unavailable, "the store in %s is fenced after a disk error; check the device, then restart", b.set.DataDir))
}

func (b *Brick) fence(err error) {
	if !b.err.CompareAndSwap(nil, &err) {
		return
	}
	b.log.Error("brick fenced", "error", err)
	b.tracker.Lock()
	b.tracker.over = true
	for _, w := range b.tracker.waiting {
		w.ch <- struct{}{}
	}
	b.tracker.waiting = nil
	b.tracker.Unlock()
	close(b.fenced)
	f := &PastFence{At: time.Now(), Why: err.Error()}
	b.lastFence.Store(f)
	go b.noteFence(f, err)
}

// Err returns why the brick is fenced, or nil.
func (b *Brick) Err() error {
	if p := b.err.Load(); p != nil {
		return *p
	}
	return nil
}

// Fenced is closed when the brick is; the process should then stop and let a peer lead.
func (b *Brick) Fenced() <-chan struct{} { return b.fenced }

// RaiseEpoch notes that epoch e has begun for p: once it returns, records sent under a lower epoch are refused, also after a crash
// (I3). A lower or equal e changes nothing. Errors: Unavailable.
func (b *Brick) RaiseEpoch(p point.PlacementID, e point.Epoch) error {
	b.admin.Lock()
	defer b.admin.Unlock()
	if e <= b.HighestEpoch(p) {
		return b.Err()
	}
	t := b.NewBatch()
	t.set(placementKey(keyEpoch, p), binary.LittleEndian.AppendUint64(nil, uint64(e)))
	if err := t.Commit(true); err != nil {
		return fault.Annotate(err, "raise the epoch of placement %s to %d", p, e)
	}
	b.mu.Lock()
	b.mu.index.of(p).epoch = e
	b.mu.Unlock()
	return nil
}

// HighestEpoch is the highest epoch ever seen for p; 0: none.
func (b *Brick) HighestEpoch(p point.PlacementID) point.Epoch {
	b.mu.Lock()
	defer b.mu.Unlock()
	if l := b.mu.index.logs[p]; l != nil {
		return l.epoch
	}
	return 0
}

// Release releases p's records up to and including upTo: the checkpoint. The state that replaces them (a segment, an ack
// elsewhere) must be durable in the catalogue before (I7). Files without needed records are deleted in the background.
func (b *Brick) Release(p point.PlacementID, upTo point.Serial) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if l := b.mu.index.logs[p]; l != nil && len(b.mu.index.release(l, upTo)) > 0 {
		b.poke()
	}
}

// LogBytes is the size of all log files.
func (b *Brick) LogBytes() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.mu.index.bytes
}

// Close ends the log and the catalogue, syncs them and unlocks the directories. The last fsync settles the open Waits. No other
// method may be called during or after it.
func (b *Brick) Close() error {
	b.runner.stop()
	b.mu.Lock()
	cur, next := b.mu.cur, b.mu.next
	b.mu.cur, b.mu.next = nil, nil
	if cur != nil {
		cur.end = cur.w.Size()
		b.mu.retired = append(b.mu.retired, cur)
	}
	b.mu.Unlock()

	b.endRetired()
	_ = b.recordEnds() // its error is the fence
	var err error
	if next != nil {
		err = b.discard(next)
	}
	if b.Err() == nil && cur != nil {
		err = errors.Join(err, b.removeDead())
	}
	b.m.unregister()
	b.m.alarm.Stop()
	err = errors.Join(err, b.closePlaces(), b.closeCatalogue())
	if why := b.Err(); why != nil {
		<-b.noted
		err = errors.Join(why, err)
	}
	return errors.Join(err, b.unlock())
}

// openCopies brings mirrors and witness up to the opened catalogue. A failure here does not prevent a start.
func (b *Brick) openCopies() {
	err := b.witness.begin()
	b.committed(b.commits.last())
	if err = errors.Join(err, b.tendCopies()); err != nil {
		b.log.Warn("the mirrors of the catalogue and the WITNESS could not be written; it is tried again", "error", err)
	}
}

// tendCopies writes and syncs mirrors and witness.
func (b *Brick) tendCopies() (err error) {
	if b.Err() != nil {
		return nil
	}
	for _, m := range []*mirror{&b.mirror, &b.metadata} {
		if m.stale() {
			err = errors.Join(err, b.remirror(m))
		}
	}
	if seq := b.commits.last(); seq > b.commits.durable.Load() { // without an fsync, and no commit with one followed
		if err := b.catalogue.LogData(nil, pebble.Sync); err != nil {
			b.Fence(err)
		}
		if b.Err() == nil {
			b.committed(seq)
		}
	}
	return errors.Join(err, b.mirror.sync(), b.metadata.sync(), b.witness.sync())
}

// closeCatalogue closes the catalogue and leaves mirrors and witness exact.
func (b *Brick) closeCatalogue() error {
	err := b.catalogue.Close() // syncs it
	if err == nil && b.Err() == nil {
		b.committed(b.commits.last())
	}
	if cerr := errors.Join(b.mirror.close(), b.metadata.close(), b.witness.close()); cerr != nil {
		b.log.Warn("the mirrors of the catalogue and the WITNESS could not be completed", "error", cerr)
	}
	return err
}

func (b *Brick) unlock() (err error) {
	for _, l := range b.locks {
		err = errors.Join(err, l.Close())
	}
	b.locks = nil
	return err
}
