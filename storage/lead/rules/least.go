package rules

import (
	"maps"
	"slices"
	"time"

	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/point"
)

// lowerAfter is how long the former minimum of a table's in-sync lists stays in force after a map has demanded a smaller one. A gateway without news of the map
// counts copies by the former minimum for at most 5 s of its clock; then it treats no answer of a few copies as complete (gateway/follow, DoubtAge). With
// clocks within 10 % of the truth 7 s/1.1 are more than 5 s/0.9.
const lowerAfter = 7 * time.Second

// least is the minimum size of a table's in-sync lists.
type least struct {
	now     int  // in force; 0: no map was carried out yet
	want    int  // by the map; at most now
	lowerAt Time // when now becomes want
	set     bool // by a person: fewer servers accept no rows
}

// setMinInSync notes the minimum that a map demands. A higher one is in force at once, also for partitions that the map does not change otherwise. A process
// that has just begun does not know since when a lower one is demanded.
func (m *Machine) setMinInSync(t *table, c *topology.Config) {
	l := &t.least
	was, want := l.want, c.MinInSync()
	l.set, l.want = c.InSyncMin > 0, want
	if l.now == 0 {
		l.now = max(want, c.InSyncWas.Most)
	}
	switch {
	case want >= l.now:
		if l.now < want {
			l.now = want
			m.spreadLeast(t)
		}
		delete(m.lowering, t.name)
	case want != was:
		l.lowerAt = m.now + lowerAfter
		m.lowering[t.name] = true
	}
}

// lower puts the minimum of a table into force that was lowered long enough ago.
func (m *Machine) lower(t *table) {
	l := &t.least
	if m.now < l.lowerAt {
		m.at(l.lowerAt)
		return
	}
	l.now = l.want
	delete(m.lowering, t.name)
	m.spreadLeast(t)
}

// spreadLeast gives the minimum to all partitions here that have a list kept by a chain.
func (m *Machine) spreadLeast(t *table) {
	if t.carriedMap.m == nil {
		return // the table is gone; should it return, its first round gives the minimum to all
	}
	var all []lease.Assigned
	for _, id := range slices.Sorted(maps.Keys(t.assigned)) {
		p := t.assigned[id]
		at, ok := t.carriedMap.m.ByID(id)
		if !ok || p.least == 0 || p.least == t.least.now || !has(at, p.placement) {
			continue // the round under way removes it, or has no chain for it
		}
		m.setLeast(p, t.least.now, true)
		p.assigned.MinInSync, p.assigned.Seq, p.assigned.TableRow = p.least, t.carriedMap.m.Seq, t.carriedMap.row
		all = append(all, p.assigned)
	}
	if len(all) > 0 {
		m.do(Assign{all})
	}
}

func has(at *topology.Partition, id point.PlacementID) bool {
	is := func(pl topology.Placement) bool { return pl.ID == id }
	return slices.ContainsFunc(at.Placements, is) || slices.ContainsFunc(at.Joining, is)
}
