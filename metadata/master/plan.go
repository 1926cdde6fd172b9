package master

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/registry"
	"github.com/spillwaydb/spillway/metadata/retention"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/point"
)

// Plan decides the changes to make, each with its reason. rng gives placement ids; everything else follows from the state, so that
// the same state and a random source in the same state give the same steps. Steps of one table are meant for its map as
// it is in the state, and may be committed together, in order.
//
// Carried out, a plan leads to a state for which Plan gives no more steps, but for alarms, and joins that wait for a leader.
func Plan(s State, set Settings, rng *rand.Rand) []Step {
	p := plan(s, set, rng)
	return append(p.alarms, p.steps...)
}

func plan(s State, set Settings, rng *rand.Rand) *planner {
	set.SetDefaults()
	p := &planner{view: newView(s, set), rng: rng, touched: map[lease.Partition]bool{}, laid: map[string]bool{}}
	p.all = p.Tables
	p.drops()
	p.retention()
	p.presplits()
	p.ahead()
	p.endReliefs()
	p.even()
	p.repair()
	p.splits()
	p.merges()
	p.mergesOfRows()
	p.balance()
	p.spreadLeads()
	p.metadata()
	p.sweep()
	return p
}

// planner makes one plan. Each decision counts for the next ones: a chosen server has one more
// placement, and a partition is changed once a round.
type planner struct {
	*view
	rng     *rand.Rand
	all     []*topology.Map // those that are being dropped too
	steps   []Step
	alarms  []Step
	touched map[lease.Partition]bool
	heirs   map[point.PartitionID]bool // of the table that is being laid out
	evens   map[placementOf]registry.Move
	laid    map[string]bool // tables for which this plan makes partitions to come
	moves   int
	// relieving: a copy is being moved for load.
	relieving bool
	// passed are the moves by load that would begin if the registry rows of the servers had room for them.
	passed []MoveByLoad
	// uncopied are the partitions that should be copied, by the server that has their rows and keeps no copies.
	uncopied map[topology.ServerID][]lease.Partition
	// unplaced are those with rows for which no server has room.
	unplaced []unplaced
	keeping  int                          // changes of metadata servers
	kept     map[topology.ServerID]int    // tables by server that keeps their METADATA files
	next     map[string]point.PartitionID // ids given out in this plan, by table
}

func (p *planner) add(s Step) { p.steps = append(p.steps, s) }

func (p *planner) alarm(table string, id point.PartitionID, what, why string, args ...any) {
	p.alarms = append(p.alarms, Step{Kind: Alarm, Table: table, Partition: id, What: what, Why: fmt.Sprintf(why, args...)})
}

// takeIDs gives n partition ids that the newest map has not given out, nor this plan.
func (p *planner) takeIDs(m *topology.Map, n int) point.PartitionID {
	if p.next == nil {
		p.next = map[string]point.PartitionID{}
	}
	id := max(p.next[m.Table], m.NextID)
	p.next[m.Table] = id + point.PartitionID(n)
	return id
}

func (p *planner) placement(s topology.ServerID) topology.Placement {
	id := p.rng.Uint64()
	for id == 0 {
		id = p.rng.Uint64()
	}
	return topology.Placement{ID: point.PlacementID(id), Server: s}
}

// placed chooses servers for a new partition and notes that they have one more.
func (p *planner) placed(m *topology.Map, part *topology.Partition, w where) []topology.Placement {
	var out []topology.Placement
	for _, s := range p.places(w, m.Config.Replicas) {
		out = append(out, p.placement(s))
		p.count(m.Table, part, s, 1)
	}
	return out
}

// drops goes on with what `table drop` began: first it removes the partitions from the map, then, once no live server holds one, the table. The
// planner does nothing else with such a table.
func (p *planner) drops() {
	held := map[string]string{}
	for part, l := range p.Leases {
		if p.Dropping[part.Table] && p.held(l, p.set.EmptyAfter) {
			held[part.Table] = max(held[part.Table], fmt.Sprintf("%s by %s", part, l.Holder))
		}
	}
	for _, m := range p.Tables {
		switch {
		case !p.Dropping[m.Table]:
		case m.Len() > 0:
			var ids []point.PartitionID
			for part := range m.All() {
				ids = append(ids, part.ID)
			}
			p.add(Step{Kind: Drop, Table: m.Table, Ops: []topology.Op{topology.Drop{IDs: ids}}, What: "drop " + names(ids), Why: "a person had the table dropped"})
		case held[m.Table] == "":
			p.add(Step{Kind: Drop, Table: m.Table, Drop: true, What: "drop the table", Why: "a person had it dropped, and no server holds any of it"})
		}
	}
	p.Tables = slices.DeleteFunc(slices.Clone(p.Tables), func(m *topology.Map) bool { return p.Dropping[m.Table] })
}

// retention drops partitions that lie wholly before the table's retention. Its now is the time of the newest row, or the
// wall clock if that is earlier: neither a clock that runs ahead nor a sample from the future may drop wanted rows.
func (p *planner) retention() {
	dropped := 0
	for _, m := range p.Tables {
		if m.Config.Retention == 0 {
			continue
		}
		newest, ok := p.newest(m)
		if !ok {
			continue // never written to: there is nothing to drop
		}
		now := min(newest, p.Now)
		v := retention.Judge(m, retention.Clock{Wall: now, Confirmed: p.set.RetentionConfirmed}, retention.Confirmed{})
		if v.Why != "" {
			p.alarm(m.Table, v.Held[0], "drop "+names(v.Held), "%s; set the clocks right, or, if they are, start the storage servers with tables.retention_confirmed", v.Why)
		}
		ids := v.Drop
		ids = ids[:min(len(ids), p.set.DropMax-dropped)]
		ids = m.Droppable(ids)
		if len(ids) == 0 {
			continue
		}
		dropped += len(ids)
		for _, id := range ids {
			p.touched[lease.Partition{Table: m.Table, ID: id}] = true
			part, _ := m.ByID(id)
			p.leave(m.Table, part)
		}
		p.add(Step{Kind: Retention, Table: m.Table, Partition: ids[0], Ops: []topology.Op{topology.Drop{IDs: ids}},
			What: "drop " + names(ids), Why: fmt.Sprintf("they end before %s, which is %v before the newest row or now", stamp(now-int64(m.Config.Retention)), m.Config.Retention)})
	}
}

// leave notes that a partition lies nowhere any more.
func (p *planner) leave(table string, part *topology.Partition) {
	one := p.share(table, part)
	for _, pl := range part.Placements {
		p.put(pl.Server, one, -1)
	}
	for _, pl := range part.Joining {
		p.put(pl.Server, one, -1)
	}
}

// newest returns the time of a table's newest row, as far as the sizes show it; a partition without a reported size counts with its end.
func (p *planner) newest(m *topology.Map) (t point.Nanos, ok bool) {
	for part := range m.All() {
		key := lease.Partition{Table: m.Table, ID: part.ID}
		if p.empty(key) {
			continue
		}
		end := part.TimeHi - 1
		if size, known := p.Sizes[key]; known && size.Rows > 0 {
			end = min(end, size.MaxTime)
		} else if known {
			continue
		}
		if !ok || end > t {
			t, ok = end, true
		}
	}
	return t, ok
}

// ahead makes the partitions that tables in use need soon, so that no write waits for one. A table is in use while
// clients write to the partition that holds now.
func (p *planner) ahead() {
	made := 0
	for _, m := range p.Tables {
		horizon := p.Now + int64(p.set.Ahead)
		if p.laid[m.Table] || !p.inUse(m) || made >= p.set.CreateMax {
			continue
		}
		var times []point.Nanos
		for t := p.Now; t <= horizon && len(times) < p.set.CreateMax-made; {
			var covered bool
			t, covered = p.covered(m, t)
			if covered || t > horizon {
				continue
			}
			times = append(times, t)
			_, t = m.Config.Aligned(t)
		}
		if len(times) == 0 {
			continue
		}
		var servers [][]topology.ServerID // for each partition made before, the servers of its neighbours
		create := m.Covering(times, func(point.PartitionID) []topology.Placement { return nil })
		for i := range create.Partitions {
			part := &create.Partitions[i]
			part.Placements = p.placed(m, part, p.at(m, part, create.Partitions[:i]))
			servers = append(servers, on(part.Placements))
		}
		if len(create.Partitions) == 0 {
			continue
		}
		if slices.ContainsFunc(create.Partitions, func(c topology.Partition) bool { return len(c.Placements) == 0 }) {
			p.alarm(m.Table, 0, "no partitions ahead", "no server is there that could hold them")
			continue
		}
		p.takeIDs(m, len(create.Partitions))
		p.laid[m.Table] = true
		made += len(create.Partitions)
		first, last := create.Partitions[0], create.Partitions[len(create.Partitions)-1]
		what := fmt.Sprintf("create p%d [%s, %s) on %s", first.ID, stamp(first.TimeLo), stamp(first.TimeHi), list(servers[0]))
		if n := len(create.Partitions); n > 1 {
			what = fmt.Sprintf("create p%d…p%d [%s, %s)", first.ID, last.ID, stamp(first.TimeLo), stamp(last.TimeHi))
		}
		p.add(Step{Kind: Ahead, Table: m.Table, Partition: first.ID, Ops: []topology.Op{create}, What: what,
			Why: fmt.Sprintf("now comes there within %v, and the table is written to", p.set.Ahead)})
	}
}

// inUse reports whether the partition that holds now was ever led: servers lead existing partitions, and rows may come late.
func (p *planner) inUse(m *topology.Map) bool {
	for _, part := range m.Overlapping(p.Now, p.Now) {
		if p.led(lease.Partition{Table: m.Table, ID: part.ID}) {
			return true
		}
	}
	return false
}

// covered moves t on to where the coverage ends that begins at t; ok says that t itself was covered.
func (p *planner) covered(m *topology.Map, t point.Nanos) (next point.Nanos, ok bool) {
	if len(m.Covering([]point.Nanos{t}, func(point.PartitionID) []topology.Placement { return nil }).Partitions) > 0 {
		return t, false
	}
	part, ok := m.Find(0, t)
	if !ok {
		return t, false
	}
	return part.TimeHi, true
}

// sweep removes the lease rows of dropped partitions once no server holds them: they would add up for ever.
func (p *planner) sweep() {
	maps, unborn := map[string]*topology.Map{}, map[string]map[point.PartitionID]bool{}
	for _, m := range p.all {
		maps[m.Table], unborn[m.Table] = m, children(m)
	}
	byTable := map[string][]lease.Partition{}
	consider := func(part lease.Partition) {
		if p.JustSwept[part.Table] {
			return
		}
		if m := maps[part.Table]; m != nil {
			if _, ok := m.ByID(part.ID); ok || part.ID >= m.NextID || unborn[m.Table][part.ID] {
				return
			}
		} else if !p.Dropped[part.Table] {
			return
		}
		if row, ok := p.Leases[part]; ok && p.held(row, p.set.DeadAfter) {
			return // its holder has not received the drop yet
		}
		byTable[part.Table] = append(byTable[part.Table], part)
	}
	for part := range p.Leases {
		consider(part)
	}
	for part := range p.Born {
		if _, ok := p.Leases[part]; !ok {
			consider(part)
		}
	}
	swept := 0
	for _, table := range sortedKeys(byTable) {
		parts := byTable[table]
		slices.SortFunc(parts, comparePartitions)
		parts = parts[:min(len(parts), p.set.DropMax-swept)]
		if swept += len(parts); len(parts) > 0 {
			var ids []point.PartitionID
			for _, part := range parts {
				ids = append(ids, part.ID)
			}
			p.add(Step{Kind: Sweep, Table: table, Sweep: parts, What: "forget the lease rows of " + names(ids), Why: "they were dropped, and no server holds them"})
		}
	}
}

func comparePartitions(a, b lease.Partition) int {
	return cmp.Or(cmp.Compare(a.Table, b.Table), cmp.Compare(a.ID, b.ID))
}

// children are the partitions that splits under way will make: they are in no map yet, and may be assigned already.
func children(m *topology.Map) map[point.PartitionID]bool {
	out := map[point.PartitionID]bool{}
	for part := range m.All() {
		for _, c := range part.Children() {
			out[c.ID] = true
		}
	}
	return out
}

func on(placed []topology.Placement) []topology.ServerID {
	var out []topology.ServerID
	for _, pl := range placed {
		out = append(out, pl.Server)
	}
	return out
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

func list[T ~string](s []T) string {
	var out []string
	for _, x := range s {
		out = append(out, string(x))
	}
	return strings.Join(out, " ")
}

// names writes p1, p2 and 7 more.
func names(ids []point.PartitionID) string {
	const shown = 4
	var out []string
	for _, id := range ids[:min(len(ids), shown)] {
		out = append(out, fmt.Sprintf("p%d", id))
	}
	s := strings.Join(out, " ")
	if more := len(ids) - shown; more > 0 {
		s += fmt.Sprintf(" and %d more", more)
	}
	return s
}

func stamp(t point.Nanos) string {
	return time.Unix(0, t).UTC().Format("2006-01-02T15:04:05.999999999Z")
}
