package brick

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/errors/oserror"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// runner has the brick's three goroutines. They do all I/O that callers need not wait for, so that Append never waits for it.
//
//	Append, Release, letGo ─ poke ──▶ wake ──▶ run: tend (prepareNext, recordEnds, removeDead)
//	                        a second ▶ tick ─▶ run: where its files are, free space, a mark, tend, lost+found, mirrors and witness
//	Append ─ a file is full ────────▶ turned ▶ end: endRetired
//	LogWriter's flush loop ─ reached ▶ synced ▶ testify: the watcher, a note in the witness
//
// Acks of a newer file wait for the end of the one before it, so end touches the log's device alone. In run they waited behind whatever the data directory was
// asked for: an fsync of a mirror each second, a mirror written anew, a commit of the catalogue.
//
// All channels hold one element: it means that there is something to do, and a second one would mean the same. Senders never wait, which the
// flush loop relies on: every ack waits for it. Recover starts the goroutines, Close ends them (quit) and waits for them (done).
type runner struct {
	wake chan struct{} // of one
	quit chan struct{}
	once sync.Once
	done sync.WaitGroup

	turned  chan struct{}          // of one: there are retired files
	synced  chan struct{}          // of one: the fsynced part of the log grew
	watcher atomic.Pointer[func()] // nil: none

	failed bool     // owned by run: files could not be tended since the last tick
	marked position // owned by run: the end covered by the last mark
	seen   position // the safe position at the last tick
}

const tickEvery = time.Second

func (r *runner) init() {
	r.wake, r.quit, r.turned, r.synced = make(chan struct{}, 1), make(chan struct{}), make(chan struct{}, 1), make(chan struct{}, 1)
}

// startRunner is called at the end of Recover: before it there is no file to tend.
func (b *Brick) startRunner() {
	b.runner.done.Go(b.run)
	b.runner.done.Go(b.end)
	b.runner.done.Go(b.testify)
}

// noteSynced requests a note in the witness. It never blocks: the flush loop of the log calls it.
func (r *runner) noteSynced() {
	select {
	case r.synced <- struct{}{}:
	default:
	}
}

// Watch registers f, which is called soon after each fsync that made records safe: one call for all records of that fsync. One goroutine makes all calls, until Close, and
// f must not wait. Watch may be called once.
func (b *Brick) Watch(f func()) { b.runner.watcher.Store(&f) }

// testify calls the watcher, and keeps the witness close behind the fsyncs of the log, without their waiting for either.
func (b *Brick) testify() {
	for {
		select {
		case <-b.runner.quit:
			return
		case <-b.runner.synced:
			if f := b.runner.watcher.Load(); f != nil {
				(*f)()
			}
			b.witness.note(b.testimony())
		}
	}
}

// testimony returns the present durable state.
func (b *Brick) testimony() testimony {
	return testimony{log: position(b.synced.Load()), catalogue: b.commits.durable.Load()}
}

// stop ends the goroutines and waits for the work they are at.
func (r *runner) stop() {
	r.once.Do(func() { close(r.quit) })
	r.done.Wait()
}

// poke requests a check of the files. Never blocks.
func (b *Brick) poke() {
	select {
	case b.runner.wake <- struct{}{}:
	default:
	}
}

func (b *Brick) run() {
	tick := time.NewTicker(tickEvery)
	defer tick.Stop()
	clock := newSteady(time.Now())
	for {
		select {
		case <-b.runner.quit:
			return
		case <-b.runner.wake:
			if !b.runner.failed { // each write wakes it; the next tick tries again
				b.tend()
			}
		case <-tick.C:
			b.checkPlaces()
			b.checkSpace()
			b.mark()
			b.tend()
			if now := time.Now(); now.Sub(clock.looked) > lostFoundPeriod {
				b.countLostFound(now, clock.look(now, now.Round(0)))
			}
			if err := b.tendCopies(); err != nil && b.Err() == nil {
				b.log.Warn("the mirrors of the catalogue and the WITNESS could not be written; it is tried again", "error", err)
			}
		}
	}
}

// tend does the due work on the files. Errors have fenced the brick already, or wait for the next tick.
func (b *Brick) tend() {
	if b.Err() != nil || b.Frozen() {
		return
	}
	err := errors.Join(b.prepareNext(), b.recordEnds(), b.removeDead())
	b.runner.failed = err != nil
	if err != nil && b.Err() == nil {
		b.log.Warn("log files could not be tended; it will be tried again", "error", err)
	}
}

// prepareNext makes the file that follows the current one, when that is half full.
func (b *Brick) prepareNext() error {
	b.mu.Lock()
	want := b.mu.next == nil && b.mu.cur != nil && b.mu.cur.w.Size() >= b.set.FileBytesMax/2
	var n uint32
	if want {
		n = b.mu.cur.number + 1
	}
	b.mu.Unlock()
	if !want {
		return nil
	}
	f, err := b.createFile(n, b.NewBatch())
	if err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mu.next = f
	b.turnLocked(b.mu.cur.w.Size())
	return nil
}

// noteTurned requests the end of retired files. Never blocks: Append calls it.
func (r *runner) noteTurned() {
	select {
	case r.turned <- struct{}{}:
	default:
	}
}

// end ends the files that Append has left. The rest after a fence, Close ends.
func (b *Brick) end() {
	for {
		select {
		case <-b.runner.quit:
			return
		case <-b.runner.turned:
			if b.Err() == nil && !b.Frozen() {
				b.endRetired()
				b.poke() // their ends are to be recorded
			}
		}
	}
}

// endRetired fsyncs the retired files, in order, so that those behind them count. A crash before recordEnds leaves an open file with a trailer: the next start reads the
// trailer, and closes it.
func (b *Brick) endRetired() {
	b.mu.Lock()
	retired := b.mu.retired
	b.mu.retired = nil
	b.mu.Unlock()
	for _, f := range retired {
		f.sink.final.Store(true)
		if err := f.w.Close(); err != nil {
			b.Fence(err)
			continue // the others must be closed too
		}
		b.ended(f)
		b.mu.Lock()
		b.mu.ended = append(b.mu.ended, f)
		b.mu.Unlock()
	}
}

// recordEnds gives the catalogue the ends of ended files. If it cannot record one the next call tries again: until then the file cannot be removed.
func (b *Brick) recordEnds() error {
	for b.Err() == nil {
		b.mu.Lock()
		var f *logFile
		if len(b.mu.ended) > 0 {
			f = b.mu.ended[0]
		}
		b.mu.Unlock()
		if f == nil {
			break
		}
		t := b.NewBatch()
		t.set(fileKey(f.number), (&fileEntry{state: fileClosed, end: f.end}).append(nil))
		if err := t.Commit(true); err != nil {
			return err
		}
		b.mu.Lock()
		b.mu.ended = b.mu.ended[1:]
		b.mu.index.files[f.number].open = false
		b.mu.index.grew(f.number, chunkHeaderSize) // the trailer
		b.mu.Unlock()
	}
	return b.Err()
}

// discard removes a file that was made and never used.
func (b *Brick) discard(f *logFile) error {
	if err := f.w.Close(); err != nil || b.Err() != nil {
		return err
	}
	return b.forget([]uint32{f.number})
}

// removeDead deletes the files that are no longer needed: first it marks their catalogue entries, durably, then it removes the
// files, then the entries. The next start removes any rest that a crash leaves.
func (b *Brick) removeDead() error {
	if b.Frozen() {
		return nil
	}
	b.mu.Lock()
	ns := b.mu.index.dead()
	for _, n := range ns {
		b.mu.index.files[n].pins++ // keeps it from being listed again
	}
	b.mu.Unlock()
	if len(ns) == 0 {
		return nil
	}
	err := b.forget(ns)
	b.mu.Lock()
	for _, n := range ns {
		b.mu.index.removeFile(n)
	}
	b.mu.Unlock()
	return err
}

// forget marks and removes files: the mark is durable before the file is gone, since an entry without a file is a loss.
func (b *Brick) forget(ns []uint32) error {
	t := b.NewBatch()
	for _, n := range ns {
		t.set(fileKey(n), (&fileEntry{state: fileRemoved}).append(nil))
	}
	if err := t.Commit(true); err != nil {
		return err
	}
	return b.removeFiles(ns)
}

// removeFiles removes files that are marked as removed in the catalogue, and then their entries; these need no fsync.
func (b *Brick) removeFiles(ns []uint32) error {
	var errs []error
	t := b.NewBatch()
	for _, n := range ns {
		if err := b.fs.Remove(b.filePath(n)); err != nil && !oserror.IsNotExist(err) {
			errs = append(errs, fault.Wrap(err, fault.Unavailable, "remove log file %s; the next start tries again", b.filePath(n)))
			continue
		}
		t.delete(fileKey(n))
	}
	return errors.Join(append(errs, t.Commit(false))...)
}

// mark writes an empty record when nothing was appended for a tick: its header proves that everything before it is fsynced, so
// that damage to the last records is distinguished from a torn end even if no record follows. Its fsync says how long one lasts, too: while that is not known, or was long, it is asked
// again each second.
func (b *Brick) mark() {
	synced := position(b.synced.Load())
	idle := (synced == b.runner.seen || synced == b.runner.marked) && int64(synced) == b.last.Load()
	b.runner.seen = synced
	if !idle || b.Err() != nil || synced == b.runner.marked && !b.probes() {
		return
	}
	h := header{kind: kindMark, synced: synced, catalogue: b.commits.durable.Load()}
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, end, err := b.writeLocked(h.append(nil)); err == nil {
		b.runner.marked = end
	}
}
