package rows

import (
	"cmp"
	"slices"
)

// Interleaved reports whether Merge may choose the row of the lower rank: two of the runs overlap in time and in stamps, so that the highest stamp of each does not
// decide between rows of one time. Then the runs must be read with the ranks of their rows. Runs in order of time, as they mostly are, cost a look at their ends.
// An example, with [lo, hi] of stamps: [3, 9] and [5, 5] at overlapping times. By their highest stamps the first wins everywhere, yet its row
// may be the one of stamp 3, which the second beats. [3, 4] and [5, 9] never need the ranks.
func Interleaved(runs []Run) bool {
	if rise(runs) {
		return false
	}
	spans := make([]span, 0, len(runs))
	for _, r := range runs {
		if lo, hi, ok := r.Bounds(); ok {
			spans = append(spans, span{r, lo, hi})
		}
	}
	slices.SortFunc(spans, func(a, b span) int { return cmp.Compare(a.lo, b.lo) })
	for i := range spans {
		a := &spans[i]
		for j := i + 1; j < len(spans) && spans[j].lo <= a.hi; j++ {
			if a.run.interleaves(&spans[j].run) {
				return true
			}
		}
	}
	return false
}

// rise reports whether each run begins after the one before it ends.
func rise(runs []Run) bool {
	any, last := false, int64(0)
	for i := range runs {
		lo, hi, ok := runs[i].Bounds()
		if !ok {
			continue
		}
		if any && lo <= last {
			return false
		}
		any, last = true, hi
	}
	return true
}

// interleaves reports whether some stamp of r may be below one of o, and another above. Runs of one stamp, the same in both, are equal in rank.
func (r *Run) interleaves(o *Run) bool {
	if r.StampHi < o.StampLo || o.StampHi < r.StampLo {
		return false
	}
	return r.StampLo != r.StampHi || o.StampLo != o.StampHi
}
