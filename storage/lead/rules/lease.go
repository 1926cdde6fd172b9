package rules

import (
	"maps"
	"slices"

	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/point"
)

// part is the state of one partition.
type part struct {
	id lease.Partition

	// By the map, as it was last carried out.
	placement point.PlacementID // assigned; 0: it is not
	assigned  lease.Assigned    // as given to the lease machine
	sealed    bool
	kind      Kind              // Serve, Split, Unload or Final, where it is assigned
	low       point.PartitionID // of the split that is to end

	// By the lease machine.
	epoch   point.Epoch // of the newest Leads
	leading bool        // between Leads and Stops
	lapsed  bool        // it stopped because the heartbeat was not renewed, and none was good since
	alone   bool        // by the row as last seen this placement is the only one in sync, and the partition may have rows
	members int         // in sync, by that row
	seq     uint64      // of the map that changed the partition last, by that row
	holding bool        // a SetInSync is under way
	relist  uint64      // Ask of the Relist that it is for; 0: none
	list    []lease.Member
	dropped []lease.Member    // by the acquisition that began the epoch
	listed  bool              // by that row this placement is in sync, and the partition may have rows
	chained point.PlacementID // that had a chain since the process started
	least   int               // minimum size of the list; 0: no chain keeps it, and it shrinks to the holder
	why     string            // of the last Stops

	unloads   bool        // by the map, its rows go to heirs
	unloading point.Epoch // under which its rows are being moved; 0: they are not
	unsealed  point.Epoch // under which it is led here since before it was sealed, if its rows were not moved under it yet
	unloaded  bool        // all are there

	attempt attempt
	doubt   uint64 // of its gate; 0: none
}

// see records a lease row.
func (p *part) see(t *table, l *lease.Lease, self lease.Member) {
	p.members, p.seq, p.list = len(l.InSync), l.Seq, l.InSync
	if t.carried < l.Seq {
		t.ahead[p.id.ID] = p
	}
	p.alone = p.members == 1 && l.InSync[0] == self && !l.Empty
	p.listed = slices.Contains(l.InSync, self) && !l.Empty
}

// kept reports whether rows can be acked at level all here: the whole list keeps them, through a chain (storage/chain), or this placement alone is in sync.
func (p *part) kept() bool { return p.least > 0 && p.listed || p.least == 0 && p.alone }

// setLeast sets the minimum size of the list, which a chain keeps if the map says so. A placement that had a chain has one for as long as the process runs: a
// partition of a table of one replica has a chain while it is copied to another server, and rows may be under way when the copying ends.
func (m *Machine) setLeast(p *part, least int, chained bool) {
	if m.set.Copies && chained {
		p.chained = p.placement
	}
	if p.least = 0; p.placement != 0 && p.chained == p.placement {
		p.least = least
	}
}

func (m *Machine) self(p *part) lease.Member {
	return lease.Member{Placement: p.placement, Server: m.server, Store: m.store}
}

func (m *Machine) leaseBegan(e lease.Leads) {
	p := m.part(e.Partition)
	m.setLeading(p, true)
	m.setLapsed(p, false)
	p.epoch, p.why, p.dropped = e.Epoch, "", e.Dropped
	p.see(m.table(p.id.Table), &e.Lease, m.self(p))
	if p.least == 0 && len(p.list) > 1 { // others have its rows, though the map lists none any more
		m.setLeast(p, 1, true)
	}
	m.do(Changed{p.id})
	m.unload(p)
	m.begin(p)
	m.offerUnplaced(p)
}

// unload begins or ends the moving of a partition's rows, as map and lease require. Servers with a map from before the partition was sealed can neither acquire
// it nor ack its rows: the transaction wrote its number into the lease row (lease.Guard).
func (m *Machine) unload(p *part) {
	var want point.Epoch
	if m.set.Unload && p.leading && p.unloads && p.placement != 0 && (p.kind == Unloading || p.unloaded) {
		want = p.epoch
	}
	if p.leading && !p.unloads && p.placement != 0 { // an older map than that of the seal acquires no lease (lease.Guard)
		p.unsealed = p.epoch
	}
	if want == p.unloading {
		return
	}
	if p.unloading != 0 {
		m.do(Unload{Partition: p.id, Epoch: p.unloading})
	}
	if want != 0 {
		m.do(Unload{Partition: p.id, Epoch: want, On: true, First: p.unsealed == want})
		p.unsealed = 0
	}
	p.unloading = want
}

// setUnloaded has a partition whose rows are all in its heirs removed from the map.
func (m *Machine) setUnloaded(in Unloaded) {
	p := m.parts[in.Partition]
	if p == nil || !p.unloads || p.unloading != in.Epoch || p.kind != Unloading {
		return
	}
	p.unloaded, p.kind = true, Final
	m.begin(p)
}

// offerUnplaced offers a partition whose leading placement is missing in the map to those in sync with it that the map lists. It accepts no rows here, so its
// lease must move. That happens when the map drops a copy while its partition has no leader to unlist it, and when the coordination store was restored from an
// older backup.
func (m *Machine) offerUnplaced(p *part) {
	placed := func(x lease.Member) bool {
		return slices.ContainsFunc(p.assigned.Placements, func(pl topology.Placement) bool { return pl.ID == x.Placement && pl.Server == x.Server })
	}
	if p.leading && p.placement != 0 && !placed(m.self(p)) && slices.ContainsFunc(p.list, placed) {
		m.do(LeaseInput{lease.Offer{Partition: p.id, Why: "the map does not list this placement, and lists another that is in sync", Misplaced: true}})
	}
}

func (m *Machine) leaseEnded(e lease.Stops) {
	p := m.part(e.Partition)
	m.setLeading(p, false)
	m.setLapsed(p, e.Lapsed)
	p.why = e.Why
	m.do(Changed{p.id})
	m.unload(p)
	if e.Lapsed { // where this placement is alone in sync changes go on: their ends are not final
		m.do(LeaseInput{lease.Stopped{Partition: p.id}})
		return
	}
	m.do(Quiesce{ID: m.ask(question{about: aboutStop, p: p}), Partition: p.id, Within: m.set.StopWithin})
}

func (m *Machine) stopped(p *part, in Quiet) {
	if !in.OK {
		m.do(Note{Partition: p.id, What: StopTimedOut, Why: "changes under way did not end in time; they will not be acked"})
	}
	m.do(LeaseInput{lease.Stopped{Partition: p.id, Ends: in.Ends}})
}

func (m *Machine) inSyncAnswered(e lease.InSyncSet) {
	p := m.part(e.Partition)
	p.holding = false
	if e.Lease.Epoch == p.epoch && (e.OK || p.least > 0) {
		p.see(m.table(p.id.Table), &e.Lease, m.self(p))
	}
	if p.relist != 0 {
		m.do(Listed{Partition: p.id, Ask: p.relist, OK: e.OK, Epoch: e.Lease.Epoch, List: e.Lease.InSync})
		p.relist = 0
	}
	m.do(Changed{p.id})
}

// setList changes the in-sync list for the chain of an epoch.
func (m *Machine) setList(in Relist) {
	p := m.part(in.Partition)
	if p.least == 0 || !p.leading || p.epoch != in.Epoch || p.holding || p.placement == 0 || !m.current(p) {
		m.do(Listed{Partition: p.id, Ask: in.Ask, Epoch: p.epoch, List: p.list})
		return
	}
	p.holding, p.relist = true, in.Ask
	m.do(LeaseInput{lease.SetInSync{Partition: p.id, Members: in.Members}})
}

// want requests the in-sync list that the first row of an epoch needs, unless it is in place, impossible, or already requested.
func (m *Machine) want(in Want) {
	p := m.parts[in.Partition]
	switch {
	case p == nil || p.epoch != in.Epoch || p.kept():
	case p.least == 0:
		m.hold(p, []lease.Member{m.self(p)})
	default:
		if placed, least := m.first(p, in.Placed); len(placed) >= least && placed[0] == m.self(p) {
			m.hold(p, placed)
		}
	}
}

// hold requests that list: this placement alone, or, if a chain keeps it, the placements on live servers, if they are enough. With an older map than the row
// names the server must not act: by the newer one it may have no reason to lead any more.
func (m *Machine) hold(p *part, members []lease.Member) {
	if !p.leading || p.holding || p.placement == 0 || !m.current(p) {
		return
	}
	p.holding = true
	m.do(LeaseInput{lease.SetInSync{Partition: p.id, Members: members}})
}

// Short returns how many placements must be live before a partition accepts its first row, if fewer are: live are.
func (m *Machine) Short(id lease.Partition, placed []lease.Member) (live, least int, short bool) {
	p := m.parts[id]
	if p == nil || p.least == 0 || p.kept() {
		return 0, 0, false
	}
	placed, least = m.first(p, placed)
	return len(placed), least, len(placed) < least
}

// Copied returns the minimum size of a partition's list; ok is false if no chain keeps the list.
func (m *Machine) Copied(id lease.Partition) (least int, ok bool) {
	p := m.parts[id]
	if p == nil || p.least == 0 {
		return 0, false
	}
	return p.least, true
}

// Demanded reports whether a person has set the minimum size of a table's lists, so that shorter ones accept no rows.
func (m *Machine) Demanded(table string) bool {
	t := m.tables[table]
	return t != nil && t.least.set
}

// Mapped returns the placements that the newest map which was carried out has of a partition, joining ones too, and the one that is here. Nil: none is here.
func (m *Machine) Mapped(id lease.Partition) (all []point.PlacementID) {
	p := m.parts[id]
	if p == nil || p.placement == 0 {
		return nil
	}
	for _, pl := range slices.Concat(p.assigned.Placements, p.assigned.Joining) {
		all = append(all, pl.ID)
	}
	return append(all, p.placement)
}

// Chain is a partition that this server leads and that has its list kept by a chain.
type Chain struct {
	Partition     lease.Partition
	Epoch         point.Epoch
	List, Dropped []lease.Member
}

// Chain returns one of Chains; false: it is none.
func (m *Machine) Chain(id lease.Partition) (Chain, bool) {
	p := m.parts[id]
	if p == nil || p.least == 0 || !p.kept() || !p.leading || !m.current(p) {
		return Chain{}, false
	}
	return Chain{id, p.epoch, p.list, p.dropped}, true
}

// MayChangeChains reports whether Chains may return others after an input. The others come every second or oftener, and change none.
func MayChangeChains(in Input) bool {
	switch in.(type) {
	case Clock, Accepted, Published:
		return false
	}
	return true
}

// Chains returns those that may have rows.
func (m *Machine) Chains() (all []Chain) {
	for id := range m.parts {
		if c, ok := m.Chain(id); ok {
			all = append(all, c)
		}
	}
	slices.SortFunc(all, func(a, b Chain) int { return compare(a.Partition, b.Partition) })
	return all
}

// current reports whether the map here is as new as the lease row requires.
func (m *Machine) current(p *part) bool {
	t := m.tables[p.id.Table]
	return t != nil && t.carried >= p.seq
}

// Holding reports whether no other placement can acquire the partition under an epoch that is led here, and whether that epoch is
// over. Neither: it is not decided yet.
func (m *Machine) Holding(id lease.Partition, epoch point.Epoch) (held, over bool) {
	p := m.parts[id]
	switch {
	case p == nil:
		return false, false
	case p.epoch == epoch && p.kept() && (p.leading || p.lapsed) && m.current(p):
		return true, false
	}
	return false, p.epoch > epoch || p.epoch == epoch && !p.leading
}

// Alone reports whether the placement here led when the lease lapsed and is alone in sync: until a heartbeat proves good no other one leads. If a chain keeps
// the list another one may lead; then a row is acked only if all of the list confirm it under this epoch.
func (m *Machine) Alone(id lease.Partition) (point.Epoch, bool) {
	p := m.parts[id]
	if p == nil || !p.lapsed || !p.kept() || p.placement == 0 {
		return 0, false
	}
	return p.epoch, true
}

// Why returns what keeps this server from leading, for the answer to a request.
func (m *Machine) Why(id lease.Partition) string {
	p := m.parts[id]
	switch {
	case m.sleeps(id):
		return "its time has not come yet; it is led soon, since it is asked for"
	case p == nil || p.placement == 0:
		return "it has no placement here"
	case p.leading:
		return "its lease begins or ends at this moment"
	case p.why != "":
		return p.why
	}
	return "the lease is not with this server"
}

// Led returns the newest epoch under which this server led a partition, and whether its lease goes on or lapsed.
func (m *Machine) Led(id lease.Partition) (epoch point.Epoch, goesOn bool) {
	p := m.parts[id]
	if p == nil {
		return 0, false
	}
	return p.epoch, p.leading || p.lapsed
}

// Fixed reports whether a request for another in-sync list would be refused here, beside one under way (setList).
func (m *Machine) Fixed(id lease.Partition) bool {
	p := m.parts[id]
	return p == nil || !p.leading || !m.current(p)
}

// Known is the number of partitions that the machine has a state of: those with a placement here, and those that were dropped until
// their lease rows were looked at (I5).
func (m *Machine) Known() int { return len(m.parts) }

// Leading is the number of partitions that this server leads.
func (m *Machine) Leading() int { return m.leading }

func (m *Machine) setLeading(p *part, on bool) {
	if p.leading != on {
		p.leading = on
		if on {
			m.leading++
		} else {
			m.leading--
		}
	}
}

func (m *Machine) setLapsed(p *part, on bool) {
	if p.lapsed != on {
		p.lapsed = on
		if on {
			m.lapsed++
		} else {
			m.lapsed--
		}
	}
}

// published ends the rights that are kept after a lapse, once the heartbeat has been good for a while: the lease rows were read since, and name the leader. It
// offers a partition to others when this server has been busy for long (C110).
func (m *Machine) published(in Published) {
	was := m.good
	if m.good = in.Good; m.good && was && m.lapsed > 0 {
		for _, p := range m.parts { // each by itself: the order does not matter
			m.setLapsed(p, p.lapsed && p.leading)
		}
	}
	if in.ReadOnly != "" { // partitions without rows are better led elsewhere
		in.Load = max(in.Load, 1)
	}
	m.do(LeaseInput{lease.Loaded{Load: in.Load, ReadOnly: in.ReadOnly, Room: in.Room, NoRoom: in.NoRoom, Fsync: in.Fsync, Led: m.meter.hot, Rest: m.meter.rest, Known: m.meter.known}})
	switch {
	case in.Load < m.set.LoadMax:
		m.over = 0
	case m.over == 0:
		m.over = max(m.now, 1)
	case m.now-m.over >= m.set.OverloadFor:
		m.over = max(m.now, 1)
		m.offer()
	}
}

// offer hands over a partition that another placement could acquire: one without rows, or whose rows the other has too. Partitions are offered in turn, since
// only the lease machine can decide whether the other servers have room for one.
func (m *Machine) offer() {
	var first, next *part
	for _, id := range slices.SortedFunc(maps.Keys(m.parts), compare) {
		p := m.parts[id]
		if !p.leading || p.alone || p.members < 2 {
			continue
		}
		if first == nil {
			first = p
		}
		if next == nil && compare(id, m.offered) > 0 {
			next = p
		}
	}
	if next == nil {
		next = first
	}
	if next != nil {
		m.offered = next.id
		m.do(LeaseInput{lease.Offer{Partition: next.id, Why: "the server is overloaded"}})
	}
}
