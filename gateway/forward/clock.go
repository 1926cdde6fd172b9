package forward

import (
	"sync"
	"time"

	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/protocols/rank"
)

// Clock gives stamps: the time of receipt, never the same twice. It is a rank.Clock for many goroutines.
type Clock struct {
	now func() point.Nanos

	mu struct {
		sync.Mutex // held for nanoseconds, once a write
		rank.Clock
	}
}

// NewClock makes the clock of a gateway. Its number is to be random, drawn again at every start. now is its wall clock; nil: the machine's.
func NewClock(gateway uint64, now func() point.Nanos) *Clock {
	if now == nil {
		now = func() point.Nanos { return time.Now().UnixNano() }
	}
	c := &Clock{now: now}
	c.mu.Clock = rank.NewClock(gateway)
	return c
}

// Reserve returns the first of n stamps, rank.Step apart, for rows received now.
func (c *Clock) Reserve(n int) point.Stamp {
	now := c.now()
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.Tick(now, n)
}

// refused records that a server refused a stamp that was reserved at some time of our clock, and the server's time. Counted from the
// answer, a slow one would set our stamps back behind those of rows that another gateway staged before.
func (c *Clock) refused(reserved, server point.Nanos) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.Refused(reserved, server)
}

// observe makes all stamps from now on higher than one that a partition accepted.
func (c *Clock) observe(s point.Stamp) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.Observe(s)
}

// renumber gives this gateway another number.
func (c *Clock) renumber() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.Renumber()
}

// restampsMax bounds how often one insert is stamped again. One time is enough, unless the clock is set while it is sent, or
// another gateway has the same number.
const restampsMax = 8

// restamp gives the rest of a share new stamps if err says that its stamps are too far ahead of the servers' clocks, or may
// have been accepted before. The write does not fail by it: the insert is sent again at once.
func (w *attempt) restamp(err error, r *ranks, rest *pieces) bool {
	server, ahead := peer.NeedsStamp(err)
	if !ahead || r.anew == restampsMax {
		return false
	}
	w.t.f.metrics.restamped.Inc()
	anew := r.anew + 1
	above, late := peer.StampAbove(err)
	switch {
	case late:
		w.t.f.deps.Clock.observe(above)
	case server != 0:
		w.t.f.deps.Clock.refused(r.at, server)
	case r.anew > 0: // else the next one is the newest of this gateway, and is accepted
		w.t.f.deps.Clock.renumber()
	}
	*r = reserve(w.t.f.deps.Clock, rest.len(), &w.t.f.settings)
	r.used, r.anew = -rest.acked, anew
	return true
}
