package otlp

import (
	"cmp"
	"sync"
	"sync/atomic"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

// deltasMax bounds the series that a Deltas remembers: two generations of half as many, up to 270 bytes each beside the
// labels, which a Dict usually holds too.
const deltasMax = 1 << 20

// deltaTimes is how many of the newest times of a series are remembered. More: an export may come again after more newer ones; 16 bytes each.
const deltaTimes = 4

// Deltas adds up samples of delta temporality, for all tables of a process. The zero Deltas is ready and safe for
// concurrent use.
//
// An export that comes again must not count twice, also after newer ones of its series: its answer was lost, or was 503 and others passed it. A delta at a time that is
// remembered gives the sum of then once more. One at a new time before the newest counts from the next sum on: its row has the sum of the row before it, because sums that
// are stored already would be lower than its own, which looks like a reset. One before all remembered times may have been counted, and is refused.
//
//	times   10   20   40   50      at 20: the sum of then     at 30: the sum at 20, and the sums after 50 have it     at 5: refused
type Deltas struct {
	// Max bounds the series that are remembered, where it is less than 1,048,576; 0: so many. Constant. It should be twice the series that are in use.
	Max int

	late atomic.Int64

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

// deltaState is the sum of all deltas of a series, and its newest times.
type deltaState struct {
	sum   float64
	len   int
	times [deltaTimes]deltaTime // the first len, rising
}

// deltaTime is the row that a series has at a time.
type deltaTime struct {
	at  point.Nanos
	sum float64
}

// Late returns how many samples came after newer ones of their series and count from the next sum on.
func (d *Deltas) Late() int64 { return d.late.Load() }

// add gives the sum of a series at t. The error is Invalid.
func (d *Deltas) add(series deltaSeries, t point.Nanos, v float64) (float64, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	state := d.findLocked(series)
	i := state.len // of the first time that is not before t
	for i > 0 && state.times[i-1].at >= t {
		i--
	}
	row := deltaTime{at: t, sum: state.sum + v}
	switch {
	case i < state.len && state.times[i].at == t:
		return state.times[i].sum, nil
	case i == 0 && state.len > 0: // its sum is unknown: after a restart the rows before are of other sums
		return 0, fault.Errorf(fault.Invalid, "delta at %d is older than the last %d of its series, from %d on: it was counted already, or is too late", t, state.len, state.times[0].at)
	case i < state.len:
		d.late.Add(1)
		row.sum = state.times[i-1].sum
	}
	state.sum += v
	if state.len == deltaTimes { // the oldest one is forgotten
		copy(state.times[:], state.times[1:i])
		i--
	} else {
		copy(state.times[i+1:], state.times[i:state.len])
		state.len++
	}
	state.times[i] = row
	d.mu.young[series] = state
	return row.sum, nil
}

func (d *Deltas) findLocked(series deltaSeries) deltaState {
	if len(d.mu.young) >= min(cmp.Or(d.Max, deltasMax), deltasMax)/2 {
		d.mu.old, d.mu.young = d.mu.young, nil
	}
	if d.mu.young == nil {
		d.mu.young = make(map[deltaSeries]deltaState)
	}
	if state, ok := d.mu.young[series]; ok {
		return state
	}
	return d.mu.old[series]
}
