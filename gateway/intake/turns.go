package intake

import (
	"context"
	"slices"
	"sync"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// turns bound how many writes use a processor at once, from unpacking until they wait for the log, and give tables their
// turns. All at once would be no faster, and would hold up two things: flushes, without which there is soon no room for
// rows, and the rows of a table that sends little, behind hundreds of requests of one that sends much.
//
//	table a  ▪▪▪▪▪▪▪ ─┐
//	table b  ▪ ───────┼─▶ round robin ─▶ as many as there are processors, and one of each table whatever others do
//	table c  ▪▪ ──────┘
//
// A body waits only after it was read, so a slow sender delays no other. The waiting bytes are bounded by
// Settings.InFlightBytesMax.
//
// The bound is most + (tables − 1) at the worst: each table has a turn even if others use all processors.
type turns struct {
	most int // constant: at once, but for one of each table

	mu      sync.Mutex
	running int
	tables  map[string]*tableTurns // with any running or waiting
	order   []*tableTurns          // with any waiting, the next first
}

// tableTurns are the running and the waiting requests of one table. Invariant: requests wait only while some run.
type tableTurns struct {
	running int
	waiting []*turn // first come first
}

// enter waits for a turn of the table, which leave ends. The error is Unavailable: the request's time is over.
func (s *turns) enter(ctx context.Context, table string) error {
	t := s.join(table)
	if t == nil {
		return nil
	}
	select {
	case <-t.come:
		return nil
	case <-ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	of := s.tables[table]
	if of == nil {
		return nil
	}
	i := slices.Index(of.waiting, t)
	if i < 0 {
		return nil // it came meanwhile
	}
	if of.waiting = slices.Delete(of.waiting, i, i+1); len(of.waiting) == 0 {
		s.order = slices.DeleteFunc(s.order, func(o *tableTurns) bool { return o == of })
	}
	return fault.Wrap(ctx.Err(), fault.Unavailable, "waiting to be decoded")
}

// join begins a turn, or gives one to wait for.
func (s *turns) join(table string) *turn {
	s.mu.Lock()
	defer s.mu.Unlock()
	of := s.tables[table]
	if of == nil {
		if s.tables == nil {
			s.tables = map[string]*tableTurns{}
		}
		of = &tableTurns{}
		s.tables[table] = of
	}
	// A newcomer does not pass those that wait, except where its table has none running.
	if of.running == 0 || s.running < s.most && len(s.order) == 0 {
		s.running++
		of.running++
		return nil
	}
	t := &turn{come: make(chan struct{})}
	if len(of.waiting) == 0 {
		s.order = append(s.order, of)
	}
	of.waiting = append(of.waiting, t)
	return t
}

// leave ends a turn.
// A turn that begins here was joined by a request that waits, or has given up: enter removes that one from waiting
// under the same lock, so a turn is never given to it.
func (s *turns) leave(table string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	of := s.tables[table]
	s.running--
	of.running--
	if of.running == 0 && len(of.waiting) > 0 {
		s.order = slices.DeleteFunc(s.order, func(o *tableTurns) bool { return o == of })
		s.order = slices.Insert(s.order, 0, of) // one of each table runs whatever others do
		s.beginLocked()
	}
	for s.running < s.most && len(s.order) > 0 {
		s.beginLocked()
	}
	if of.running == 0 {
		delete(s.tables, table)
	}
}

// taken reports whether any write has a turn. Requests wait only while some have.
func (s *turns) taken() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.running > 0
}

// beginLocked begins the turn that is next.
func (s *turns) beginLocked() {
	of := s.order[0]
	s.order = s.order[1:]
	close(of.waiting[0].come)
	of.waiting = of.waiting[1:]
	of.running++
	s.running++
	if len(of.waiting) > 0 {
		s.order = append(s.order, of)
	}
}
