package rank

import (
	"time"

	"github.com/spillwaydb/spillway/protocols/point"
)

// Clock gives the ranks of one gateway: those of the moment, never the same twice, never going back unless a server
// refused them. For one caller at a time.
type Clock struct {
	gateway point.Stamp
	last    point.Stamp // the highest given out or observed, of gateway 0

	// After a refusal: by how much our clock is ahead of the servers', as of a moment of our clock.
	ahead int64
	asOf  point.Nanos
}

// correctedFor is how long a refusal counts. Then our own clock, which may have been corrected, is tried again: at worst one
// more insert is refused.
const correctedFor = 10 * time.Second

// NewClock makes the clock of a gateway. The number is drawn at random at every start; its low ten bits count.
func NewClock(gateway uint64) Clock { return Clock{gateway: point.Stamp(gateway % Gateways)} }

// Tick gives the first of n ranks, Step apart, for rows received now. After the last unit of time there is no higher
// rank: the highest is given again.
func (c *Clock) Tick(now point.Nanos, n int) point.Stamp {
	if c.ahead != 0 {
		if past := now - c.asOf; past < 0 || past > int64(correctedFor) {
			c.ahead = 0
		}
	}
	first := max(At(now-c.ahead), above(c.last, 1))
	c.last = above(first, n-1)
	return first | c.gateway
}

// Observe makes all ranks from now on higher than s.
func (c *Clock) Observe(s point.Stamp) { c.last = max(c.last, s&^(Step-1)) }

// Refused records that a server refused our ranks although it is server there, when it is now here. Ranks go on from the
// server's time: higher ranks given out before were refused too, or are ordered by the leader that accepted them.
func (c *Clock) Refused(now, server point.Nanos) {
	c.ahead, c.asOf = 0, now
	if server < now {
		c.ahead = now - max(server, 0)
	}
	if back := At(server); back < c.last {
		c.last = back
		c.Renumber()
	}
}

// Renumber gives the gateway another number, as if it were another one. Partitions remember the stamps that a number had (Seen): a
// gateway with stamps that go back, or that shares its number with a gateway of a faster clock, would have all its inserts refused.
func (c *Clock) Renumber() { c.gateway = (5*c.gateway + 1) % Gateways } // comes through all numbers

// above gives the rank n steps above s, of gateway 0, or the highest there is.
func above(s point.Stamp, n int) point.Stamp {
	s &^= Step - 1
	if uint64(n) > uint64(top-s)>>gatewayBits {
		return top
	}
	return s + point.Stamp(n)<<gatewayBits
}
