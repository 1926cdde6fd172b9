package main

import (
	"maps"
	"slices"
	"time"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/lead/rules"
)

// mapChanged gathers changes of the map for a moment, then holds what is here against it.
func (s *hosted) mapChanged() {
	if !s.batching {
		s.batching = true
		s.after(50*time.Millisecond, "reconcile", func() { s.batching = false; s.reconcile() })
	}
}

// reconcile carries out storage/lead's plan. One at a time; what it waits for is asked of the store and the disk.
func (s *hosted) reconcile() {
	if s.planning {
		s.again = true
		return
	}
	m, rev := s.m, s.mapRev
	if m == nil {
		return // not heard of yet: storage/lead says nothing about tables it never heard of
	}
	if s.disk.isFull(s.w) {
		return // with the next round
	}
	s.planning = true
	s.disk.see(s.table, m.Seq)
	s.disk.sync(s.proc, nil, func() { // before anything is deleted by it
		s.covered(m, s.held(), map[lease.Partition]bool{}, func(covered map[lease.Partition]bool) {
			s.carryOut(m, rev, covered)
			s.planning = false
			if s.again {
				s.again = false
				s.reconcile()
			}
		})
	})
}

// held lists the partitions of the table that are here, in order.
func (s *hosted) held() []lease.Partition {
	return slices.DeleteFunc(s.disk.held(), func(p lease.Partition) bool { return p.Table != s.table })
}

// covered asks of every placement that the map does not want whether its lease row lists others in sync, and not it.
func (s *hosted) covered(m *topology.Map, held []lease.Partition, covered map[lease.Partition]bool, done func(map[lease.Partition]bool)) {
	for i, id := range held {
		r := s.disk.copies[id]
		at, ok := m.ByID(id.ID)
		if r == nil || !ok || r.empty() {
			continue
		}
		if pl, on := at.On(s.id); on && pl.ID == r.placement {
			continue
		}
		s.get(lease.RowKey(id), storeTimeout, func(g got, answered bool) {
			if led, err := lease.DecodeLease(g.row.Value); answered && g.ok && err == nil {
				covered[id] = len(led.InSync) > 0 && !slices.ContainsFunc(led.InSync, func(m lease.Member) bool {
					return m.Placement == r.placement || m.Server == s.id
				})
			}
			s.covered(m, held[i+1:], covered, done)
		})
		return
	}
	done(covered)
}

func (s *hosted) carryOut(m *topology.Map, rev coord.Revision, covered map[lease.Partition]bool) {
	v := rules.View{Map: m, Seen: s.disk.seen[s.table], Server: s.id}
	for _, id := range s.held() {
		r := s.disk.copies[id]
		v.Held = append(v.Held, rules.Held{Partition: id.ID, Placement: r.placement, Empty: r.empty(), Covered: covered[id]})
	}
	actions := rules.Plan(v)
	if m.Seq < v.Seen {
		return // nothing begins and nothing ends by what cannot be believed
	}
	s.assign(m, rev, actions)
	for _, a := range actions {
		id := s.part(a.Partition)
		if a.Kind == rules.Alarm && a.Partition != 0 {
			s.w.mark(keptOnlyCopy)
		}
		switch {
		case a.Kind == rules.Remove, a.Kind == rules.Alarm && a.Partition != 0 && s.w.opt.broken == alarmRemoves:
			s.w.say("%s removes %s: %s", s.id, id, a.Why)
			s.disk.remove(id)
			s.disk.sync(s.proc, nil, func() {})
			s.w.n.removed++
			s.w.mark(removedDropped)
		case a.Kind == rules.Final:
			s.finish(id)
		case a.Kind == rules.Unload:
		default:
			if at, ok := m.ByID(a.Partition); ok && at.State == topology.Splitting {
				s.handOver(id, at.Split.Low.ID)
			}
		}
	}
}

// assign tells the lease machine which placements may lead, all in one step; what unloads is sealed before.
func (s *hosted) assign(m *topology.Map, rev coord.Revision, actions []rules.Action) {
	var all []lease.Assigned
	wanted := map[lease.Partition]bool{}
	for _, a := range actions {
		if a.Kind == rules.Remove || a.Kind == rules.Alarm {
			continue
		}
		id := s.part(a.Partition)
		if g := s.gate(id); !g.handing {
			g.sealed = a.Kind == rules.Unload || a.Kind == rules.Final
		}
		at, _ := m.ByID(a.Partition)
		wanted[id] = true
		r := s.record(id)
		if r.placement != a.Placement {
			r.placement, r.alone = a.Placement, false
		}
		var epoch point.Epoch
		if c := s.disk.copies[id]; c != nil && c.placement == a.Placement {
			epoch = c.epoch
		}
		all = append(all, lease.Assigned{Partition: id, Placement: a.Placement, Placements: at.Placements, Joining: at.Joining, TableRow: rev, Seq: m.Seq, BrickEpoch: epoch})
		s.told[id] = a.Placement
	}
	if len(all) > 0 {
		s.step(lease.Assignments{All: all})
	}
	for _, id := range slices.SortedFunc(maps.Keys(s.told), comparePartitions) {
		if wanted[id] || id.Table != s.table {
			continue
		}
		s.step(lease.Unassigned{Partition: id})
		delete(s.told, id)
		s.record(id).placement = 0
		if _, ok := m.ByID(id.ID); !ok {
			s.garbage[id] = true
		}
	}
}

// handOver ends a split that began, if the partition is led here: it is sealed, and when nothing is under way any more its
// halves take over. Where that fails it takes rows again.
func (s *hosted) handOver(id lease.Partition, low point.PartitionID) {
	g := s.gate(id)
	if _, ok := s.mayAct(id); !ok || g.handing || g.sealed {
		return
	}
	g.handing, g.sealed = true, true
	s.quiesce(id, func(empty bool) {
		if _, ok := s.mayAct(id); !ok || !empty {
			g.handing, g.sealed = false, false
			return
		}
		s.change(s.w.propose(s.view, []topology.Op{topology.SplitFinalize{Partition: id.ID, Low: low}}), func(a changedAnswer) {
			// Should it have been committed all the same, a newer map says so.
			g.handing, g.sealed, g.doubt = false, a.err == nil, s.m.Seq
			if a.err != nil {
				s.w.mark(handOverFailed)
			} else {
				s.w.n.splits++
			}
		})
	})
}

// finish has a partition that unloads taken out of the map if it is led here and nothing was ever written to it.
func (s *hosted) finish(id lease.Partition) {
	if _, ok := s.machine.MayAct(id, s.clock()); !ok {
		return
	}
	s.quiesce(id, func(empty bool) {
		r := s.disk.copies[id]
		if _, ok := s.machine.MayAct(id, s.clock()); !ok || !empty || r != nil && !r.empty() {
			return
		}
		epoch, _ := s.machine.MayAct(id, s.clock())
		s.hold(id, epoch, func(ok bool) { // so that nobody takes it meanwhile by an older map
			if !ok {
				return
			}
			s.change(s.w.propose(s.view, []topology.Op{topology.UnloadFinal{Partition: id.ID}}), func(a changedAnswer) {
				if a.err == nil {
					s.w.n.finals++
				}
			})
		})
	})
}

// propose makes a transaction on the newest map of a view. Everything random in it is drawn here.
func (w *world) propose(v *view, ops []topology.Op) *peer.Change {
	c := &peer.Change{Table: v.table, Base: v.known.Row().Txn, Txn: w.txnID(), Ops: topology.EncodeOps(ops)}
	w.check.proposed[c.Txn] = ops
	return c
}

// forget drops what is known here of partitions that were dropped, once nobody holds them.
func (s *server) forget() {
	for _, id := range slices.SortedFunc(maps.Keys(s.garbage), comparePartitions) {
		m := s.on(id.Table).m
		if m == nil || m.Seq < s.disk.seen[id.Table] {
			continue
		}
		if _, there := m.ByID(id.ID); there {
			delete(s.garbage, id)
			continue
		}
		s.forgetOne(id, func() {
			delete(s.garbage, id)
			delete(s.records, id)
			delete(s.gates, id)
		})
	}
}

func (s *server) forgetOne(id lease.Partition, done func()) {
	key := lease.RowKey(id)
	s.get(key, storeTimeout, func(g got, ok bool) {
		if !ok {
			return
		}
		if led, err := lease.DecodeLease(g.row.Value); g.ok && (err != nil || led.State == lease.Held) {
			return
		}
		done() // the rows are the master's to sweep
	})
}
