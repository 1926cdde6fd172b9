package master

import (
	"fmt"
	"slices"
	"time"

	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/presplit"
	"github.com/spillwaydb/spillway/protocols/point"
)

// presplitSlack is how far over the limit of a split a presplit partition may grow before it is split: forecasts err.
const presplitSlack = 1.5

// presplits cuts the partitions to come so that each closes near SplitBytes, by the forecast of their column's growth (C35; package
// presplit). A column that does not fill a partition of the table's width is left alone. Tables of which partitions lack at once are left to ahead.
func (p *planner) presplits() {
	if p.set.SplitBytes <= 0 || p.set.PresplitAhead <= 0 || !slices.ContainsFunc(p.order, (*standing).usable) {
		return
	}
	for _, m := range p.Tables {
		g := p.Growth[m.Table]
		if g == nil || !p.inUse(m) || !p.coveredUntil(m, p.Now+int64(p.set.Ahead)/2) {
			continue
		}
		p.heirs = heirs(m)
		cols, far := columnsAt(m, p.Now), p.Now+int64(p.set.PresplitAhead)+int64(m.Config.PartitionWidth)
		if far < p.Now || !slices.Equal(cols, columnsAt(m, far)) {
			continue // the columns change soon: later times are cut by another layout
		}
		step := Step{Kind: Presplit, Table: m.Table}
		op := topology.Presplit{Now: p.Now}
		for _, c := range cols {
			p.presplit(m, c, g, &op, &step)
		}
		if len(op.Partitions) == 0 {
			continue
		}
		first, last := op.Partitions[0], op.Partitions[len(op.Partitions)-1]
		step.Partition, step.Ops = first.ID, []topology.Op{op}
		step.What = fmt.Sprintf("lay out [%s, %s) as %d partitions instead of %d", stamp(first.TimeLo), stamp(last.TimeHi), len(op.Partitions), len(op.Replace))
		p.laid[m.Table] = true
		p.add(step)
	}
}

// coveredUntil reports whether the table has partitions for all times from now up to a moment.
func (p *planner) coveredUntil(m *topology.Map, until point.Nanos) bool {
	for t := p.Now; t < until; {
		next, ok := p.covered(m, t)
		if !ok || next <= t {
			return false
		}
		t = next
	}
	return true
}

// presplit plans one column.
func (p *planner) presplit(m *topology.Map, c column, g *Growth, op *topology.Presplit, step *Step) {
	perRow, ok := g.perRow[c]
	if !ok || g.columns[c] == nil {
		return
	}
	ahead := int64(p.set.PresplitAhead)
	f, ok := g.columns[c].Forecast(p.Now, p.Now+24*3600e9)
	width := int64(m.Config.PartitionWidth)
	plan := presplit.Plan{Target: g.weights[c].Rows(float64(p.set.SplitBytes)), WidthMin: min(presplit.WidthMin, width), WidthMax: width}
	f = plan.Suited(f)
	if !ok || f.Bytes(p.Now, p.Now+width) <= plan.Target {
		return
	}
	s := p.stretch(m, c)
	if s == nil {
		return
	}
	if s.open != nil {
		p.presplitOpen(m, s.open, plan, &f)
	}
	until := min(p.Now+ahead, s.limit)
	fit, all := plan.Fitting(&f, s.from, ends(s.old), p.Now+ahead*3/4, s.limit)
	if all {
		return
	}
	if fit > 0 {
		s.from, s.old = s.old[fit-1].TimeHi, s.old[fit:]
	}
	if s.from >= until {
		return
	}
	edges := plan.Edges(&f, s.from, until, 0)
	edges = edges[:min(len(edges), max(p.set.CreateMax-len(op.Partitions), 0))]
	lo := s.from
	lay := func(hi point.Nanos) {
		part := topology.Partition{PointLo: c.lo, PointHi: c.hi, TimeLo: lo, TimeHi: hi}
		part.ID = p.takeIDs(m, 1)
		part.Placements = p.placed(m, &part, p.at(m, &part, op.Partitions))
		op.Partitions, lo = append(op.Partitions, part), hi
	}
	for _, old := range s.old {
		op.Replace = append(op.Replace, old.ID)
		key := lease.Partition{Table: m.Table, ID: old.ID}
		step.Fences = append(step.Fences, Fence{key, on(old.Placements)})
		p.touched[key] = true
		p.leave(m.Table, old)
	}
	for _, hi := range edges {
		if hi = min(hi, s.limit); hi > lo {
			lay(hi)
		}
	}
	for lo < s.end { // the rest of the covered time, at the table's width
		_, hi := m.Config.Aligned(lo)
		lay(min(hi, s.end))
	}
	by := ""
	if f.Short > 0 {
		by = fmt.Sprintf(", by the last %v alone", time.Duration(f.Short).Round(time.Second))
	}
	step.Why = fmt.Sprintf("%s/s are expected%s, and partitions should close near %s", Bytes(int64(f.Rate(s.from)*perRow)), by, Bytes(p.set.SplitBytes))
}

// stretch is the part of a column that may be laid out again.
type stretch struct {
	open  *topology.Partition   // holds now and accepts rows; nil: it is being changed
	from  point.Nanos           // where it begins
	old   []*topology.Partition // the partitions there, without rows or gaps
	end   point.Nanos           // where those end
	limit point.Nanos           // where the next partition that stays begins, or no limit
}

func ends(parts []*topology.Partition) (out []point.Nanos) {
	for _, p := range parts {
		out = append(out, p.TimeHi)
	}
	return out
}

// stretch finds it; nil: a split or a merge is under way there, or the column has partitions of other ring ranges.
func (p *planner) stretch(m *topology.Map, c column) *stretch {
	s := &stretch{from: p.Now}
	for { // those that hold now or soon stay
		part, ok := m.Find(c.lo, s.from)
		if !ok {
			break
		}
		if !c.is(part) || part.State != topology.Live {
			return nil
		}
		if part.TimeLo > p.Now+presplit.Fixed && p.replaceable(m, part, c) {
			break
		}
		if part.TimeLo <= p.Now && p.set.SplitBytes > 0 {
			s.open = part
		}
		s.from = part.TimeHi
	}
	s.end = s.from
	for {
		part, ok := m.Find(c.lo, s.end)
		if !ok || !p.replaceable(m, part, c) || len(s.old) == topology.MergeMax {
			break
		}
		s.old, s.end = append(s.old, part), part.TimeHi
	}
	s.limit = s.end + int64(m.Config.PartitionWidth) + int64(p.set.PresplitAhead)
	for _, part := range m.Overlapping(s.end, s.limit) {
		if part.TimeHi > s.end && (c.has(part.PointLo) || part.PointLo <= c.lo && (part.PointHi == 0 || part.PointHi > c.lo)) {
			s.limit = min(s.limit, max(part.TimeLo, s.end))
		}
	}
	return s
}

// replaceable reports whether a partition to come may be laid out again: it has no rows, no server leads it, none unloads into it, and nothing else is done with it.
func (p *planner) replaceable(m *topology.Map, part *topology.Partition, c column) bool {
	key := lease.Partition{Table: m.Table, ID: part.ID}
	return c.is(part) && part.State == topology.Live && part.TimeLo > p.Now && !p.heirs[part.ID] && p.empty(key) && !p.led(key) && !p.touched[key] && len(part.Joining) == 0
}

// presplitOpen splits the partition that accepts rows now where it will be full, if it would grow far beyond the target until its end: on the first
// day of a table, and after the load rose. The split's time lies ahead, so that no row has to move. The partitions behind it are not laid out again while the
// old one unloads into them; they are split in the same way when their time comes.
func (p *planner) presplitOpen(m *topology.Map, part *topology.Partition, plan presplit.Plan, f *presplit.Forecast) {
	key := lease.Partition{Table: m.Table, ID: part.ID}
	size, ok := p.Sizes[key]
	if !ok || size.Rows == 0 || p.touched[key] || p.moves >= p.set.MovesMax || len(part.Joining) > 0 || p.empty(key) {
		return
	}
	at, full := plan.Full(f, max(p.Now, size.MaxTime)+presplit.Lead, part.TimeHi, float64(size.Rows))
	if !full || at <= part.TimeLo {
		return
	}
	step, ok := p.split(m, part, topology.AtTime(at))
	if !ok {
		return
	}
	step.Why = fmt.Sprintf("it would hold %s at its end, partitions should close near %s", Bytes(int64((float64(size.Rows)+f.Bytes(p.Now, part.TimeHi))*float64(p.set.SplitBytes)/plan.Target)), Bytes(p.set.SplitBytes))
	p.moves++
	p.touched[key] = true
	p.add(step)
}
