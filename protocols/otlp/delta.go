package otlp

import (
	"cmp"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/spillwaydb/spillway/protocols/budget"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

const (
	// deltasMax bounds the series that a Deltas remembers, in two generations of half as many.
	deltasMax = 1 << 20
	// deltaBytes is the memory of a series beside its names, maps and allocations with their slack included.
	deltaBytes = 350
	// deltaReckoned is the memory that a series is reckoned with: a generation of longer ones has fewer.
	deltaReckoned = deltaBytes + 250
)

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
	held budget.Held

	mu struct {
		sync.Mutex
		young, old deltaGeneration // a series is in one; old is dropped when young is full
	}
}

// deltaGeneration are series with the memory that they need.
type deltaGeneration struct {
	series map[deltaSeries]*deltaState
	bytes  int64
}

// deltaSeries names a series by its labels, because its number ends with its Dict.
type deltaSeries struct {
	table   string
	replica string // of an HA pair: each sender's deltas have a sum of their own
	labels  point.Labels
}

// bytes is the memory of a series.
func (s *deltaSeries) bytes() int64 {
	return deltaBytes + int64(len(s.table)+len(s.replica)+len(s.labels))
}

// deltaState is the sum of all deltas of a series, and its newest times.
type deltaState struct {
	named deltaSeries // in memory of its own: a part of a Dict's would keep all of that
	sum   float64
	len   int
	times [deltaTimes]deltaTime // the first len, rising
}

// deltaTime is the row that a series has at a time.
type deltaTime struct {
	at  point.Nanos
	sum float64
}

// Bytes is the memory of the sums and of the names of their series.
func (d *Deltas) Bytes() int64 { return d.held.Load() }

// OnGrowth has f called with the coming value of Bytes each time before it grows.
func (d *Deltas) OnGrowth(f func(to int64)) { d.held.OnGrowth(f) }

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
	return row.sum, nil
}

// findLocked gives the state of a series, in the young generation.
func (d *Deltas) findLocked(series deltaSeries) *deltaState {
	young := &d.mu.young
	if state := young.series[series]; state != nil {
		return state
	}
	most := min(cmp.Or(d.Max, deltasMax), deltasMax) / 2
	if len(young.series) >= most || young.bytes+series.bytes() > int64(most)*deltaReckoned {
		d.held.Add(-d.mu.old.bytes)
		d.mu.old, d.mu.young = d.mu.young, deltaGeneration{}
	}
	if young.series == nil {
		young.series = map[deltaSeries]*deltaState{}
	}
	cost := series.bytes()
	state := d.mu.old.series[series]
	if state != nil {
		delete(d.mu.old.series, series)
		d.mu.old.bytes -= cost
	} else {
		d.held.Add(cost)
		state = &deltaState{named: deltaSeries{strings.Clone(series.table), strings.Clone(series.replica), point.Labels(strings.Clone(string(series.labels)))}}
	}
	young.series[state.named] = state
	young.bytes += cost
	return state
}
