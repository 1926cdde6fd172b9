package otlp

import (
	"cmp"
	"sync"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

// deltasMax bounds the series that a Deltas remembers: two generations of half as many, about 80 bytes each beside the
// labels, which a Dict usually holds too.
const deltasMax = 1 << 20

// Deltas adds up samples of delta temporality, for all tables of a process. The zero Deltas is ready and safe for
// concurrent use.
//
// An export that is sent again because its answer was lost must not count twice: a delta at the time of the last one
// gives the last sum again, one before it is refused.
type Deltas struct {
	// Max bounds the series that are remembered, where it is less than 1,048,576; 0: so many. Constant. It should be twice the series that are in use.
	Max int

	mu struct {
		sync.Mutex
		young, old map[deltaSeries]deltaState // a series is in one map; old is dropped when young is full
	}
}

// deltaSeries names a series by its labels, because its number ends with its Dict.
type deltaSeries struct {
	table   string
	replica string // of an HA pair: each sender's deltas have a sum of their own
	labels  point.Labels
}

type deltaState struct {
	last point.Nanos
	sum  float64
}

// add gives the sum of a series at t. The error is Invalid.
func (d *Deltas) add(series deltaSeries, t point.Nanos, v float64) (float64, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	state, known := d.findLocked(series)
	switch {
	case known && t < state.last:
		return 0, fault.Errorf(fault.Invalid, "delta at %d is older than the last of its series, at %d", t, state.last)
	case known && t == state.last:
		return state.sum, nil
	}
	state.last = t
	state.sum += v
	d.mu.young[series] = state
	return state.sum, nil
}

func (d *Deltas) findLocked(series deltaSeries) (deltaState, bool) {
	if len(d.mu.young) >= min(cmp.Or(d.Max, deltasMax), deltasMax)/2 {
		d.mu.old, d.mu.young = d.mu.young, nil
	}
	if d.mu.young == nil {
		d.mu.young = make(map[deltaSeries]deltaState)
	}
	if state, ok := d.mu.young[series]; ok {
		return state, true
	}
	state, ok := d.mu.old[series]
	return state, ok
}
