package rank

import (
	"time"

	"github.com/spillwaydb/spillway/protocols/point"
)

// Order gives the frames that one partition takes directly ranks that rise in the order in which they are taken. It is begun
// with what the partition holds: Observe the highest rank of its segments and of every frame in its log. For one caller at
// a time; the zero Order is that of a partition without rows.
//
// A frame that is sent again keeps its rank. A gateway whose stream broke sends an insert again while the first try may still be
// on its way: were that one raised when it comes, it would win over what was written and acked after the second.
type Order struct {
	highest point.Stamp
	given   []given // in sets of givenSet; a power of two, or none
}

// given is the rank of a frame that was taken.
type given struct {
	frame uint64
	rank  point.Stamp
}

const (
	givenSet = 4 // a cache line
	givenMin = 1 << 5
	givenMax = 1 << 13 // 128 KiB

	// RememberFor is how long a frame is known again when it comes again, unless some thousands came since.
	RememberFor = 10 * time.Second
)

// Next gives the rank of a frame that is taken now: its own, or the next that is above all taken so far, with the same
// gateway's number. It costs no more where a clock was set back: Order counts on from where it is. At the highest rank
// there is it stays.
func (o *Order) Next(s point.Stamp) point.Stamp {
	if s <= o.highest {
		s = above(o.highest, 1) | s&(Step-1)
	}
	o.highest = max(o.highest, s)
	return o.highest
}

// Take is Next for a frame that may be sent again. Its stamp and content tell which frame it is: two gateways may draw the
// same number. One that was taken already keeps the rank it has.
func (o *Order) Take(s point.Stamp, content uint64) point.Stamp {
	const odd = 0x9e3779b97f4a7c15 // 2^64 over the golden ratio: neighbours in time fall far apart
	frame := (uint64(s) ^ content*odd) * odd
	if len(o.given) == 0 {
		o.given = make([]given, givenMin)
	}
	at := o.find(frame)
	if at.frame == frame && at.rank != 0 {
		return at.rank
	}
	r := o.Next(s)
	for at.rank != 0 && r-at.rank < point.Stamp(RememberFor) && len(o.given) < givenMax {
		o.grow()
		at = o.find(frame)
	}
	*at = given{frame, r}
	return r
}

// find gives where a frame is, or else the oldest of those in whose place it may be.
func (o *Order) find(frame uint64) *given {
	set := o.given[frame>>32%uint64(len(o.given))&^(givenSet-1):][:givenSet]
	oldest := &set[0]
	for i := range set {
		if set[i].frame == frame {
			return &set[i]
		}
		if set[i].rank < oldest.rank {
			oldest = &set[i]
		}
	}
	return oldest
}

func (o *Order) grow() {
	old := o.given
	o.given = make([]given, 2*len(old))
	for _, g := range old {
		if g.rank != 0 {
			*o.find(g.frame) = g
		}
	}
}

// Observe takes in the rank of rows that keep the one they have.
func (o *Order) Observe(s point.Stamp) { o.highest = max(o.highest, s) }

// Highest is the highest rank of all.
func (o *Order) Highest() point.Stamp { return o.highest }

// Rest gives back the memory for frames that come again: none came for a while.
func (o *Order) Rest() { o.given = nil }
