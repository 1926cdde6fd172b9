package columns

import (
	"math"
	"slices"

	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
)

// An example, steps at 60 s and 120 s, a range of 90 s, rows every 30 s from 0:
//
//	times    0   30   60   90   120        window of 60 s:  (-30, 60]  rows [0, 3)     window of 120 s: (30, 120] rows [2, 5)
//	rows     0    1    2    3     4        most 3, last 3, total 6, fresh 3 + 2 = 5
//
// Windows depend on times alone, so a column of times that series share is fitted once.

// windows holds the rows of a column of times that lie in the window of each step: [lo[i], hi[i]).
type windows struct {
	times  []point.Nanos
	lo, hi []int32

	at      *point.Nanos // the place of a column found equal on this page
	crowded bool         // rows may share a millisecond
	most    int          // rows of the largest window
	last    int          // rows of the last one
	total   int          // rows of all windows
	fresh   int          // rows of all windows, each counted once

	work    int         // rows visited since done was asked last
	done    func() bool // the caller no longer wants the Column
	stopped bool
}

// workMax is how many rows are visited before the evaluation checks whether it is still wanted: a millisecond or two.
const workMax = 1 << 20

// canceled reports, before rows are visited, whether the caller no longer wants the result.
func (w *windows) canceled(rows int32) bool {
	if w.work += int(rows); w.work > workMax {
		w.work, w.stopped = 0, w.done()
	}
	return w.stopped
}

// fit finds the windows (t-offset-range, t-offset] of all steps t in a column of times, and writes over those of an earlier
// column. A column equal to that costs a comparison, and nothing if it lies in the same place on the same page.
// Most series of a fleet share their times.
func (w *windows) fit(times []point.Nanos, s *Source, g Grid) {
	if len(times) > 0 && w.at == &times[0] && len(times) == len(w.times) {
		return
	}
	// The times are copied: a page's memory is used again, and the next column is compared with them.
	if w.lo == nil || !slices.Equal(w.times, times) {
		w.find(append(w.times[:0], times...), s, g)
	}
	if len(times) > 0 {
		w.at = &times[0]
	}
}

// find walks over times and steps once: both ends of a window only move forward.
func (w *windows) find(times []point.Nanos, s *Source, g Grid) {
	n := g.Len()
	w.lo, w.hi = slices.Grow(w.lo[:0], n)[:n], slices.Grow(w.hi[:0], n)[:n]
	w.times, w.most, w.total, w.fresh = times, 0, 0, 0
	offset, width := s.Offset.Milliseconds(), s.Window.Milliseconds()
	lo, hi := 0, 0
	for i := range n {
		end := g.Start + int64(i)*g.Step - offset
		before := hi
		lo = reach(times, lo, point.NanosOf(end-width+1))
		hi = reach(times, max(hi, lo), point.NanosOf(end+1))
		w.lo[i], w.hi[i] = int32(lo), int32(hi)
		w.last = hi - lo
		w.most, w.total, w.fresh = max(w.most, w.last), w.total+w.last, w.fresh+hi-max(lo, before)
	}
	w.crowded = crowded(times)
}

// crowded reports whether rows may share a millisecond.
// The engine has times in milliseconds and one sample in each. Rows nearer than that may have to be collapsed.
func crowded(times []point.Nanos) bool {
	for i := 1; i < len(times); i++ {
		if times[i]-times[i-1] < nanosPerMilli {
			return true
		}
	}
	return false
}

const nanosPerMilli = 1_000_000

// reach finds the first row at or after t, from row i on, which is near.
// Steps double while t lies behind, then halve: rows between two windows are few, and log of them are visited.
func reach(times []point.Nanos, i int, t point.Nanos) int {
	step := 1
	for i+step < len(times) && times[i+step] < t {
		i += step
		step *= 2
	}
	for ; step > 0; step /= 2 {
		if i+step < len(times) && times[i+step] < t {
			i += step
		}
	}
	if i < len(times) && times[i] < t {
		i++
	}
	return i
}

// column is a series as functions see it: at most one row a millisecond, and no markers unless the selector is instant.
type column struct {
	*windows
	values []float64
}

// reader makes columns of series, and reuses its memory.
// A column that it returns is good until the next call, and not longer than the page that the series lies in.
type reader struct {
	source *Source
	grid   Grid

	common windows // of the original times; series that follow each other often share them
	own    windows // of a series' rows alone
	times  []point.Nanos
	values []float64
}

func newReader(s *Source, g Grid, done func() bool) reader {
	return reader{source: s, grid: g, common: windows{done: done}, own: windows{done: done}}
}

// turnPage drops the addresses of columns: their memory may be in use again.
func (r *reader) turnPage() { r.common.at = nil }

// column returns a column that is valid until the next call.
func (r *reader) column(s *peer.Series) column {
	r.common.fit(s.Times, r.source, r.grid)
	values := s.Values
	// The usual case: the series' own columns are used in place, and nothing is copied.
	if !r.common.crowded && (r.source.Instant || !hasMarker(values)) {
		return column{&r.common, values}
	}
	r.times, r.values = r.times[:0], r.values[:0]
	r.collapse(s)
	if !r.source.Instant {
		r.dropMarkers()
	}
	r.own.find(r.times, r.source, r.grid)
	return column{&r.own, r.values}
}

// hasMarker looks for stale markers. A sum of numbers is a number: only if it is not, the values are checked one by one.
// Eight values at a time: a marker is a NaN, so its sum is one, and sum-sum is not 0. Infinities cost a second look.
func hasMarker(values []float64) bool {
	for len(values) >= 8 {
		v := values[:8:8]
		if sum := ((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + (v[6] + v[7])); sum-sum != 0 && anyMarker(v) {
			return true
		}
		values = values[8:]
	}
	return anyMarker(values)
}

func anyMarker(values []float64) bool {
	for _, v := range values {
		if v != v && IsAbsent(v) {
			return true
		}
	}
	return false
}

// collapse copies the newest row of each millisecond; a marker only if there is nothing else.
func (r *reader) collapse(s *peer.Series) {
	at := int64(math.MinInt64)
	for i, t := range s.Times {
		v, ms := s.Values[i], point.MillisOf(t)
		if n := len(r.times); n > 0 && ms == at {
			if !IsAbsent(v) || IsAbsent(r.values[n-1]) {
				r.values[n-1] = v
			}
			continue
		}
		at = ms
		r.times, r.values = append(r.times, t), append(r.values, v)
	}
}

// dropMarkers closes the gaps in place. Over a range a marker is no sample; to an instant selector it ends the series.
func (r *reader) dropMarkers() {
	n := 0
	for i, v := range r.values {
		if !IsAbsent(v) {
			r.times[n], r.values[n] = r.times[i], v
			n++
		}
	}
	r.times, r.values = r.times[:n], r.values[:n]
}
