package rows

import (
	"math"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// Room is memory behind a run's values that belongs to the run alone: later values of the series are written there instead of being copied
// to new memory. The reader of segments reserves it, Merger and the next blocks fill it. No other code appends to Values in place.
//
// A run has room only while spare equals the capacity behind its values. So a run built from a part of another's values, or cut at its end,
// has none, and a slice with capacity of its own does not become room by chance. Copies of a Run share one room, and only one of them may
// fill it. Under the race detector unused room holds a mark, and filling it twice panics.

// An example: block 0 of 3 has 360 rows, so the reader reserves 1,080 values. Extend fills 360, then 360, then 360; a copy of the run taken after the
// first block still has spare 720, and a second Extend through it would write over values that the other run has: the mark finds that.

// unused marks room that is not filled: a NaN that no writer makes.
const unused = 0x7ff4_5350_4152_4521

// Reserve makes memory, from its beginning to its capacity, the place of the values to come. The run has no values, and memory belongs to it alone.
func (r *Run) Reserve(memory []float64) {
	r.Values, r.spare = memory[:0], cap(memory)
	if checked {
		for i := range memory[:cap(memory)] {
			memory[:cap(memory)][i] = math.Float64frombits(unused)
		}
	}
}

// Extend adds n values, which the caller sets, and returns them. They lie in the run's room, or all values move to new memory with room for
// later ones.
func (r *Run) Extend(n, later int) []float64 {
	from := len(r.Values)
	if r.room() < n {
		old := r.Values
		r.Reserve(make([]float64, 0, from+n+later))
		r.Values, r.spare = append(r.Values, old...), n+later
	}
	r.Values, r.spare = r.Values[:from+n], r.spare-n
	added := r.Values[from:]
	if checked {
		for _, v := range added {
			if math.Float64bits(v) != unused {
				fault.Bug("the room behind a run's values is filled a second time: values that are there would change")
			}
		}
	}
	return added
}

// room is how many values fit behind those of the run.
func (r *Run) room() int {
	if cap(r.Values)-len(r.Values) != r.spare {
		return 0
	}
	return r.spare
}
