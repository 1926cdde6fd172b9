package clock

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/spillwaydb/spillway/protocols/point"
)

// Clock is the clock that a process goes by. It is safe for concurrent use, and so is the nil Clock: the machine's own.
type Clock struct {
	began time.Time // the zero of the steady clock
	state atomic.Pointer[State]
	rows  struct{ near, ahead atomic.Bool } // of senders, since the last Seen
}

// New makes a Clock that goes by the machine's until the first Judge.
func New() *Clock {
	c := &Clock{began: time.Now()}
	c.state.Store(&State{})
	return c
}

// Both reads the machine's clock and the steady one at one moment.
func (c *Clock) Both() (wall, steady point.Nanos) {
	now := time.Now()
	return now.UnixNano(), int64(now.Sub(c.began))
}

// Judge replaces the judgment in force.
func (c *Clock) Judge(s State) { c.state.Store(&s) }

// State is the judgment in force.
func (c *Clock) State() State {
	if c == nil {
		return State{}
	}
	return *c.state.Load()
}

// Read is the time now.
func (c *Clock) Read() Reading { return c.ReadAt(time.Now()) }

// ReadAt is Read for a moment that time.Now returned.
func (c *Clock) ReadAt(now time.Time) Reading {
	if c == nil {
		return At(now.UnixNano())
	}
	return c.State().Read(now.UnixNano(), int64(now.Sub(c.began)))
}

// Nanos is Now of Read.
func (c *Clock) Nanos() point.Nanos { return c.Read().Now }

// Now is Nanos as a time. It has no reading of Go's monotonic clock where it differs from the machine's.
func (c *Clock) Now() time.Time {
	now := time.Now()
	if at := c.ReadAt(now).Now; at != now.UnixNano() {
		return time.Unix(0, at)
	}
	return now
}

// Ahead is how far the machine's clock is ahead of the reference; 0 where there is none.
func (c *Clock) Ahead() time.Duration {
	s := c.State()
	if s.Verdict == Alone {
		return 0
	}
	wall, steady := c.Both()
	return time.Duration(wall - steady - s.Ref)
}

// Note records rows that senders wrote: the first one says enough. Rows without a time of their own have that of r, and say nothing.
func (c *Clock) Note(times []point.Nanos, r Reading) {
	if c == nil || len(times) == 0 || times[0] == r.Now {
		return
	}
	switch ahead := times[0] - r.Now; {
	case ahead > int64(NearMax):
		note(&c.rows.ahead)
	case ahead >= -int64(NearMax):
		note(&c.rows.near)
	}
}

func note(b *atomic.Bool) {
	if !b.Load() { // the usual case writes no memory that processors share
		b.Store(true)
	}
}

// Seen returns the notes since the last call.
func (c *Clock) Seen() Rows {
	return Rows{Near: c.rows.near.Swap(false), Ahead: c.rows.ahead.Swap(false)}
}

// Servers is the Clock of a gateway in a cluster, with the storage servers' clocks as the gateway knows them.
type Servers struct {
	*Clock

	mu struct {
		sync.Mutex
		peers Peers
	}
}

// NewServers makes one that knows of no server.
func NewServers() *Servers {
	s := &Servers{Clock: New()}
	s.mu.peers.state.Unjudged = true
	s.Judge(s.mu.peers.state)
	return s
}

// Listed is Peers.Listed.
func (s *Servers) Listed(times []point.Nanos) {
	_, steady := s.Both()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.peers.Listed(times, steady)
	s.Judge(s.mu.peers.state)
}

// Observe records that it was wall at a server just now.
func (s *Servers) Observe(server string, wall point.Nanos) {
	_, steady := s.Both()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.peers.Observe(server, wall, steady)
}

// Look judges again, and returns the judgments before and now.
func (s *Servers) Look() (was, is State) {
	wall, steady := s.Both()
	s.mu.Lock()
	defer s.mu.Unlock()
	was = s.State()
	is = s.mu.peers.Look(wall, steady)
	s.Judge(is)
	return was, is
}
