package query

import (
	"context"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// lane leaves processors to others: while rows are being written, all queries and look-ups together use half of them; between writes that
// come again and again, all but one; else a few more threads than there are processors. An evaluation takes a turn for a page of rows or
// for a series, a look-up for a list, an answer for a buffer of its text, so a small query waits for a few pages of large ones, not for their end.
//
//	query a  ▪▪▪▪▪ ─┐            the query that had the fewest ─┐
//	query b  ▪▪▪▪  ─┼─▶ waiting                                 ├─ in turns ─▶ half of the processors
//	query c  ▪     ─┘            the worker that came first ────┘
//
// The fewest first, so that a small query does not wait for a page of each worker of large ones. The first that came in between,
// so that small queries, however many, do not hold up a large one.
type lane struct {
	// Constant after newLane.
	busy func() bool // rows are being written
	most int         // turns at a time while they are
	rest int         // turns at a time between writes: the next one finds a processor
	idle int         // turns at a time while nothing is written: half as many more as processors, as some wait for a disk

	mu struct {
		sync.Mutex
		taken   int
		waiting []waiting // in the order in which they came
		fewest  bool      // the next turn is of the query that had the fewest
		busyAt  time.Time // when rows were last seen to be written
	}
}

// newLane makes one for so many processors.
func newLane(busy func() bool, processors int) *lane {
	if busy == nil {
		busy = func() bool { return false }
	}
	return &lane{busy: busy, most: max(1, processors/2), rest: max(1, processors-1), idle: processors + (processors+1)/2}
}

// restTime is how long after a write the next is expected.
const restTime = time.Second

// roomLocked reports whether one more may have a turn.
func (l *lane) roomLocked() bool {
	now := time.Now()
	switch {
	case l.busy():
		l.mu.busyAt = now
		return l.mu.taken < l.most
	case now.Sub(l.mu.busyAt) < restTime:
		return l.mu.taken < l.rest
	}
	return l.mu.taken < l.idle
}

// waiting is a goroutine that waits for its turn.
type waiting struct {
	of   *laneShare
	come chan struct{} // closed when it is its turn
}

// laneShare counts the turns of one query, over all its goroutines. Guarded by the lane's lock.
type laneShare struct{ turns int }

// turn is one goroutine's way through the lane.
type turn struct {
	lane *lane
	of   *laneShare
	has  bool
}

// next ends the turn there was, and waits for another.
func (t *turn) next(ctx context.Context) error {
	if t == nil {
		return nil
	}
	t.end()
	if err := t.lane.enter(ctx, t.of); err != nil {
		return err
	}
	t.has = true
	return nil
}

// end releases the turn to another goroutine.
func (t *turn) end() {
	if t == nil || !t.has {
		return
	}
	t.has = false
	t.lane.mu.Lock()
	defer t.lane.mu.Unlock()
	t.lane.leaveLocked()
}

// Turn is the way of a look-up, or of the encoding of an answer, through the lane. For one goroutine; nil never waits.
type Turn struct{ turn }

// Turn makes one for an answer that is encoded. End it.
func (r *Reader) Turn() *Turn { return &Turn{turn{lane: r.engine.lane, of: &laneShare{}}} }

// Next ends the turn there was, and waits for another. The error is Canceled.
func (t *Turn) Next(ctx context.Context) error {
	if t == nil {
		return nil
	}
	return t.next(ctx)
}

// End releases the turn to another goroutine. Next may follow.
func (t *Turn) End() {
	if t != nil {
		t.end()
	}
}

// Write writes b to w outside of a turn, because a client may read slowly, and waits for the next turn.
func (t *Turn) Write(ctx context.Context, w io.Writer, b []byte) error {
	t.End()
	if _, err := w.Write(b); err != nil {
		return err
	}
	return t.Next(ctx)
}

type turnKey struct{}

// TurnOf returns the turn of the look-up that a context belongs to; nil if there is none.
func TurnOf(ctx context.Context) *Turn {
	t, _ := ctx.Value(turnKey{}).(*Turn)
	return t
}

func (l *lane) enter(ctx context.Context, of *laneShare) error {
	l.mu.Lock()
	of.turns++
	if len(l.mu.waiting) == 0 && l.roomLocked() {
		l.mu.taken++
		l.mu.Unlock()
		return nil
	}
	mine := make(chan struct{})
	l.mu.waiting = append(l.mu.waiting, waiting{of, mine})
	l.mu.Unlock()
	select {
	case <-mine:
		return nil
	case <-ctx.Done():
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, w := range l.mu.waiting {
		if w.come == mine {
			l.mu.waiting = slices.Delete(l.mu.waiting, i, i+1)
			return fault.Wrap(ctx.Err(), fault.Canceled, "waiting for a processor")
		}
	}
	l.leaveLocked() // it arrived at the same time
	return fault.Wrap(ctx.Err(), fault.Canceled, "waiting for a processor")
}

// leaveLocked passes the turn on.
func (l *lane) leaveLocked() {
	l.mu.taken--
	for len(l.mu.waiting) > 0 && l.roomLocked() {
		l.serveLocked()
	}
}

// serveLocked gives a turn to a waiting goroutine.
func (l *lane) serveLocked() {
	next := 0
	if l.mu.fewest = !l.mu.fewest; l.mu.fewest {
		for i, w := range l.mu.waiting {
			if w.of.turns < l.mu.waiting[next].of.turns {
				next = i
			}
		}
	}
	l.mu.taken++
	close(l.mu.waiting[next].come)
	l.mu.waiting = slices.Delete(l.mu.waiting, next, next+1)
}
