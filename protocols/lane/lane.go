package lane

import (
	"context"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// Lane gives out turns. Safe for concurrent use; nil gives turns that never wait.
type Lane struct {
	// Constant after New.
	busy func() bool // rows are being written
	most int         // turns at a time while they are
	rest int         // turns at a time between writes: the next one finds a processor
	idle int         // turns at a time while nothing is written: half as many more as processors, as some wait for a disk

	mu struct {
		sync.Mutex
		taken  int
		held   map[*Turn]time.Time // the turns in use, since when
		late   *time.Timer         // looks for turns that have become overdue; nil: no worker waits
		sides  [2]side             // queries, background
		fewest bool                // the next turn of a query is of the one that had the fewest
		busyAt time.Time           // when rows were last seen to be written
	}
}

// side is all queries, or all work in the background.
type side struct {
	taken   int
	waiting []waiting     // in the order in which they came
	spent   time.Duration // in turns that have ended; of a side that comes back, at least that of the other
}

// New makes one for so many processors; busy reports whether rows are being written, nil: never.
func New(busy func() bool, processors int) *Lane {
	if busy == nil {
		busy = func() bool { return false }
	}
	l := &Lane{busy: busy, most: max(1, processors/2), rest: max(1, processors-1), idle: processors + (processors+1)/2}
	l.mu.held = map[*Turn]time.Time{}
	return l
}

// overdueAfter is many times as long as a page.
const overdueAfter = 500 * time.Millisecond

// restTime is how long after a write the next is expected.
const restTime = time.Second

// roomLocked reports whether one more may have a turn.
func (l *Lane) roomLocked() bool {
	now := time.Now()
	most := l.idle
	switch {
	case l.busy():
		l.mu.busyAt = now
		most = l.most
	case now.Sub(l.mu.busyAt) < restTime:
		most = l.rest
	}
	return l.mu.taken < most || l.mu.taken < most+max(1, most/2) && l.mu.taken-l.overdueLocked(now) < most
}

// overdueLocked counts the turns that have lasted too long.
func (l *Lane) overdueLocked(now time.Time) (n int) {
	for _, since := range l.mu.held {
		if now.Sub(since) >= overdueAfter {
			n++
		}
	}
	return n
}

// watchLocked looks again for overdue turns while a worker waits.
func (l *Lane) watchLocked() {
	if l.mu.late != nil || len(l.mu.sides[0].waiting)+len(l.mu.sides[1].waiting) == 0 {
		return
	}
	l.mu.late = time.AfterFunc(overdueAfter/2, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.mu.late = nil
		l.serveAllLocked()
		l.watchLocked()
	})
}

// InUse counts the turns in use and the workers that wait for one.
func (l *Lane) InUse() (taken, waiting int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.taken, len(l.mu.sides[0].waiting) + len(l.mu.sides[1].waiting)
}

// waiting is a goroutine that waits for its turn.
type waiting struct {
	turn *Turn
	of   *Share
	come chan struct{} // closed when it is its turn
}

// Share counts the turns of one query, over all its goroutines. The zero value is that of a query that has had no turn. It must not be copied.
type Share struct {
	background int // its side; constant
	turns      int // guarded by the lane's lock
}

// Background is the share of work without a waiting client: a compaction.
func Background() *Share { return &Share{background: 1} }

// Turn is one goroutine's way through the lane, for that goroutine alone; nil never waits.
type Turn struct {
	lane *Lane
	of   *Share
	has  bool
	from time.Time // while it has one
}

// Turn makes one that has not begun. End it.
func (l *Lane) Turn(of *Share) *Turn {
	if l == nil {
		return nil
	}
	return &Turn{lane: l, of: of}
}

// Next ends the turn there was, and waits for another. The error is Canceled.
func (t *Turn) Next(ctx context.Context) error {
	if t == nil {
		return nil
	}
	var took time.Duration
	if t.has {
		took = time.Since(t.from)
	}
	had := t.has
	t.has = false
	if err := t.lane.enter(ctx, t, had, took); err != nil {
		return err
	}
	t.has, t.from = true, time.Now()
	return nil
}

// slice is how long a turn of a compaction lasts: about as long as a page of a query.
const slice = 3 * time.Millisecond

// Yield lets others have their turn when this one has lasted for some milliseconds, or has not begun; else it goes on. The error is Canceled.
func (t *Turn) Yield(ctx context.Context) error {
	if t == nil || t.has && time.Since(t.from) < slice {
		return nil
	}
	return t.Next(ctx)
}

// End releases the turn to another goroutine. Next may follow.
func (t *Turn) End() {
	if t == nil || !t.has {
		return
	}
	t.has = false
	took := time.Since(t.from)
	t.lane.mu.Lock()
	defer t.lane.mu.Unlock()
	t.lane.leaveLocked(t, took)
}

// Aside calls f, which waits for something else than a processor, without the turn if there is one, and waits for the next then. The error is Canceled.
func (t *Turn) Aside(ctx context.Context, f func()) error {
	if t == nil || !t.has {
		f()
		return nil
	}
	t.End()
	f()
	return t.Next(ctx)
}

type turnKey struct{}

// With returns a context under which Of finds the turn of the goroutine that reads under it.
func With(ctx context.Context, t *Turn) context.Context {
	return context.WithValue(ctx, turnKey{}, t)
}

// Of returns the turn of the goroutine that reads under a context; nil if there is none. It is for that goroutine alone.
func Of(ctx context.Context) *Turn {
	t, _ := ctx.Value(turnKey{}).(*Turn)
	return t
}

// Write writes b to w outside of a turn, because a client may read slowly, and waits for the next turn.
func (t *Turn) Write(ctx context.Context, w io.Writer, b []byte) error {
	t.End()
	if _, err := w.Write(b); err != nil {
		return err
	}
	return t.Next(ctx)
}

// enter waits for a turn; took is how long its last turn lasted, if it had one: it waits among the others before that is passed on, so that a compaction whose
// turns are shorter than a page has two of them.
func (l *Lane) enter(ctx context.Context, t *Turn, had bool, took time.Duration) error {
	of := t.of
	l.mu.Lock()
	s, other := &l.mu.sides[of.background], &l.mu.sides[1-of.background]
	if s.taken == 0 && len(s.waiting) == 0 {
		s.spent = max(s.spent, other.spent) // the time that it left unused is gone
	}
	of.turns++
	if had {
		l.giveLocked(t, took)
	}
	if len(s.waiting) == 0 && len(other.waiting) == 0 && l.roomLocked() {
		l.takeLocked(t)
		l.mu.Unlock()
		return nil
	}
	mine := make(chan struct{})
	s.waiting = append(s.waiting, waiting{t, of, mine})
	l.serveAllLocked()
	l.watchLocked()
	l.mu.Unlock()
	select {
	case <-mine:
		return nil
	case <-ctx.Done():
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, w := range s.waiting {
		if w.come == mine {
			s.waiting = slices.Delete(s.waiting, i, i+1)
			return fault.Wrap(ctx.Err(), fault.Canceled, "waiting for a processor")
		}
	}
	l.leaveLocked(t, 0) // it arrived at the same time
	return fault.Wrap(ctx.Err(), fault.Canceled, "waiting for a processor")
}

// leaveLocked passes on a turn that lasted for took.
func (l *Lane) leaveLocked(t *Turn, took time.Duration) {
	l.giveLocked(t, took)
	l.serveAllLocked()
}

// takeLocked counts a turn that begins, giveLocked one that ends.
func (l *Lane) takeLocked(t *Turn) {
	l.mu.taken++
	l.mu.sides[t.of.background].taken++
	l.mu.held[t] = time.Now()
}

func (l *Lane) giveLocked(t *Turn, took time.Duration) {
	s := &l.mu.sides[t.of.background]
	l.mu.taken--
	s.taken--
	s.spent += took
	delete(l.mu.held, t)
}

// serveAllLocked gives out the turns that there are.
func (l *Lane) serveAllLocked() {
	for len(l.mu.sides[0].waiting)+len(l.mu.sides[1].waiting) > 0 && l.roomLocked() {
		l.serveLocked()
	}
}

// serveLocked gives a turn to a waiting goroutine, of the side that had less time. There is one.
func (l *Lane) serveLocked() {
	queries, background := &l.mu.sides[0], &l.mu.sides[1]
	s, next := queries, 0
	switch {
	case len(queries.waiting) == 0, len(background.waiting) > 0 && background.spent < queries.spent:
		s = background
	default:
		next = l.nextLocked(queries.waiting)
	}
	l.takeLocked(s.waiting[next].turn)
	close(s.waiting[next].come)
	s.waiting = slices.Delete(s.waiting, next, next+1)
}

// nextLocked chooses among queries.
func (l *Lane) nextLocked(from []waiting) (next int) {
	if l.mu.fewest = !l.mu.fewest; l.mu.fewest {
		for i, w := range from {
			if w.of.turns < from[next].of.turns {
				next = i
			}
		}
	}
	return next
}
