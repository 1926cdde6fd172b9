package presplit

import (
	"math"
	"slices"

	"github.com/spillwaydb/spillway/protocols/point"
)

// Trace is a recorded load: the bytes of each minute from Start on; NaN where nothing was recorded, as in a gap of the recording.
type Trace struct {
	Start point.Nanos
	Bytes []float64
}

// Test says how a trace is replayed.
type Test struct {
	Plan
	// Horizon is how far ahead partitions exist.
	Horizon point.Nanos
	// Repeated is what each partition has besides what the trace counts, as the definitions of its series, in bytes. It is learned from partitions that closed.
	Repeated float64
	// Learn is the beginning of the trace in which partitions are made and not counted.
	Learn point.Nanos
}

// Closed is a partition of a replayed trace.
type Closed struct {
	Lo, Hi point.Nanos
	Bytes  float64
}

// Report is the outcome of a replay.
type Report struct {
	// Partitions are those that closed behind the time to learn; Errors their sizes against the target, minus 1, in the same order.
	Partitions []Closed
	Errors     []float64
	// Cuts is how often partitions to come were cut again.
	Cuts int
}

// Backtest replays a trace through the functions that the master uses, a minute at a time.
func Backtest(trace Trace, t Test) Report {
	var h History
	var r Report
	lo := trace.Start // of the partition that holds now
	var ends []point.Nanos
	filled, size := 0.0, 0.0 // of that partition: its recorded size, and its real one
	var weighed []Weighed
	for i, bytes := range trace.Bytes {
		now := trace.Start + point.Nanos(i)*minute
		if f, ok := h.Forecast(now, now+t.Horizon); ok || len(ends) == 0 {
			plan := t.weighing(weighed)
			f = plan.Suited(f)
			next, cut := plan.relay(&f, ok, lo, now, filled, ends)
			if ends = next; cut {
				r.Cuts++
			}
		}
		real := bytes
		if math.IsNaN(bytes) {
			real = 0
		} else {
			h.Observe(now, now+minute, bytes)
		}
		// The partitions that close within this minute get their shares.
		for at := now; at < now+minute; {
			end := min(ends[0], now+minute)
			size += real * float64(end-at) / float64(minute)
			filled = size
			if at = end; end == ends[0] {
				if lo >= trace.Start+t.Learn {
					r.Partitions = append(r.Partitions, Closed{lo, end, size + t.Repeated})
					r.Errors = append(r.Errors, (size+t.Repeated)/t.Target-1)
				}
				weighed = append([]Weighed{{size, size + t.Repeated}}, weighed[:min(len(weighed), weighedMax)]...)
				lo, ends, filled, size = end, ends[1:], 0, 0
				if len(ends) == 0 {
					ends = append(ends, lo+t.WidthMax)
				}
			}
		}
	}
	return r
}

// weighing has the target that partitions should have of what the trace counts, by those that closed, newest first.
func (t Test) weighing(closed []Weighed) Test {
	if w, ok := WeightOf(closed); ok && t.Repeated > 0 {
		t.Target = w.Rows(t.Target)
	}
	return t
}

// relay is the layout from lo on: the ends that stay because their partitions begin soon, then those of the forecast where the old ones
// do not fit it any more. Where the partition that holds now would grow far too large, its end moves.
func (t Test) relay(f *Forecast, known bool, lo, now point.Nanos, filled float64, ends []point.Nanos) (out []point.Nanos, cut bool) {
	if !known {
		if len(ends) == 0 {
			ends = []point.Nanos{lo + t.WidthMax}
		}
		return ends, false
	}
	if len(ends) > 0 {
		if at, full := t.Full(f, now+Lead, ends[0], filled); full {
			ends, cut = append([]point.Nanos{at}, ends...), true
		}
	}
	kept, from := 0, lo
	for ; kept < len(ends) && from <= now+Fixed; kept++ {
		from = ends[kept]
	}
	fit, all := t.Fitting(f, from, ends[kept:], max(now+t.Horizon*3/4, from+1), math.MaxInt64)
	if all { // edges come in large batches, not one by one
		return ends, cut
	}
	if kept += fit; fit > 0 {
		from = ends[kept-1]
	}
	if kept > 0 {
		filled = 0
	}
	return append(slices.Clone(ends[:kept]), t.Edges(f, from, max(now+t.Horizon, from+1), filled)...), true
}

// Quantile of the absolute errors: 0.5 is their median. NaN without any.
func (r Report) Quantile(q float64) float64 {
	if len(r.Errors) == 0 {
		return math.NaN()
	}
	abs := make([]float64, len(r.Errors))
	for i, e := range r.Errors {
		abs[i] = math.Abs(e)
	}
	slices.Sort(abs)
	return abs[min(int(q*float64(len(abs))), len(abs)-1)]
}
