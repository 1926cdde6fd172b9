package rows

import (
	"slices"
	"sort"

	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
)

// Run is one series' rows. Times rise strictly; so do the times in Hists; a time is not in both.
// Columns may be shared with other runs: they are read only unless the Run was made by the holder.
//
//	Times      10   20   30           40          one row is (Times[i], Values[i], Ranks[i]); Hists have their times inside
//	Values      1    2    3            5
//	Hists                      35:h
//
// Ownership: a run from a segment shares Times with other runs and with the cache, and has Values of its own (ReadNew) or of a Memory. Merge
// never writes into its sources; a Merger writes behind the values of the first (room.go).
type Run struct {
	Times  []point.Nanos
	Values []float64
	Hists  []peer.Hist

	// Ranks are the stamps of Times, HistRanks those of Hists: only in runs that were read with their ranks, else nil.
	Ranks, HistRanks []point.Stamp

	StampLo, StampHi point.Stamp // bounds of all rows' stamps, wider than needed after Cut; both 0 when the run is empty

	spare int // values that fit behind Values in memory of the run's own, if that is its capacity still: see room.go
}

// Cover widens the bounds of the run's stamps to those of rows that are added next.
func (r *Run) Cover(lo, hi point.Stamp) {
	if r.Len() == 0 {
		r.StampLo, r.StampHi = lo, hi
	}
	r.StampLo, r.StampHi = min(r.StampLo, lo), max(r.StampHi, hi)
}

// Rank assigns the n rows that come next, floats or histograms, a rank.
func (r *Run) Rank(hists bool, n int, s point.Stamp) {
	if hists {
		r.HistRanks = appendStamps(r.HistRanks, n, s)
	} else {
		r.Ranks = appendStamps(r.Ranks, n, s)
	}
}

// appendStamps appends s n times. It grows by n: mostly a chunk of a segment, up to 512 rows.
func appendStamps(of []point.Stamp, n int, s point.Stamp) []point.Stamp {
	from := len(of)
	of = slices.Grow(of, n)[:from+n]
	for i := range of[from:] {
		of[from+i] = s
	}
	return of
}

// Ranked reports whether all rows have their ranks. A run without rows is ranked.
func (r *Run) Ranked() bool {
	return len(r.Ranks) == len(r.Times) && len(r.HistRanks) == len(r.Hists)
}

// Len counts the rows.
func (r *Run) Len() int { return len(r.Times) + len(r.Hists) }

// Reset empties the run and keeps its memory; only for runs with columns of the caller's own.
func (r *Run) Reset() {
	clear(r.Hists)
	*r = Run{Times: r.Times[:0], Values: r.Values[:0], Hists: r.Hists[:0]}
}

// Bounds returns the lowest and highest time; ok is false for an empty run.
func (r *Run) Bounds() (lo, hi point.Nanos, ok bool) {
	if n := len(r.Times); n > 0 {
		lo, hi, ok = r.Times[0], r.Times[n-1], true
	}
	if n := len(r.Hists); n > 0 {
		l, h := r.Hists[0].Time, r.Hists[n-1].Time
		if !ok {
			return l, h, true
		}
		lo, hi = min(lo, l), max(hi, h)
	}
	return lo, hi, ok
}

// Cut narrows the run to [lo, hi] without copying; the run is empty when lo > hi. One that loses rows at its end has no room (Extend).
func (r *Run) Cut(lo, hi point.Nanos) {
	// Of narrow partitions nearly every run is inside, and has few rows.
	if n := len(r.Times); n > 0 && len(r.Hists) == 0 && lo <= r.Times[0] && r.Times[n-1] <= hi {
		return
	}
	from := sort.Search(len(r.Times), func(i int) bool { return r.Times[i] >= lo })
	to := from + sort.Search(len(r.Times)-from, func(i int) bool { return r.Times[from+i] > hi })
	r.Times, r.Values = r.Times[from:to], r.Values[from:to]
	if r.Ranks != nil {
		r.Ranks = r.Ranks[from:to]
	}
	hf := sort.Search(len(r.Hists), func(i int) bool { return r.Hists[i].Time >= lo })
	ht := hf + sort.Search(len(r.Hists)-hf, func(i int) bool { return r.Hists[hf+i].Time > hi })
	r.Hists = r.Hists[hf:ht]
	if r.HistRanks != nil {
		r.HistRanks = r.HistRanks[hf:ht]
	}
	if r.Len() == 0 {
		r.StampLo, r.StampHi = 0, 0
	}
}
