package query

import (
	"context"
	"sync"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// lane leaves processors to others: while rows are being written, all queries together use half of them. Who evaluates
// takes a turn for a page of rows or for a series, so a small query waits for a few pages of large ones, not for their
// end. While nothing is written there are no turns.
type lane struct {
	// Constant after newLane.
	busy func() bool // rows are being written
	most int         // turns at a time

	mu struct {
		sync.Mutex
		taken   int
		waiting []chan struct{} // in the order in which they came; closed when it is theirs
	}
}

func newLane(busy func() bool, most int) *lane {
	if busy == nil {
		busy = func() bool { return false }
	}
	return &lane{busy: busy, most: most}
}

// turn is one goroutine's way through the lane.
type turn struct {
	lane *lane
	has  bool
}

// next ends the turn there was, and waits for another if one is needed now.
func (t *turn) next(ctx context.Context) error {
	if t == nil {
		return nil
	}
	if !t.has && !t.lane.busy() {
		return nil
	}
	t.end()
	if !t.lane.busy() {
		return nil
	}
	if err := t.lane.enter(ctx); err != nil {
		return err
	}
	t.has = true
	return nil
}

// end gives the turn to another.
func (t *turn) end() {
	if t == nil || !t.has {
		return
	}
	t.has = false
	t.lane.mu.Lock()
	defer t.lane.mu.Unlock()
	t.lane.leaveLocked()
}

func (l *lane) enter(ctx context.Context) error {
	l.mu.Lock()
	if l.mu.taken < l.most {
		l.mu.taken++
		l.mu.Unlock()
		return nil
	}
	mine := make(chan struct{})
	l.mu.waiting = append(l.mu.waiting, mine)
	l.mu.Unlock()
	select {
	case <-mine:
		return nil
	case <-ctx.Done():
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, w := range l.mu.waiting {
		if w == mine {
			l.mu.waiting = append(l.mu.waiting[:i], l.mu.waiting[i+1:]...)
			return fault.Wrap(ctx.Err(), fault.Canceled, "waiting for a processor")
		}
	}
	l.leaveLocked() // it came at the same time
	return fault.Wrap(ctx.Err(), fault.Canceled, "waiting for a processor")
}

// leaveLocked passes the turn on.
func (l *lane) leaveLocked() {
	if len(l.mu.waiting) == 0 {
		l.mu.taken--
		return
	}
	close(l.mu.waiting[0])
	l.mu.waiting = l.mu.waiting[1:]
}
