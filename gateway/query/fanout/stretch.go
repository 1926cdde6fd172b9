package fanout

import (
	"cmp"
	"slices"
	"sort"

	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/columns"
	"github.com/spillwaydb/spillway/protocols/point"
)

// stretch is a run of steps of a plan that are evaluated alike.
//
//	time    ──── partition 1 (n1) ────┬──── partition 2 (n2) ────┬──── partition 3 (n2) ────
//	windows [▪▪▪▪][▪▪▪▪]              │                          │
//	                          [▪▪▪▪▪▪▪│▪▪▪]                      │
//	                                  │    [▪▪▪▪]         [▪▪▪▪▪▪│▪▪▪]
//	step    └─ n1 evaluates ─┘└ rows ─┘└───────── n2 evaluates ────────┘
type stretch struct {
	first, steps int
	units        []unit // by server; none: rows are read
}

// unit is the partitions of one server that the windows of a stretch touch.
type unit struct {
	server     topology.ServerID
	partitions []*topology.Partition
}

// Bounds of a division. Beyond them rows are read.
const (
	stretchPartitions = 1024
	stretchesMax      = 128
)

// stretches cuts the steps of a plan. A step is evaluated by servers if each ring point's partitions that its window touches are on one
// server, and none of them overlap: so the rows of a series that the step needs are on one server, each once. The steps of a stretch touch
// partitions of the same servers. Steps with windows that touch no partition are in no stretch. Nil: it is not worth it.
//
// ps are sorted by time; on returns their servers, "" if there is none.
func stretches(p *columns.Plan, ps []*topology.Partition, on func(*topology.Partition) topology.ServerID) []stretch {
	if len(ps) == 0 || len(ps) > stretchPartitions {
		return nil
	}
	spans := spansOf(p, ps, on)
	edges := make([]int, 0, 2*len(spans))
	for _, s := range spans {
		edges = append(edges, s.first, s.end)
	}
	slices.Sort(edges)
	edges = slices.Compact(edges)
	var out []stretch
	rows, all := 0, 0
	for i := 1; i < len(edges); i++ {
		first, end := edges[i-1], edges[i]
		touched := slices.DeleteFunc(slices.Clone(spans), func(s span) bool { return s.first > first || s.end <= first })
		if len(touched) == 0 {
			continue
		}
		at := stretch{first: first, steps: end - first, units: unitsOf(touched)}
		out = extend(out, at)
		if all += at.steps; at.units == nil {
			rows += at.steps
		}
	}
	if 2*rows > all || len(out) > stretchesMax {
		return nil
	}
	return out
}

// span is a partition and the steps with windows that touch it: [first, end).
type span struct {
	partition  *topology.Partition
	server     topology.ServerID
	shared     bool // rows of its keys may be in another partition too
	first, end int
}

// spansOf returns the spans that are not empty, by the beginning of their part of the ring.
func spansOf(p *columns.Plan, ps []*topology.Partition, on func(*topology.Partition) topology.ServerID) []span {
	_, overlapping := layersOf(ps)
	n := p.Grid.Len()
	var out []span
	for _, at := range ps {
		s := span{
			partition: at, server: on(at), shared: overlapping[at.ID] || !at.Accepts(),
			first: sort.Search(n, func(i int) bool { _, hi := windowOf(p, i); return hi >= at.TimeLo }),
			end:   sort.Search(n, func(i int) bool { lo, _ := windowOf(p, i); return lo >= at.TimeHi }),
		}
		if s.first < s.end {
			out = append(out, s)
		}
	}
	slices.SortStableFunc(out, func(a, b span) int { return cmp.Compare(a.partition.PointLo, b.partition.PointLo) })
	return out
}

// windowOf is the range of times of a step's window, both ends included.
func windowOf(p *columns.Plan, step int) (lo, hi point.Nanos) {
	one := columns.Plan{Grid: p.Grid.Cut(step, 1), Source: p.Source}
	from, to := one.Reach()
	return point.NanosOf(from), point.LastNanosOf(to)
}

// unitsOf groups the partitions of a step, sorted by ring, by server; nil if rows must be read.
func unitsOf(touched []span) []unit {
	var out []unit
	for i, s := range touched {
		if s.shared || s.server == "" {
			return nil
		}
		for _, before := range touched[:i] {
			if before.server != s.server && before.partition.SharesRing(s.partition) {
				return nil
			}
		}
		at := slices.IndexFunc(out, func(u unit) bool { return u.server == s.server })
		if at < 0 {
			at = len(out)
			out = append(out, unit{server: s.server})
		}
		out[at].partitions = append(out[at].partitions, s.partition)
	}
	slices.SortFunc(out, func(a, b unit) int { return cmp.Compare(a.server, b.server) })
	return out
}

// extend appends a stretch, or makes the last one longer where both follow each other and are evaluated alike.
func extend(all []stretch, s stretch) []stretch {
	if len(all) == 0 {
		return append(all, s)
	}
	last := &all[len(all)-1]
	if last.first+last.steps != s.first || !slices.EqualFunc(last.units, s.units, func(a, b unit) bool { return a.server == b.server }) {
		return append(all, s)
	}
	last.steps += s.steps
	for i := range last.units {
		u := &last.units[i]
		for _, p := range s.units[i].partitions {
			if !slices.Contains(u.partitions, p) {
				u.partitions = append(u.partitions, p)
			}
		}
	}
	return all
}
