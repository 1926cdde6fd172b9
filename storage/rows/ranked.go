package rows

import (
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
)

// MergeRanked is Merge for runs with the ranks of their rows: each row counts by its own, not by the highest of its run. The
// result has them too.
func MergeRanked(runs []Run) Run {
	if rise(runs) {
		return joinRanked(runs)
	}
	var sources []peer.Source
	out := Run{StampLo: 1<<64 - 1}
	for i := range runs {
		if r := &runs[i]; r.Len() > 0 {
			sources = append(sources, peer.Source{Series: &peer.Series{Times: r.Times, Values: r.Values, Hists: r.Hists, Ranks: r.Ranks, HistRanks: r.HistRanks}})
			out.StampLo, out.StampHi = min(out.StampLo, r.StampLo), max(out.StampHi, r.StampHi)
		}
	}
	// The same rule decides on gateways, between answers of servers: one implementation, so that placements and gateways agree.
	m := peer.Merger{Ranks: true}
	s := m.Merge(sources)
	out.Times, out.Values, out.Hists, out.Ranks, out.HistRanks = s.Times, s.Values, s.Hists, s.Ranks, s.HistRanks
	return out
}

// joinRanked appends runs, each of which begins after the one before it ends. If one alone has rows, the result is that run.
func joinRanked(runs []Run) Run {
	n, last, floats, hists := 0, 0, 0, 0
	for i := range runs {
		if r := &runs[i]; r.Len() > 0 {
			n, last = n+1, i
			floats, hists = floats+len(r.Times), hists+len(r.Hists)
		}
	}
	switch n {
	case 0:
		return Run{}
	case 1:
		return runs[last]
	}
	out := Run{StampLo: runs[last].StampLo, StampHi: runs[last].StampHi, Ranks: make([]point.Stamp, 0, floats), HistRanks: make([]point.Stamp, 0, hists)}
	out.grow(floats, hists)
	for i := range runs {
		r := &runs[i]
		if r.Len() == 0 {
			continue
		}
		out.addFloats(r, 0, len(r.Times))
		out.Hists = append(out.Hists, r.Hists...)
		out.Ranks, out.HistRanks = append(out.Ranks, r.Ranks...), append(out.HistRanks, r.HistRanks...)
		out.StampLo, out.StampHi = min(out.StampLo, r.StampLo), max(out.StampHi, r.StampHi)
	}
	return out
}

// MergeRanked is like the function of that name; the result shares memory as that of Merge does.
func (m *Merger) MergeRanked(runs []Run) Run {
	if len(runs) < 2 || !rise(runs) {
		return MergeRanked(runs)
	}
	times := m.find(runs)
	if times == nil {
		out := joinRanked(runs)
		m.remember(runs, &out)
		return out
	}
	out := m.append(times, runs)
	out.Ranks = make([]point.Stamp, 0, len(times))
	for i := range runs {
		out.Ranks = append(out.Ranks, runs[i].Ranks...)
	}
	return out
}
