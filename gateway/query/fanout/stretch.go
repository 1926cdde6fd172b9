package fanout

import (
	"cmp"
	"slices"
	"sort"
	"time"

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
//
// Where rows are staged (▫) the steps that have them in their windows are read as well:
//
//	time    ──────────────── partition 1 (n1) ────────────────▫▫▫───
//	windows [▪▪▪▪][▪▪▪▪][▪▪▪▪][▪▪▪▪][▪▪▪▪][▪▪▪▪][▪▪▪▪]
//	                                                   [▪▪▪▪▪▪▫▫]
//	step    └───────────────── n1 evaluates ──────────┘└─ rows ─┘
type stretch struct {
	first, steps int
	units        []unit // by their servers; none: rows are read
	// reads are the partitions of a stretch of rows by their servers, where each row lies in one of them alone, and none is staged; nil: rows are read by a select.
	reads []unit
}

// unit is partitions that the windows of a stretch touch. One of the servers evaluates them.
type unit struct {
	servers    []topology.ServerID // each may have all rows of all partitions; in the order in which they are asked
	partitions []*topology.Partition
}

// Bounds of a division. Beyond them rows are read.
const (
	stretchPartitions = 1024
	stretchesMax      = 128
	// stretchesFew are evaluated however short they are; of more the mean must be as long as Settings.StretchTime: of shorter ones the rows of a series are so
	// few that reading them costs less than one more evaluation of it.
	stretchesFew = 8
	// readsPartitions is of how many partitions all rows may be asked for at once.
	readsPartitions = 256
)

// stretches cuts the steps of a plan. A step is evaluated by servers if each ring point's partitions that its window touches are on one
// server, and none overlap: so the rows of a series that the step needs are on one server, each once. The steps of a stretch touch
// partitions of the same servers. Where partitions have copies, a server that has copies of all is one server. Steps with windows that touch no
// partition, and no staged row, are in no stretch. Nil: it is not worth it.
//
// ps are sorted by time; staged are the times of rows that may be staged; mean is how long many stretches must be; on returns the servers that have a partition, any of
// which may be asked; nil if there is none.
func stretches(p *columns.Plan, ps []*topology.Partition, staged []times, mean time.Duration, on func(*topology.Partition) []topology.ServerID) []stretch {
	if len(ps) == 0 || len(ps) > stretchPartitions {
		return nil
	}
	spans := append(spansOf(p, ps, on), stagedSpans(p, staged)...)
	edges := make([]int, 0, 2*len(spans))
	for _, s := range spans {
		edges = append(edges, s.first, s.end)
	}
	slices.Sort(edges)
	edges = slices.Compact(edges)
	var out []stretch
	rows, all := 0, 0
	many := func(steps int) bool {
		length := time.Duration(steps) * time.Duration(p.Grid.Step) * time.Millisecond
		return len(out) > stretchesMax || len(out) > stretchesFew && length < time.Duration(len(out))*mean
	}
	open := &openSpans{all: spans}
	for i := 1; i < len(edges); i++ {
		first, end := edges[i-1], edges[i]
		touched := open.at(first)
		if len(touched) == 0 {
			continue
		}
		at := stretch{first: first, steps: end - first, units: unitsOf(touched)}
		if at.units == nil {
			at.reads = readsOf(touched)
		}
		out = extend(out, at)
		if all += at.steps; at.units == nil {
			rows += at.steps
		}
		if many(p.Grid.Len()) { // they become no fewer
			return nil
		}
	}
	if 2*rows > all || many(all) {
		return nil
	}
	return out
}

// openSpans returns the spans that a step touches, for rising steps: with hundreds of narrow partitions a step touches a few of them.
type openSpans struct {
	all   []span
	rest  []int // by first, those that begin later
	open  []int // that began
	spans []span
}

// at gives the spans of a step in the order of all; until the next call.
func (o *openSpans) at(step int) []span {
	if o.open == nil {
		o.open = make([]int, 0, len(o.all))
		for i := range o.all {
			o.rest = append(o.rest, i)
		}
		slices.SortStableFunc(o.rest, func(i, j int) int { return cmp.Compare(o.all[i].first, o.all[j].first) })
	}
	o.open = slices.DeleteFunc(o.open, func(i int) bool { return o.all[i].end <= step })
	began := 0
	for began < len(o.rest) && o.all[o.rest[began]].first <= step {
		if i := o.rest[began]; o.all[i].end > step {
			o.open = append(o.open, i)
		}
		began++
	}
	if o.rest = o.rest[began:]; began > 0 {
		slices.Sort(o.open)
	}
	o.spans = o.spans[:0]
	for _, i := range o.open {
		o.spans = append(o.spans, o.all[i])
	}
	return o.spans
}

// span is a partition, or times of staged rows, and the steps with windows that touch it: [first, end).
type span struct {
	partition  *topology.Partition // nil: staged rows
	servers    []topology.ServerID
	shared     bool // rows of its keys may be elsewhere too: in another partition, or staged
	first, end int
}

// spansOf returns the spans that are not empty, by the beginning of their part of the ring.
func spansOf(p *columns.Plan, ps []*topology.Partition, on func(*topology.Partition) []topology.ServerID) []span {
	_, overlapping := layersOf(ps)
	var out []span
	for _, at := range ps {
		s := span{partition: at, servers: on(at), shared: overlapping[at.ID] || !at.Accepts()}
		s.first, s.end = touching(p, times{at.TimeLo, at.TimeHi - 1})
		if s.first < s.end {
			out = append(out, s)
		}
	}
	slices.SortStableFunc(out, func(a, b span) int { return cmp.Compare(a.partition.PointLo, b.partition.PointLo) })
	return out
}

// stagedSpans returns the spans of staged rows that are not empty: those too that are of times without a partition, which a newer map may have.
func stagedSpans(p *columns.Plan, staged []times) (out []span) {
	for _, at := range staged {
		if first, end := touching(p, at); first < end {
			out = append(out, span{shared: true, first: first, end: end})
		}
	}
	return out
}

// touching returns the steps [first, end) whose windows touch a range of time.
func touching(p *columns.Plan, at times) (first, end int) {
	n := p.Grid.Len()
	return sort.Search(n, func(i int) bool { _, hi := windowOf(p, i); return hi >= at.lo }),
		sort.Search(n, func(i int) bool { lo, _ := windowOf(p, i); return lo > at.hi })
}

// windowOf is the range of times of a step's window, both ends included.
func windowOf(p *columns.Plan, step int) (lo, hi point.Nanos) {
	one := columns.Plan{Grid: p.Grid.Cut(step, 1), Source: p.Source}
	from, to := one.Reach()
	return point.NanosOf(from), point.LastNanosOf(to)
}

// unitsOf groups the partitions of a step, sorted by ring, so that those that share a part of the ring are in one unit; nil if rows must be read. There
// are as few units as the first partitions need.
func unitsOf(touched []span) []unit {
	chains := chainsOf(touched)
	if chains == nil {
		return nil
	}
	var out []unit
	for _, c := range chains {
		at := slices.IndexFunc(out, func(u unit) bool { return common(u.servers, c.servers) != nil })
		if at < 0 {
			at = len(out)
			out = append(out, unit{servers: c.servers})
		}
		u := &out[at]
		u.servers = common(u.servers, c.servers)
		u.partitions = append(u.partitions, c.partitions...)
	}
	slices.SortFunc(out, func(a, b unit) int { return cmp.Compare(slices.Min(a.servers), slices.Min(b.servers)) })
	return out
}

// readsOf groups the partitions of some steps by servers that have them; nil: some of their rows may be elsewhere too.
func readsOf(touched []span) (out []unit) {
	for _, s := range touched {
		if s.shared || len(s.servers) == 0 {
			return nil
		}
		out = addReads(out, unit{s.servers, []*topology.Partition{s.partition}})
	}
	return out
}

// addReads adds partitions to those that can be asked for with them. Where two servers could be asked there remain two.
func addReads(all []unit, more unit) []unit {
	for i := range all {
		u := &all[i]
		both := common(u.servers, more.servers)
		if n := len(both); n == 0 || n == 1 && max(len(u.servers), len(more.servers)) > 1 {
			continue
		}
		u.servers = both
		for _, p := range more.partitions {
			if !slices.Contains(u.partitions, p) {
				u.partitions = append(u.partitions, p)
			}
		}
		return all
	}
	return append(all, more)
}

// readsOfAll groups all partitions that a plan's windows touch, as readsOf does; nil, too, if there are many.
func readsOfAll(p *columns.Plan, ps []*topology.Partition, staged []times, on func(*topology.Partition) []topology.ServerID) []unit {
	if len(ps) > readsPartitions {
		return nil
	}
	return readsOf(append(spansOf(p, ps, on), stagedSpans(p, staged)...))
}

// short reports whether stretches are cut at so many edges that reading few rows everywhere costs less than evaluating between them.
func short(all []stretch, step, mean time.Duration) bool {
	steps, rows := 0, false
	for i := range all {
		steps += all[i].steps
		rows = rows || all[i].units == nil
	}
	return rows && time.Duration(steps)*step < time.Duration(len(all))*mean
}

// chainsOf groups partitions that share parts of the ring, directly or by others, each with the servers that have all of them; nil if there are none of these.
func chainsOf(touched []span) (chains []unit) {
	for _, s := range touched {
		if s.shared {
			return nil
		}
		c := unit{servers: s.servers, partitions: []*topology.Partition{s.partition}}
		rest := chains[:0]
		for _, before := range chains {
			if !slices.ContainsFunc(before.partitions, s.partition.SharesRing) {
				rest = append(rest, before)
				continue
			}
			c.servers = common(before.servers, c.servers)
			c.partitions = append(before.partitions, c.partitions...)
		}
		if len(c.servers) == 0 {
			return nil
		}
		chains = append(rest, c)
	}
	return chains
}

// common returns the servers of a that are in b too; nil if there are none.
func common(a, b []topology.ServerID) (out []topology.ServerID) {
	for _, s := range a {
		if slices.Contains(b, s) {
			out = append(out, s)
		}
	}
	return out
}

// extend appends a stretch, or makes the last one longer where both follow each other and can be evaluated alike.
func extend(all []stretch, s stretch) []stretch {
	if len(all) == 0 || !all[len(all)-1].goesOn(&s) {
		return append(all, s)
	}
	last := &all[len(all)-1]
	last.steps += s.steps
	if s.reads == nil {
		last.reads = nil
	}
	if last.reads != nil {
		for _, u := range s.reads {
			if u.partitions = slices.DeleteFunc(u.partitions, last.reading); len(u.partitions) > 0 {
				last.reads = addReads(last.reads, u)
			}
		}
	}
	for i := range last.units {
		u := &last.units[i]
		u.servers = common(u.servers, s.units[i].servers)
		for _, p := range s.units[i].partitions {
			if !slices.Contains(u.partitions, p) {
				u.partitions = append(u.partitions, p)
			}
		}
	}
	return all
}

// reading reports whether the rows of a partition are asked for already: with other copies of it than its neighbours of these steps have, they would be sent twice.
func (s *stretch) reading(p *topology.Partition) bool {
	return slices.ContainsFunc(s.reads, func(u unit) bool { return slices.Contains(u.partitions, p) })
}

// goesOn reports whether the steps of another stretch can be evaluated with those of s: each of its units by a server of one of s. A partition stays in one
// unit, so that its rows count once. Where two servers could be asked there remain two, one for the case that the other is late.
func (s *stretch) goesOn(next *stretch) bool {
	if s.first+s.steps != next.first || len(s.units) != len(next.units) {
		return false
	}
	for i := range s.units {
		u, v := &s.units[i], &next.units[i]
		if n := len(common(u.servers, v.servers)); n == 0 || n == 1 && max(len(u.servers), len(v.servers)) > 1 {
			return false
		}
		for j := range s.units {
			if j != i && slices.ContainsFunc(v.partitions, func(p *topology.Partition) bool { return slices.Contains(s.units[j].partitions, p) }) {
				return false
			}
		}
	}
	return true
}
