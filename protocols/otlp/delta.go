package otlp

import (
	"cmp"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spillwaydb/spillway/protocols/budget"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

const (
	// deltasMax bounds the series that a Deltas remembers.
	deltasMax = 1 << 20
	// deltaBytes is the memory of a series beside its names: its state, and its place in a map that has just grown.
	deltaBytes = 350
	// deltaReckoned is the memory that a series is reckoned with: of longer ones fewer are remembered.
	deltaReckoned = deltaBytes + 250
)

// deltaIdleMin is how long a series must have had no sample before another one may replace it. Longer than senders wait between two exports, which is a minute in every
// SDK's defaults: the sum of one that goes on would begin again at zero.
const deltaIdleMin = 10 * time.Minute

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
//
// At its bounds a new series replaces the one whose last sample is the oldest, if that is older than deltaIdleMin. Otherwise the new series is refused, and its sender gets the reason: the
// sum of a replaced series in use would begin again at zero, as if its program had been restarted.
type Deltas struct {
	// Max bounds the series that are remembered, where it is less than 1,048,576; 0: so many. Their memory is bounded by 600 bytes for each. Constant.
	Max int

	late atomic.Int64
	held budget.Held

	mu struct {
		sync.Mutex
		series         map[deltaSeries]*deltaState
		newest, oldest *deltaState // by their last samples
		bytes          int64
		began          time.Time // the first sample came
	}
}

// deltaSeries names a series by its labels, because its number ends with its Dict.
type deltaSeries struct {
	table   string
	replica string // of an HA pair: each sender's deltas have a sum of their own
	labels  point.Labels
}

// bytes is the memory of a series. Allocations are up to an eighth larger than what they hold.
func (s *deltaSeries) bytes() int64 {
	names := int64(len(s.table) + len(s.replica) + len(s.labels))
	return deltaBytes + names + names/8
}

// deltaState is the sum of all deltas of a series, and its newest times.
type deltaState struct {
	named deltaSeries // in memory of its own: a part of a Dict's would keep all of that
	sum   float64
	len   int
	times [deltaTimes]deltaTime // the first len, rising

	seen         time.Duration // from Deltas' began to the last sample
	newer, older *deltaState
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
	state, err := d.findLocked(series)
	if err != nil {
		return 0, err
	}
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

// findLocked gives the state of a series, as the newest. The error is Invalid.
func (d *Deltas) findLocked(series deltaSeries) (*deltaState, error) {
	if d.mu.series == nil {
		d.mu.series, d.mu.began = map[deltaSeries]*deltaState{}, time.Now()
	}
	now := time.Since(d.mu.began)
	state := d.mu.series[series]
	if state != nil {
		d.unlinkLocked(state)
	} else {
		cost := series.bytes()
		if err := d.makeRoomLocked(cost, now); err != nil {
			return nil, err
		}
		d.held.Add(cost)
		d.mu.bytes += cost
		state = &deltaState{named: deltaSeries{strings.Clone(series.table), strings.Clone(series.replica), point.Labels(strings.Clone(string(series.labels)))}}
		d.mu.series[state.named] = state
	}
	state.seen = now
	d.linkLocked(state)
	return state, nil
}

// makeRoomLocked forgets idle series until one of so many bytes has room.
func (d *Deltas) makeRoomLocked(bytes int64, now time.Duration) error {
	most := min(cmp.Or(d.Max, deltasMax), deltasMax)
	bytesMax := int64(most) * deltaReckoned
	for len(d.mu.series) >= most || d.mu.bytes+bytes > bytesMax {
		last := d.mu.oldest
		if last == nil || now-last.seen < deltaIdleMin {
			return fault.Errorf(fault.Invalid, "no room for the sum of one more series of delta temporality: the sums of %d series in use have %d bytes, and at most %d of %d bytes are remembered; "+
				"raise intake.series_max, or let senders export cumulative values", len(d.mu.series), d.mu.bytes, most, bytesMax)
		}
		d.unlinkLocked(last)
		delete(d.mu.series, last.named)
		d.mu.bytes -= last.named.bytes()
		d.held.Add(-last.named.bytes())
	}
	return nil
}

// linkLocked makes a state the newest.
func (d *Deltas) linkLocked(s *deltaState) {
	s.older, s.newer = d.mu.newest, nil
	if s.older != nil {
		s.older.newer = s
	} else {
		d.mu.oldest = s
	}
	d.mu.newest = s
}

// unlinkLocked removes a state from the order.
func (d *Deltas) unlinkLocked(s *deltaState) {
	if s.newer != nil {
		s.newer.older = s.older
	} else {
		d.mu.newest = s.older
	}
	if s.older != nil {
		s.older.newer = s.newer
	} else {
		d.mu.oldest = s.newer
	}
}
