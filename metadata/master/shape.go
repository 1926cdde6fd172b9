package master

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/presplit"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

// splits cuts partitions that became large, and finishes splits of partitions without rows.
//
// A partition that is still written to at its end is cut just after its newest row: existing rows stay in one piece, new
// rows go to another. A past one, which only late rows make larger, is cut in the middle of its rows, or of its ring
// range where they are too close in time, and only at twice the size, because cutting it costs more than it brings.
func (p *planner) splits() {
	for _, m := range p.Tables {
		heirs := heirs(m)
		for part := range m.All() {
			key := lease.Partition{Table: m.Table, ID: part.ID}
			switch {
			case p.touched[key] || p.moves >= p.set.MovesMax:
			case p.empty(key):
				if !heirs[part.ID] {
					p.finishEmpty(m, part, key)
				}
			case part.State == topology.Live && p.set.SplitBytes > 0 && len(part.Joining) == 0:
				p.splitLarge(m, part, key)
			}
		}
	}
}

// heirs are the partitions that others unload into: they stay in the map until those are gone.
func heirs(m *topology.Map) map[point.PartitionID]bool {
	out := map[point.PartitionID]bool{}
	for part := range m.All() {
		for _, id := range part.Into {
			out[id] = true
		}
	}
	return out
}

// finishEmpty ends a split or a merge of a partition without rows: there is nothing to move, and nothing to wait for.
func (p *planner) finishEmpty(m *topology.Map, part *topology.Partition, key lease.Partition) {
	var ops []topology.Op
	switch part.State {
	case topology.Splitting:
		ops = []topology.Op{topology.SplitFinalize{Partition: part.ID, Low: part.Split.Low.ID}, topology.UnloadFinal{Partition: part.ID}}
	case topology.Unload:
		ops = []topology.Op{topology.UnloadFinal{Partition: part.ID}}
	default:
		return
	}
	p.moves++
	p.touched[key] = true
	p.add(Step{Kind: Split, Table: m.Table, Partition: part.ID, Ops: ops, Fences: []Fence{{key, on(part.Placements)}},
		What: fmt.Sprintf("finish what began with p%d", part.ID), Why: "it never had rows, so there is nothing to wait for"})
}

// SplitAt plans a requested split: to cut a partition at a time or a ring point, strictly inside. If it was
// never written to, the children replace it at once; with rows its leader seals it first. Errors are NotFound, Stale (it is being
// split, or unloads) and Invalid.
func SplitAt(s State, set Settings, rng *rand.Rand, table string, id point.PartitionID, at topology.Cut) (Step, error) {
	set.SetDefaults()
	p := &planner{view: newView(s, set), rng: rng, touched: map[lease.Partition]bool{}}
	for _, m := range p.Tables {
		part, ok := m.ByID(id)
		if m.Table != table || !ok {
			continue
		}
		step, ok := p.split(m, part, at)
		if !ok {
			return Step{}, fault.Errorf(fault.Unavailable, "no server is there that could hold the halves of p%d", id)
		}
		key := lease.Partition{Table: table, ID: id}
		if p.empty(key) {
			low := step.Ops[0].(topology.SplitBegin).Split.Low.ID
			step.Ops = append(step.Ops, topology.SplitFinalize{Partition: id, Low: low}, topology.UnloadFinal{Partition: id})
			step.Fences = []Fence{{key, on(part.Placements)}}
		}
		step.Why = "asked for"
		_, err := m.Apply(step.Ops...)
		return step, err
	}
	return Step{}, fault.Errorf(fault.NotFound, "table %q has no p%d", table, id)
}

func (p *planner) splitLarge(m *topology.Map, part *topology.Partition, key lease.Partition) {
	size, ok := p.Sizes[key]
	if !ok || size.Rows == 0 || size.Bytes < p.splitFrom(m) {
		return
	}
	if p.laysOut(m) && part.TimeHi > p.Now && part.TimeHi-p.Now <= presplit.Lead {
		return // it ends soon, and what follows it is cut by the forecast
	}
	cut, ok := p.cut(part, size)
	if !ok {
		return
	}
	step, ok := p.split(m, part, cut)
	if !ok {
		return
	}
	step.Why = fmt.Sprintf("it holds %s, the limit is %s", Bytes(size.Bytes), Bytes(p.splitFrom(m)))
	p.moves++
	p.touched[key] = true
	p.add(step)
}

// splitFrom is the size from which a partition of a table is split.
func (p *planner) splitFrom(m *topology.Map) int64 {
	if p.laysOut(m) {
		return int64(float64(p.set.SplitBytes) * presplitSlack)
	}
	return p.set.SplitBytes
}

// laysOut reports whether the partitions to come of a table are cut by a forecast of its growth.
func (p *planner) laysOut(m *topology.Map) bool {
	return p.Growth[m.Table] != nil && p.set.PresplitAhead > 0
}

// split plans the beginning of a split; false: no server may hold the halves.
func (p *planner) split(m *topology.Map, part *topology.Partition, at topology.Cut) (Step, bool) {
	low := p.takeIDs(m, 2)
	split := topology.Split{At: at, Low: topology.Child{ID: low}, High: topology.Child{ID: low + 1}}
	whole := *part
	whole.Split, whole.State = &split, topology.Splitting
	p.leave(m.Table, part)
	for _, pl := range part.Placements {
		p.count(m.Table, &whole, pl.Server, 1)
	}
	halves := whole.Children()
	place := func(half *topology.Partition, w where) []topology.Placement {
		w.narrow = narrow(part) // else a narrow half would go by turn, wherever the load of the other one goes
		half.Placements = p.placed(m, half, w)
		return half.Placements
	}
	split.Low.Placements = place(halves[0], p.at(m, halves[0], nil))
	split.High.Placements = place(halves[1], p.after(m, halves[1], halves[0]))
	return Step{Kind: Split, Table: m.Table, Partition: part.ID, Ops: []topology.Op{topology.SplitBegin{Partition: part.ID, Split: split}},
		What: fmt.Sprintf("split p%d at %s into p%d on %s and p%d on %s", part.ID, at, low, list(on(split.Low.Placements)), low+1, list(on(split.High.Placements)))}, len(split.Low.Placements) > 0 && len(split.High.Placements) > 0
}

// cut chooses where to cut a large partition: strictly inside, with both halves worth it (C23).
func (p *planner) cut(part *topology.Partition, size Size) (at topology.Cut, ok bool) {
	const least = point.Nanos(topology.PartitionWidthMin)
	if part.TimeHi > p.Now {
		t := max(size.MaxTime, p.Now) + least
		t -= t % least
		if t-part.TimeLo >= least && part.TimeHi-t >= least {
			return topology.AtTime(t), true
		}
		return at, false // it ends soon by itself
	}
	if size.Bytes < 2*p.set.SplitBytes {
		return at, false
	}
	lo, hi := max(size.MinTime, part.TimeLo), min(size.MaxTime+1, part.TimeHi)
	if t := lo + (hi-lo)/2; hi-lo >= 2*least && t > part.TimeLo && t < part.TimeHi {
		return topology.AtTime(t), true
	}
	last := part.PointHi - 1 // 0 is 2^64
	if last-part.PointLo < 2 {
		return at, false
	}
	r := part.PointLo + (last-part.PointLo)/2 + 1
	return topology.AtRing(r), true
}

// merges joins neighbours that were never written to and are past: those cut finer than the table's width, for rows
// that did not come; in a table near its limit of partitions, those of any width, so that new times find room.
// Those with rows are merge.go's.
func (p *planner) merges() {
	for _, m := range p.Tables {
		heirs := heirs(m)
		var run []*topology.Partition
		runs := map[uint64][]*topology.Partition{} // by where on the ring
		end := func(r []*topology.Partition) {
			if len(r) > 1 {
				p.merge(m, r)
			}
		}
		for part := range m.All() {
			run = runs[part.PointLo]
			if heirs[part.ID] || !p.mergeable(m, part) {
				end(run)
				delete(runs, part.PointLo)
				continue
			}
			if n := len(run); n > 0 {
				last := run[n-1]
				cell, _ := m.Config.Aligned(run[0].TimeLo)
				mine, _ := m.Config.Aligned(part.TimeHi - 1)
				if last.PointHi != part.PointHi || last.TimeHi != part.TimeLo || cell != mine && m.Len() < p.set.RoomFrom || n == topology.MergeMax {
					end(run)
					run = nil
				}
			}
			runs[part.PointLo] = append(run, part)
		}
		var open []uint64
		for lo := range runs {
			open = append(open, lo)
		}
		slices.Sort(open)
		for _, lo := range open {
			end(runs[lo])
		}
	}
}

func (p *planner) mergeable(m *topology.Map, part *topology.Partition) bool {
	key := lease.Partition{Table: m.Table, ID: part.ID}
	return part.State == topology.Live && part.TimeHi <= p.closed() && p.empty(key) && !p.touched[key] && len(part.Joining) == 0 &&
		len(part.Placements) >= m.Config.Replicas // else C34 would refuse to remove them from a server
}

// closed is the time before which partitions are closed.
func (p *planner) closed() point.Nanos {
	if p.Now < math.MinInt64+int64(p.set.ClosedAfter) {
		return math.MinInt64
	}
	return p.Now - int64(p.set.ClosedAfter)
}

func (p *planner) merge(m *topology.Map, run []*topology.Partition) {
	if p.moves >= p.set.MovesMax {
		return
	}
	id := p.takeIDs(m, 1)
	into := topology.Child{ID: id}
	for _, pl := range run[0].Placements {
		into.Placements = append(into.Placements, p.placement(pl.Server))
	}
	var ops, last []topology.Op
	var ids []point.PartitionID
	step := Step{Kind: Merge, Table: m.Table, Partition: run[0].ID, Why: fmt.Sprintf("they never had rows, and ended more than %v ago", p.set.ClosedAfter)}
	for _, part := range run {
		ops = append(ops, p.alike(part, run[0].Placements)...)
		last = append(last, topology.UnloadFinal{Partition: part.ID})
		ids = append(ids, part.ID)
		key := lease.Partition{Table: m.Table, ID: part.ID}
		step.Fences = append(step.Fences, Fence{key, on(part.Placements)})
		p.touched[key] = true
		p.leave(m.Table, part)
	}
	for _, pl := range into.Placements {
		p.count(m.Table, run[0], pl.Server, 1)
	}
	p.moves++
	ops = append(ops, topology.Merge{Partitions: ids, Into: into, ClosedBefore: p.closed()})
	step.Ops = append(ops, last...)
	step.What = fmt.Sprintf("merge %s into p%d", names(ids), id)
	p.add(step)
}

// alike brings a partition without rows to the servers of another, as Merge requires.
func (p *planner) alike(part *topology.Partition, template []topology.Placement) (ops []topology.Op) {
	for _, pl := range template {
		if _, ok := part.On(pl.Server); !ok {
			fresh := p.placement(pl.Server)
			ops = append(ops, topology.Join{Partition: part.ID, Placement: fresh}, topology.JoinFinalize{Partition: part.ID, Placement: fresh.ID})
		}
	}
	for _, pl := range part.Placements {
		if !slices.Contains(on(template), pl.Server) {
			ops = append(ops, topology.Remove{Partition: part.ID, Placement: pl.ID})
		}
	}
	return ops
}

// balance moves partitions without rows that will accept writes, from the servers with the most of them to those with fewer, as long as the numbers differ by
// two or more: a difference of one would go to and fro. No move may leave its target with more expected load than its source. Each move makes the numbers more
// even, whatever the loads become, so it comes to an end. Narrow partitions go round the servers and stay: else a server that has joined would get the whole
// present load of their tables, until it has as many partitions as the others.
func (p *planner) balance() {
	movable := map[topology.ServerID][]candidate{}
	for _, m := range p.Tables {
		for part := range m.All() {
			key := lease.Partition{Table: m.Table, ID: part.ID}
			if part.State == topology.Live && !p.past(part) && p.empty(key) && !p.touched[key] && len(part.Joining) == 0 && len(part.Placements) >= m.Config.Replicas && !narrow(part) {
				for _, pl := range part.Placements {
					movable[pl.Server] = append(movable[pl.Server], candidate{m, part, pl})
				}
			}
		}
	}
	busiest, first := slices.Clone(p.order), map[lease.Partition]topology.ServerID{}
	for p.moves < p.set.MovesMax {
		slices.SortStableFunc(busiest, func(a, b *standing) int { return busier(b, a) })
		if !slices.ContainsFunc(busiest, func(from *standing) bool { return p.relieve(from, movable, first) }) {
			return
		}
	}
}

// candidate is a placement that may be moved.
type candidate struct {
	table *topology.Map
	part  *topology.Partition
	from  topology.Placement
}

// relieve moves one placement off a server, the one furthest in the future first. first has the servers that lead the partitions which were moved in this plan.
func (p *planner) relieve(from *standing, movable map[topology.ServerID][]candidate, first map[lease.Partition]topology.ServerID) bool {
	all := movable[from.ID]
	for i := len(all) - 1; i >= 0; i-- {
		c := all[i]
		key := lease.Partition{Table: c.table.Table, ID: c.part.ID}
		if p.touched[key] {
			continue
		}
		others := slices.DeleteFunc(on(c.part.Placements), func(s topology.ServerID) bool { return s == from.ID })
		to, ok := p.choose(where{part: key, has: others, not: []topology.ServerID{from.ID}, settled: true})
		if !ok || to.active+2 > from.active || to.load+2*p.weight(key.Table, c.part) > from.load || p.compareSharing(others, to.ID, from.ID) > 0 {
			continue
		}
		leads := append(others, to.ID)[0]
		if !p.apart(c, leads, first) {
			continue
		}
		first[key] = leads
		pl := p.placement(to.ID)
		p.count(key.Table, c.part, from.ID, -1)
		p.count(key.Table, c.part, to.ID, 1)
		p.moves++
		p.touched[key] = true
		p.add(Step{Kind: Balance, Table: key.Table, Partition: c.part.ID, Fences: []Fence{{key, on(c.part.Placements)}},
			Ops: []topology.Op{topology.Join{Partition: c.part.ID, Placement: pl}, topology.JoinFinalize{Partition: c.part.ID, Placement: pl.ID},
				topology.Remove{Partition: c.part.ID, Placement: c.from.ID}},
			What: describe(c.part.ID, []topology.ServerID{to.ID}, []topology.ServerID{from.ID}),
			Why:  fmt.Sprintf("%s has %d placements that take writes, %s has %d; it never had rows", from.ID, from.active+1, to.ID, to.active-1)})
		return true
	}
	return false
}

// apart reports whether the neighbours in time of a candidate are led by other servers than leads. One that leads the candidate and a neighbour already is no
// reason against a move. Neighbours that this plan makes or changes otherwise, and halves of a split that has not ended, are not known yet: then it reports
// false.
func (p *planner) apart(c candidate, leads topology.ServerID, first map[lease.Partition]topology.ServerID) bool {
	for _, at := range [...]point.Nanos{c.part.TimeLo - 1, c.part.TimeHi} {
		next, ok := c.table.Find(c.part.PointLo, at)
		if !ok && p.laid[c.table.Table] {
			return false
		}
		if !ok || len(next.Placements) == 0 {
			continue
		}
		key := lease.Partition{Table: c.table.Table, ID: next.ID}
		server, moved := first[key]
		if !moved {
			server = next.Placements[0].Server
		}
		if next.State == topology.Splitting || p.touched[key] && !moved || server == leads && server != c.part.Placements[0].Server {
			return false
		}
	}
	return true
}

// Bytes writes a size for people: 1.5 GiB.
func Bytes(n int64) string {
	units := [...]string{"B", "KiB", "MiB", "GiB", "TiB", "PiB"}
	v, i := float64(n), 0
	for v >= 1024 && i < len(units)-1 {
		v, i = v/1024, i+1
	}
	if i == 0 {
		return fmt.Sprintf("%d B", n)
	}
	return fmt.Sprintf("%.1f %s", v, units[i])
}
