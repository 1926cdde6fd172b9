package rpc

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// outRoom is the room for bodies at the other side of a link, as this side knows it. Bodies that wait for room get it in their order, but short ones pass long ones: those are asked for as a
// whole, so a short one leaves them the room they wait for.
//
//	acquire ───▶ room ──▶ out ──┬─ credit: the other side has released them, and returns their room
//	  └ none: ask ─▶ grant ─▶   └─ kept:   it has released them, and gives their room to another link
//
// Where the other side gives room that is asked for (peer.CanAskRoom), it begins with linkFirstBytes. A body that is longer is asked for as a whole, and what room there is
// beyond those is given back, also what comes later: of two sides that wait none holds room that the other one waits for. A shorter one needs no answer, since the first bytes
// always come back; those stay, so that shorter ones are sent while a longer one waits, and where it gives up.
//
// Invariant: room and out are together what the other side gave, the first bytes included.
type outRoom struct {
	asks bool              // constant
	ask  func(g, w uint64) // constant: sends a linkAsk

	mu     sync.Mutex
	room   int64
	out    int64
	waits  []*outWait
	asking bool
	usedAt time.Time // when some was last acquired or given
}

// outWait is a body that waits for room.
type outWait struct {
	bytes int64
	ready chan struct{} // closed when it has its room
}

const (
	// linkFirstBytes is the room for frames that each link has whatever others hold, with bodyCost for each: many frames of the usual size.
	linkFirstBytes = 1 << 20
	// linkIdle is how long room beyond that is kept unused.
	linkIdle = time.Second
)

// wanted is a linkAsk to be sent; the zero value is none.
type wanted struct{ give, want int64 }

func (o *outRoom) tell(w wanted) {
	if w != (wanted{}) {
		o.ask(uint64(w.give), uint64(w.want))
	}
}

// tryAcquire reserves n bytes, unless others wait or there are too few.
func (o *outRoom) tryAcquire(n int64) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.acquireLocked(n)
}

func (o *outRoom) acquireLocked(n int64) bool {
	if n > o.room || !o.passesLocked(n) {
		return false
	}
	o.bookLocked(n)
	return true
}

// passesLocked reports whether a body need not wait for those that do.
func (o *outRoom) passesLocked(n int64) bool {
	for _, w := range o.waits {
		if o.long(n) || !o.long(w.bytes) {
			return false
		}
	}
	return true
}

// long reports whether a body is asked for as a whole.
func (o *outRoom) long(n int64) bool { return o.asks && n > linkFirstBytes }

func (o *outRoom) bookLocked(n int64) {
	o.room, o.out, o.usedAt = o.room-n, o.out+n, time.Now()
}

// acquire reserves n bytes, and waits for them until ctx ends.
func (o *outRoom) acquire(ctx context.Context, n int64) error {
	w := o.join(n)
	select {
	case <-w.ready:
		return nil
	case <-ctx.Done():
	}
	if o.leave(w) {
		return ctx.Err()
	}
	return nil
}

// join has n bytes reserved, at once or later.
func (o *outRoom) join(n int64) *outWait {
	w := &outWait{bytes: n, ready: make(chan struct{})}
	o.mu.Lock()
	o.waits = append(o.waits, w)
	ask := o.serveLocked()
	o.mu.Unlock()
	o.tell(ask)
	return w
}

// leave removes one that waits; false: it has its room.
func (o *outRoom) leave(w *outWait) bool {
	o.mu.Lock()
	for i, other := range o.waits {
		if other == w {
			o.waits = slices.Delete(o.waits, i, i+1)
			ask := o.serveLocked() // those behind may be shorter
			o.mu.Unlock()
			o.tell(ask)
			return true
		}
	}
	o.mu.Unlock()
	return false
}

// serveLocked gives room to the bodies that wait, in their order, and returns the ask to send for the first one without room. Behind a long one without room short ones are served.
func (o *outRoom) serveLocked() wanted {
	passing, full := false, false
	left := o.waits[:0]
	for _, w := range o.waits {
		if full || w.bytes > o.room || passing && o.long(w.bytes) {
			full = full || !o.long(w.bytes)
			passing = true
			left = append(left, w)
			continue
		}
		o.bookLocked(w.bytes)
		close(w.ready)
	}
	clear(o.waits[len(left):])
	o.waits = left
	return o.askLocked()
}

func (o *outRoom) askLocked() wanted {
	switch {
	case !o.asks || len(o.waits) == 0:
		return wanted{}
	case o.asking: // bytes that come back meanwhile are too few for the body, and may be all that another waits for
		return o.spareLocked()
	}
	o.asking = true
	w := o.spareLocked()
	w.want = max(o.waits[0].bytes, linkFirstBytes)
	return w
}

// spareLocked gives back the room beyond the first bytes.
func (o *outRoom) spareLocked() wanted {
	give := max(o.room-linkFirstBytes, 0)
	o.room -= give
	return wanted{give: give}
}

// credit returns the room of n bytes that the other side has released. False: they are more than it was sent.
func (o *outRoom) credit(n uint64) bool { return o.released(n, n) }

// kept notes that the other side has released n bytes and keeps their room. False as for credit.
func (o *outRoom) kept(n uint64) bool { return o.released(n, 0) }

func (o *outRoom) released(n, room uint64) bool {
	o.mu.Lock()
	if n > uint64(o.out) {
		o.mu.Unlock()
		return false
	}
	o.out, o.room = o.out-int64(n), o.room+int64(room)
	ask := o.serveLocked()
	o.mu.Unlock()
	o.tell(ask)
	return true
}

// granted adds room that was asked for. False: it was not, or is more than any side has.
func (o *outRoom) granted(n uint64) bool {
	o.mu.Lock()
	if !o.asking || n > linkWindowMax {
		o.mu.Unlock()
		return false
	}
	o.asking, o.usedAt = false, time.Now()
	o.room += int64(n)
	ask := o.serveLocked()
	o.mu.Unlock()
	o.tell(ask)
	return true
}

// idle gives back the room beyond the first bytes that was not used for a while.
func (o *outRoom) idle(now time.Time) {
	o.mu.Lock()
	give := wanted{}
	if o.asks && len(o.waits) == 0 && now.Sub(o.usedAt) >= linkIdle {
		give = o.spareLocked()
	}
	o.mu.Unlock()
	o.tell(give)
}

// bytesOut is the bytes of bodies that are queued or were sent, and that the other side has not released.
func (o *outRoom) bytesOut() int64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.out
}

// await reserves room, unless ctx or the link ends before.
func (l *link) await(ctx context.Context, room *outRoom, n int64) error {
	if room.tryAcquire(n) {
		return nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(l.ctx, cancel)()
	if err := room.acquire(ctx, n); err != nil {
		if why := l.why(); why != nil {
			return why
		}
		return fault.Wrap(err, fault.Canceled, "wait for room on the link to %s", l.other.Server)
	}
	return nil
}
