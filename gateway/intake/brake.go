package intake

import (
	"sync"
	"time"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// brakes refuse requests of a table before their bodies are read while the store has no room for its rows. Without them
// an overloaded process decodes what it then refuses, and the flushes that would make room wait for the processor: at three
// times its capacity it took in 40 % of it.
//
//	store: Throttled ─▶ pause ─▶ one request ─▶ taken: twice as many at once, and so on, until nothing is held back
//	                      ▲           └───────▶ Throttled: half as many, and a longer pause ─┐
//	                      └──────────────────────────────────────────────────────────────────┘
//
// A table has a brake only while it is held back (I5).
type brakes struct {
	mu     sync.Mutex
	tables map[string]*brake
}

// brake is the state of one table. It has no clock and no lock.
type brake struct {
	until time.Time     // nothing is let through before
	pause time.Duration // the last
	most  int           // at once
	under int           // let through and not done
	why   error         // of the store's last refusal
}

const (
	brakeLeast = 10 * time.Millisecond
	brakeMost  = 200 * time.Millisecond
	brakeOff   = 64 // so many at once are not held back
)

// refused notes that the store had no room. Requests that were under way when it began are refused together, and count once.
func (b *brake) refused(now time.Time, why error) {
	b.why = why
	if now.Before(b.until) {
		return
	}
	b.pause = min(max(2*b.pause, brakeLeast), brakeMost)
	b.until = now.Add(b.pause)
	b.most = max(b.most/2, 1)
}

// begin reports whether a request is let through; it is then done once.
func (b *brake) begin(now time.Time) bool {
	if now.Before(b.until) || b.under >= b.most {
		return false
	}
	b.under++
	return true
}

// done notes what became of a request that was let through: taken, or not. It reports whether the brake is off.
func (b *brake) done(taken bool) (off bool) {
	b.under--
	if taken {
		b.most *= 2
		b.pause /= 2
	}
	return b.most > brakeOff
}

// begin lets a request of a table through, or refuses it as Throttled. by is the brake that counts it, for done; nil: none.
func (s *brakes) begin(table string) (by *brake, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.tables[table]
	if b == nil {
		return nil, nil
	}
	if !b.begin(time.Now()) {
		return nil, fault.Annotate(b.why, "the body was not read")
	}
	return b, nil
}

// refused begins to hold a table back, or goes on.
func (s *brakes) refused(table string, why error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.tables[table]
	if b == nil {
		if s.tables == nil {
			s.tables = map[string]*brake{}
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
	if by.done(taken) && s.tables[table] == by {
		delete(s.tables, table)
	}
}
