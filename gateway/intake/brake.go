package intake

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// brakes delay the requests of a table, before their bodies are read, while the store has no room for its rows. Without
// them an overloaded process decodes bodies and then refuses them, while the flushes that would make room wait for the
// processor: at three times its capacity such a process accepted 40 % of its capacity.
//
//	store: Throttled ─▶ half as many at once, after a pause ─▶ as many accepted: one more at once
//	                          ▲                                    │
//	                          └──────────── Throttled ─────────────┘
//
// Delayed requests wait in order of arrival, and are refused when the wait is too long. Waiting is cheap: no byte of the
// body was read, so it stays in the sender's buffers. A refusal is expensive: the body is read to keep the connection, and
// the sender retries at once.
//
// A table has a brake only while its requests are delayed (I5), or until another table gets one some seconds later.
type brakes struct {
	// One lock for all tables, held for a few instructions: most requests find no brake for their table. Turns are
	// given by closing come under it, which wakes the waiter and runs nothing of it here.
	mu      sync.Mutex
	tables  map[string]*brake
	waiting int       // requests of all tables
	swept   time.Time // when those that are off were removed
}

const (
	// turnTimeMax is how long a request waits for its turn. Longer: fewer refusals, and answers closer to the time-outs of
	// senders, of which the shortest usual one is 5 s.
	turnTimeMax = 500 * time.Millisecond
	// turnsMax bounds the waiting requests; further ones are refused at once. Each costs as much as a connection with a
	// slow sender.
	turnsMax = 4096
)

// begin lets a request of a table through as soon as it may, or refuses it as Throttled. by is the brake that counts it, for
// done; nil: none.
func (s *brakes) begin(ctx context.Context, table string) (by *brake, err error) {
	// Three answers: no turn and no error, go on (by counts the request, or there is no brake); an error, refused at
	// once; a turn, wait.
	t, by, err := s.join(table)
	if t == nil {
		return by, err
	}
	timer := time.NewTimer(turnTimeMax)
	defer timer.Stop()
	select {
	case <-t.come:
		return by, nil
	case <-timer.C:
	case <-ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	// The timer and the turn may come together. Under the lock the queue says which: a turn that is no longer in it was
	// counted by begin, and must be ended by done, not refused.
	i := slices.Index(by.queue, t)
	if i < 0 {
		return by, nil // it came meanwhile
	}
	by.queue = slices.Delete(by.queue, i, i+1)
	s.waiting--
	s.dropLocked(table, by)
	return nil, by.refusal()
}

// join lets a request through, refuses it, or gives it a turn to wait for.
func (s *brakes) join(table string) (*turn, *brake, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.tables[table]
	switch {
	case b == nil:
		return nil, nil, nil
	case len(b.queue) == 0 && b.begin(time.Now()):
		return nil, b, nil
	case s.waiting >= turnsMax:
		return nil, nil, b.refusal()
	}
	t := &turn{come: make(chan struct{})}
	b.queue = append(b.queue, t)
	s.waiting++
	s.serveLocked(table, b)
	return t, b, nil
}

// refused begins or continues to delay a table.
// The brake is not removed here, even if the request that was refused was counted by an older one: done drops it when
// it is off.
func (s *brakes) refused(table string, why error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.tables[table]
	if b == nil {
		if s.tables == nil {
			s.tables = map[string]*brake{}
		}
		// Of tables that are not written to any more no request removes the brake. Now and then: a look at all for each new one costs the
		// square of their number, under the lock that all requests need.
		if now := time.Now(); now.Sub(s.swept) >= brakeQuiet {
			s.swept = now
			maps.DeleteFunc(s.tables, func(_ string, b *brake) bool { return b.off(now) })
		}
		b = &brake{}
		s.tables[table] = b
	}
	b.refused(time.Now(), why)
}

// done ends a request that a brake counts.
func (s *brakes) done(table string, by *brake, taken bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	by.done(taken)
	s.serveLocked(table, by)
	s.dropLocked(table, by)
}

// held is how many requests wait.
func (s *brakes) held() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.waiting
}

// serveLocked lets waiting requests through, as many as may be under way.
func (s *brakes) serveLocked(table string, b *brake) {
	now := time.Now()
	for len(b.queue) > 0 && b.begin(now) {
		close(b.queue[0].come)
		b.queue = b.queue[1:]
		s.waiting--
	}
	if len(b.queue) == 0 || b.waking || !now.Before(b.until) {
		return // nothing waits, or done serves it
	}
	// One timer for a brake at a time; it is not waited for by Shutdown, and finds an empty queue then.
	b.waking = true
	time.AfterFunc(b.until.Sub(now), func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		b.waking = false
		s.serveLocked(table, b)
	})
}

// dropLocked removes a brake that is not needed any more.
func (s *brakes) dropLocked(table string, b *brake) {
	if s.tables[table] == b && b.off(time.Now()) {
		delete(s.tables, table)
	}
}

// turn is a waiting request.
type turn struct {
	come chan struct{} // closed when it is let through
}

// brake is the state of one table. Its methods have no clock and no lock.
type brake struct {
	until time.Time     // nothing is let through before
	pause time.Duration // the last
	most  int           // at once
	under int           // let through and not done
	taken int           // since most changed
	why   error         // of the store's last refusal

	queue  []*turn // first come first. Invariant: empty, or under > 0, or waking
	waking bool    // a timer serves the queue when the pause is over
}

const (
	// Requests at once, not rows. The first refusal leaves 8, the next ones 4, 2 and 1; from 1 on it needs 1 + 2 + … +
	// 63 = 2,016 accepted requests until 64 turn the brake off, unless brakeQuiet without a refusal does before.
	brakeFirst = 16 // at once before the first refusal
	brakeLeast = 5 * time.Millisecond
	brakeMost  = 50 * time.Millisecond // after each a request is decoded that may be refused then
	brakeOff   = 64                    // from this number on requests are no longer held back at all
	brakeQuiet = 5 * time.Second       // after the last refusal
)

// refused notes that the store had no room. Requests that were under way when it began are refused together, and count once.
func (b *brake) refused(now time.Time, why error) {
	b.why = why
	if now.Before(b.until) {
		return
	}
	if b.most == 0 {
		b.most = brakeFirst
	}
	b.pause = min(max(2*b.pause, brakeLeast), brakeMost)
	b.until = now.Add(b.pause)
	b.most, b.taken = max(b.most/2, 1), 0
}

// begin reports whether a request is let through; it is then done once.
func (b *brake) begin(now time.Time) bool {
	if now.Before(b.until) || b.under >= b.most {
		return false
	}
	b.under++
	return true
}

// done records whether an admitted request was accepted. When as many were accepted as may run at once, the limit
// grows by one: it finds the store's capacity step by step.
func (b *brake) done(taken bool) {
	b.under--
	if !taken {
		return
	}
	b.pause /= 2
	if b.taken++; b.taken >= b.most {
		b.most, b.taken = b.most+1, 0
	}
}

// off reports whether the table's requests need no delay any more.
func (b *brake) off(now time.Time) bool {
	return len(b.queue) == 0 && (b.most >= brakeOff || now.Sub(b.until) >= brakeQuiet)
}

func (b *brake) refusal() error { return fault.Annotate(b.why, "the body was not read") }
