package rank

import "github.com/spillwaydb/spillway/protocols/point"

// Order gives the frames that one partition accepts directly ranks that rise in the order of acceptance. It begins
// with the content of the partition: Observe the highest rank of its segments and of every frame in its log. For one caller
// at a time; the zero Order is that of a partition without rows.
type Order struct{ highest point.Stamp }

// Next gives the rank of the frame that is accepted now: its own, or the next above all accepted so far, with the same
// gateway's number. A clock that was set back costs no more: Order counts on from its last rank. It stays at the highest
// rank.
func (o *Order) Next(s point.Stamp) point.Stamp {
	if s <= o.highest {
		s = above(o.highest, 1) | s&(Step-1)
	}
	o.highest = max(o.highest, s)
	return o.highest
}

// Observe records the rank of rows that keep theirs.
func (o *Order) Observe(s point.Stamp) { o.highest = max(o.highest, s) }

// Highest is the highest rank of all.
func (o *Order) Highest() point.Stamp { return o.highest }
