package rules

import (
	"maps"
	"math"
	"slices"
	"time"

	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/point"
)

// Partitions of the future are led by no server: thousands that were made ahead cost only their place in the map. Each is
// assigned to the lease machines of its servers
//
//	its time - 60 s      - 30 s        its time
//	      ├───────────────┤                │
//	      each at a second of its own      led by then
//
// that is the same on all of them, so that they acquire it in chain order, and a table with thousands of partitions at one edge arms
// them in batches. Before that it is assigned at once
//   - when a request comes to a placement (Early): a row with a stamp of the future,
//   - when its lease row shows that it was led once (EverLed), so that the other placements can follow a leader that dies,
//   - when its rows lie here, or it is being split or unloaded.
//
// An assignment stays until the map ends it, whatever the clock does. The clock is the median of the servers' clocks. If it
// is wrong, partitions are led early or late, never twice: a row that comes before they are led assigns them.
const (
	aheadMax = 60 * time.Second
	aheadMin = 30 * time.Second
	// armEvery is how often the machine is given the time, and the width of a batch.
	armEvery = time.Second
)

// Clock is the time by the median of the servers' clocks. It comes about once a second. A machine without a clock assigns
// partitions whatever their time.
type Clock struct{ Now point.Nanos }

// EverLed is the lease machine's.
type EverLed struct{ lease.EverLed }

// Early reports a request for a partition that this server does not lead.
type Early struct{ Partition lease.Partition }

func (Clock) input()   {}
func (EverLed) input() {}
func (Early) input()   {}

// isDue reports whether a partition's time has come, or will soon.
func isDue(p *topology.Partition, now point.Nanos) bool {
	if p.TimeLo <= after(now, aheadMin) {
		return true
	}
	const slots = uint64((aheadMax - aheadMin) / armEvery)
	slot := uint64(p.ID) * 0x9E37_79B9_7F4A_7C15 >> 32 * slots >> 32 // successive ids are far apart
	return p.TimeLo <= after(now, aheadMax-time.Duration(slot)*armEvery)
}

// after adds, up to the end of time.
func after(t point.Nanos, d time.Duration) point.Nanos {
	if t > math.MaxInt64-int64(d) {
		return math.MaxInt64
	}
	return t + int64(d)
}

// wall is the time by the servers' clocks at this step. Without a clock everything is past.
func (m *Machine) wall() point.Nanos {
	if !m.clockKnown {
		return math.MaxInt64
	}
	return after(m.clock, m.now-m.clockAt)
}

// awake reports whether a partition is to be assigned by now.
func (m *Machine) awake(t *table, at *topology.Partition, here map[point.PartitionID]Held) bool {
	_, led := t.everLed[at.ID]
	_, isHere := here[at.ID]
	return led || isHere || t.assigned[at.ID] != nil || at.State != topology.Live || isDue(at, m.wall())
}

// setClock sets the time, and assigns the partitions that are due.
func (m *Machine) setClock(in Clock) {
	m.clock, m.clockAt, m.clockKnown = in.Now, m.now, true
	for _, name := range slices.Sorted(maps.Keys(m.tables)) {
		m.arm(m.tables[name])
	}
}

// arm assigns the partitions of a table with a time in the next minute, each at its second. It walks those that begin in
// half a minute to a minute, and those that it passed since its last walk.
func (m *Machine) arm(t *table) {
	if t.carriedMap.m == nil {
		return
	}
	wall := m.wall()
	from := after(min(t.armed, wall), aheadMin-armEvery)
	t.armed = wall
	var ids []point.PartitionID
	for at := range t.carriedMap.m.Beginning(from, after(wall, aheadMax)) {
		if t.assigned[at.ID] == nil && isDue(at, wall) {
			ids = append(ids, at.ID)
		}
	}
	m.assignNow(t, ids)
}

// assignNow assigns partitions by the map that was carried out last.
func (m *Machine) assignNow(t *table, ids []point.PartitionID) {
	v := View{Map: t.carriedMap.m, Server: m.server}
	var actions []Action
	for _, id := range ids {
		at, ok := v.Map.ByID(id)
		if !ok || t.assigned[id] != nil {
			continue
		}
		if a, ok := v.serve(at, nil); ok {
			actions = append(actions, a)
		}
	}
	m.assign(t, t.carriedMap.m, t.carriedMap.row, actions, false)
	m.beginAll(t, actions)
}

// everLed records which partitions were once led.
func (m *Machine) everLed(in EverLed) {
	touched := map[*table][]point.PartitionID{}
	var order []*table
	for _, p := range in.Led {
		t := m.table(p.Table)
		t.everLed[p.ID] = struct{}{}
		if t.carriedMap.m == nil || t.assigned[p.ID] != nil {
			continue
		}
		if touched[t] == nil {
			order = append(order, t)
		}
		touched[t] = append(touched[t], p.ID)
	}
	for _, p := range in.Forgotten {
		delete(m.table(p.Table).everLed, p.ID)
	}
	for _, t := range order {
		m.assignNow(t, touched[t])
	}
}

// early assigns a partition because a request came.
func (m *Machine) early(in Early) {
	t := m.tables[in.Partition.Table]
	if t == nil || t.carriedMap.m == nil || t.assigned[in.Partition.ID] != nil {
		return
	}
	m.assignNow(t, []point.PartitionID{in.Partition.ID})
}

// sleeps reports whether a partition has a placement here that is not assigned because its time has not come.
func (m *Machine) sleeps(id lease.Partition) bool {
	t := m.tables[id.Table]
	if t == nil || t.carriedMap.m == nil || t.assigned[id.ID] != nil {
		return false
	}
	at, ok := t.carriedMap.m.ByID(id.ID)
	if !ok {
		return false
	}
	_, here := at.On(m.server)
	return here && at.Accepts()
}
