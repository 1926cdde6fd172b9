package forward

import (
	"sync/atomic"
	"time"

	"github.com/spillwaydb/spillway/protocols/point"
)

// stampStep is the distance of two stamps of one gateway: the low 10 bits tell gateways apart.
const stampStep = 1 << 10

// Clock gives stamps: the time of receipt, never the same twice, never going back (hybrid logical clock).
type Clock struct {
	gateway point.Stamp
	last    atomic.Uint64
}

// NewClock makes the clock of a gateway; numbers of gateways that run at the same time differ, below 1024.
func NewClock(gateway int) *Clock { return &Clock{gateway: point.Stamp(gateway % stampStep)} }

// Next gives the stamp of what is received now.
func (c *Clock) Next() point.Stamp { return c.Reserve(1) }

// Reserve gives the first of n stamps, stampStep apart, of what is received now.
func (c *Clock) Reserve(n int) point.Stamp {
	now := uint64(time.Now().UnixNano()) &^ (stampStep - 1)
	for {
		last := c.last.Load()
		next := max(now, last+stampStep)
		if c.last.CompareAndSwap(last, next+uint64(n-1)*stampStep) {
			return point.Stamp(next) | c.gateway
		}
	}
}
