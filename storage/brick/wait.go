package brick

import (
	"sync"
	"time"
)

// Wait is the promise of one Append: its end, good or bad, can be waited for. A value; the zero Wait is done.
type Wait struct {
	b   *Brick
	pos position // end of the record
}

// Wait returns nil once the record is fsynced (NoSync: handed to the operating system), with everything appended
// before it. The error is Unavailable: the brick is fenced and the record may or may not be there after a restart.
// May be called more than once and from any goroutine.
func (w Wait) Wait() error {
	if w.Done() {
		return nil
	}
	wt := waiters.Get().(*waiter)
	defer waiters.Put(wt)
	if !w.b.enlist(wt, w.pos) {
		return w.b.outcome(w.pos)
	}
	// One element was sent, by wakeLocked or Fence, when the waiter was removed from the list: the channel is empty again.
	<-wt.ch
	return w.b.outcome(w.pos)
}

// Done reports whether Wait would return nil at once.
func (w Wait) Done() bool { return w.b == nil || position(w.b.acked.Load()) >= w.pos }

// waiter is one goroutine in Wait. Pooled: the channel is empty again when it is put back.
type waiter struct {
	pos   position
	since time.Time
	ch    chan struct{} // of one
}

var waiters = sync.Pool{New: func() any { return &waiter{ch: make(chan struct{}, 1)} }}

// tracker turns "file n is fsynced up to x" into one position below which everything is safe. Files end in the
// background, so a newer file can be fsynced while the end of the one before it is not: nothing in the newer one
// counts until then.
type tracker struct {
	sync.Mutex // guards the fields below, and the fields of logFile marked so
	open       []*logFile
	waiting    []*waiter
	over       bool // fenced: no more progress
}

// enlist queues a waiter for pos unless it is settled already.
func (b *Brick) enlist(wt *waiter, pos position) bool {
	b.tracker.Lock()
	defer b.tracker.Unlock()
	if b.tracker.over || position(b.acked.Load()) >= pos {
		return false
	}
	wt.pos, wt.since = pos, time.Now()
	b.tracker.waiting = append(b.tracker.waiting, wt)
	return true
}

// OldestWait returns how long the oldest call of Wait has been waiting for its fsync; 0: there is none.
func (b *Brick) OldestWait(now time.Time) time.Duration {
	b.tracker.Lock()
	defer b.tracker.Unlock()
	if len(b.tracker.waiting) == 0 {
		return 0
	}
	return max(0, now.Sub(b.tracker.waiting[0].since)) // in the order in which they came
}

// outcome is the result of a settled Wait. Records acked before a fence stay acked.
func (b *Brick) outcome(pos position) error {
	if position(b.acked.Load()) >= pos {
		return nil
	}
	return b.Err()
}

// reached is called by a file's flush loop, after each fsync: all before pos is in the file.
func (b *Brick) reached(f *logFile, pos position, err error) {
	if err != nil {
		b.Fence(err)
		return
	}
	b.tracker.Lock()
	defer b.tracker.Unlock()
	f.safe = max(f.safe, pos)
	b.advanceLocked()
}

// ended is called when a file was ended and fsynced.
func (b *Brick) ended(f *logFile) {
	b.tracker.Lock()
	defer b.tracker.Unlock()
	f.safe, f.ended = f.last, true
	b.advanceLocked()
}

// advanceLocked moves acked and synced up, over ended files to the safe part of the first that is not ended:
//
//	file 7 ended │ file 8 safe up to 400, not ended │ file 9 safe up to 90       acked = 8:400, and file 9 waits for the end of 8
func (b *Brick) advanceLocked() {
	t := &b.tracker
	if t.over {
		return
	}
	safe := position(b.acked.Load())
	for len(t.open) > 0 {
		f := t.open[0]
		if f.safe > safe {
			safe = f.safe
			b.ackedBytes.Store(f.base + safe.offset())
		}
		// All of it is fsynced, trailer included: the files behind it count from here on.
		if f.ended {
			b.synced.Store(int64(f.last))
			t.open = t.open[1:]
			continue
		}
		break
	}
	b.acked.Store(int64(safe))
	if !b.set.NoSync {
		b.synced.Store(int64(safe))
	}
	b.runner.noteSynced()
	b.wakeLocked(safe)
}

// wakeLocked wakes the waiters for positions up to safe. The channels have room: nothing blocks.
func (b *Brick) wakeLocked(safe position) {
	kept := b.tracker.waiting[:0]
	for _, wt := range b.tracker.waiting {
		if wt.pos <= safe {
			wt.ch <- struct{}{}
		} else {
			kept = append(kept, wt)
		}
	}
	clear(b.tracker.waiting[len(kept):])
	b.tracker.waiting = kept
}
