package master

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

// mergesOfRows merges closed neighbours with rows, in two tiers, so that each row is written again at most twice: partitions shorter than half an hour into one
// for the hour in which they begin, those shorter than half a day into one for the day. Their leaders move the rows (storage/unload).
//
//	now                    │ closed, in the hour before       │ closed, days before
//	├┼┼┼┼┼┼┼┼┼┼ minutes    ├──────────┤ hours                ├───────────────────────┤ days
func (p *planner) mergesOfRows() {
	if p.set.MergeFrom <= 0 {
		return
	}
	for _, m := range p.Tables {
		if m.Len() < p.set.MergeFrom {
			continue
		}
		unloading := 0
		for part := range m.All() {
			if part.State == topology.Unload {
				unloading++
			}
		}
		heirs := heirs(m)
		for i, into := range p.set.MergeInto {
			if m.Len() >= tierFrom[i]*p.set.MergeFrom {
				unloading += p.mergeTier(m, into, heirs, unloadingMax-unloading)
			}
		}
	}
}

// tierFrom are the partitions of a table from which a tier applies, times Settings.MergeFrom.
var tierFrom = [2]int{1, 5}

const (
	// mergeLeast is the least number of neighbours that are worth a merge.
	mergeLeast = 3
	// unloadingMax bounds the partitions of a table that unload while others are merged.
	unloadingMax = 128
	// mergeBytesMax bounds the size of a merged partition where large ones are not split.
	mergeBytesMax = 1 << 30
)

// run are neighbours that may be merged.
type run struct {
	parts []*topology.Partition
	bytes int64
}

// mergeTier merges at most so many partitions of a table into ones of a length, and returns how many.
func (p *planner) mergeTier(m *topology.Map, into time.Duration, heirs map[point.PartitionID]bool, most int) (merged int) {
	runs := map[uint64]*run{} // by where on the ring they begin
	end := func(r *run) {
		alone := merged == 0 && most == unloadingMax // one merge may be larger
		if r != nil && len(r.parts) >= mergeLeast && (merged+len(r.parts) <= most || alone) && p.moves < p.set.MovesMax {
			p.mergeRows(m, r)
			merged += len(r.parts)
		}
	}
	for part := range m.All() {
		r := runs[part.PointLo]
		size := p.Sizes[lease.Partition{Table: m.Table, ID: part.ID}].Bytes
		if heirs[part.ID] || !p.mergeableRows(m, part, into) {
			end(r)
			delete(runs, part.PointLo)
			continue
		}
		if r != nil && (!follows(r.parts[len(r.parts)-1], part) || block(r.parts[0].TimeLo, into) != block(part.TimeLo, into) ||
			r.bytes+size > p.mergeBytes() || len(r.parts) == topology.MergeMax) {
			end(r)
			r = nil
		}
		if r == nil {
			r = &run{}
			runs[part.PointLo] = r
		}
		r.parts, r.bytes = append(r.parts, part), r.bytes+size
	}
	for _, lo := range slices.Sorted(maps.Keys(runs)) {
		end(runs[lo])
	}
	return merged
}

// follows reports whether a partition begins where another ends, with the same ring range.
func follows(a, b *topology.Partition) bool {
	return a.PointLo == b.PointLo && a.PointHi == b.PointHi && a.TimeHi == b.TimeLo
}

// block is the number of the stretch of time that a moment lies in.
func block(t point.Nanos, width time.Duration) int64 {
	n := t / int64(width)
	if t%int64(width) < 0 {
		n--
	}
	return n
}

// mergeBytes is the size up to which partitions are merged.
func (p *planner) mergeBytes() int64 {
	if p.set.SplitBytes > 0 {
		return p.set.SplitBytes
	}
	return mergeBytesMax
}

// mergeableRows reports whether a partition with rows may be merged: its whole block is closed, its rows are on servers that answer, and it is small.
func (p *planner) mergeableRows(m *topology.Map, part *topology.Partition, into time.Duration) bool {
	key := lease.Partition{Table: m.Table, ID: part.ID}
	size, known := p.Sizes[key]
	if part.State != topology.Live || part.Incomplete || len(part.Joining) > 0 || p.touched[key] || !known || p.empty(key) || p.Empty(key) ||
		topology.Width(part) >= int64(into/2) || len(part.Placements) < m.Config.Replicas || size.Bytes > p.mergeBytes()/2 {
		return false
	}
	if (block(part.TimeLo, into)+1)*int64(into) > p.closed() || part.TimeHi > p.closed() {
		return false
	}
	if r := m.Config.Retention; r > 0 && part.TimeLo < p.Now-int64(r)+int64(into) {
		return false // it goes soon
	}
	row, led := p.Leases[key]
	return led && row.State == lease.Held && row.Offline == nil && !slices.ContainsFunc(part.Placements, func(pl topology.Placement) bool { return p.bad(pl.Server, p.set.EmptyAfter) })
}

// MergeOf plans a requested merge of closed neighbours, in the order of their times or of the ring. Their leaders move the rows. Errors are NotFound, and those of
// topology.Merge: Stale (one of them is being changed) and Invalid (not neighbours, or not closed).
func MergeOf(s State, set Settings, rng *rand.Rand, table string, ids []point.PartitionID) (Step, error) {
	set.SetDefaults()
	p := &planner{view: newView(s, set), rng: rng, touched: map[lease.Partition]bool{}}
	i := slices.IndexFunc(p.Tables, func(m *topology.Map) bool { return m.Table == table })
	if i < 0 {
		return Step{}, fault.Errorf(fault.NotFound, "table %q does not exist", table)
	}
	m, r := p.Tables[i], &run{}
	for _, id := range ids {
		part, ok := m.ByID(id)
		if !ok {
			return Step{}, fault.Errorf(fault.NotFound, "table %q has no p%d", table, id)
		}
		r.parts = append(r.parts, part)
	}
	if len(r.parts) == 0 {
		return Step{}, fault.Errorf(fault.Invalid, "no partitions to merge: name 2 to %d neighbours", topology.MergeMax)
	}
	p.mergeRows(m, r)
	step := p.steps[0]
	step.Why = "asked for"
	_, err := m.Apply(step.Ops...)
	return step, err
}

func (p *planner) mergeRows(m *topology.Map, r *run) {
	id := p.takeIDs(m, 1)
	into := topology.Child{ID: id}
	template := r.parts[len(r.parts)/2] // of narrow ones each lies on other servers
	for _, pl := range template.Placements {
		into.Placements = append(into.Placements, p.placement(pl.Server))
	}
	var ids []point.PartitionID
	for _, part := range r.parts {
		ids = append(ids, part.ID)
		p.touched[lease.Partition{Table: m.Table, ID: part.ID}] = true
	}
	for _, pl := range into.Placements {
		p.count(m.Table, template, pl.Server, 1)
	}
	p.moves++
	p.add(Step{Kind: Merge, Table: m.Table, Partition: ids[0], Ops: []topology.Op{topology.Merge{Partitions: ids, Into: into, ClosedBefore: p.closed()}},
		What: fmt.Sprintf("merge %s with their rows into p%d", names(ids), id), Why: fmt.Sprintf("they are narrow, and ended more than %v ago", p.set.ClosedAfter)})
}
