package fanout

import (
	"cmp"
	"math"
	"slices"

	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
)

// unite merges sorted lists into one without doubles, of at most limit (0: any number); truncated reports that there were
// more. Each list may itself have been cut at limit or later.
func unite(lists [][]string, limit int) (all []string, truncated bool) {
	all = slices.Compact(slices.Sorted(slices.Values(slices.Concat(lists...))))
	if limit > 0 && len(all) > limit {
		return all[:limit], true
	}
	return all, false
}

// uniteExemplars merges the exemplars of servers, by series in label order and by time within.
func uniteExemplars(found [][]peer.SeriesExemplars) []peer.SeriesExemplars {
	all := slices.Concat(found...)
	slices.SortStableFunc(all, func(a, b peer.SeriesExemplars) int { return a.Labels.Compare(b.Labels) })
	out := all[:0]
	for _, s := range all {
		if n := len(out); n > 0 && out[n-1].Labels == s.Labels {
			out[n-1].Exemplars = append(slices.Clone(out[n-1].Exemplars), s.Exemplars...)
			continue
		}
		out = append(out, s)
	}
	for i := range out {
		rows := out[i].Exemplars
		slices.SortStableFunc(rows, compareExemplars)
		out[i].Exemplars = slices.CompactFunc(rows, func(a, b point.ExemplarRow) bool { return compareExemplars(a, b) == 0 })
	}
	return out
}

func compareExemplars(a, b point.ExemplarRow) int {
	return cmp.Or(cmp.Compare(a.Time, b.Time), cmp.Compare(math.Float64bits(a.Value), math.Float64bits(b.Value)), cmp.Compare(a.Labels, b.Labels))
}
