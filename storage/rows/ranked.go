package rows

import "github.com/spillwaydb/spillway/protocols/peer"

// MergeRanked is Merge for runs with the ranks of their rows: each row counts by its own, not by the highest of its run. The
// result has them too.
func MergeRanked(runs []Run) Run {
	var sources []peer.Source
	last := 0
	for i := range runs {
		if r := &runs[i]; r.Len() > 0 {
			sources = append(sources, peer.Source{Series: &peer.Series{Times: r.Times, Values: r.Values, Hists: r.Hists, Ranks: r.Ranks, HistRanks: r.HistRanks}})
			last = i
		}
	}
	switch len(sources) {
	case 0:
		return Run{}
	case 1:
		return runs[last]
	}
	m := peer.Merger{Ranks: true}
	s := m.Merge(sources)
	out := Run{Times: s.Times, Values: s.Values, Hists: s.Hists, Ranks: s.Ranks, HistRanks: s.HistRanks, StampLo: runs[last].StampLo, StampHi: runs[last].StampHi}
	for i := range runs {
		if r := &runs[i]; r.Len() > 0 {
			out.StampLo, out.StampHi = min(out.StampLo, r.StampLo), max(out.StampHi, r.StampHi)
		}
	}
	return out
}
