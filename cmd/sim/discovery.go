package main

import (
	"fmt"
	"slices"
	"time"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/mapstore"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/chain"
	"github.com/spillwaydb/spillway/storage/gate"
	"github.com/spillwaydb/spillway/storage/lead/rules"
)

// mapChanged gathers changes of the map for a moment, then has the machine of storage/lead look at it.
func (s *hosted) mapChanged() {
	if !s.batching {
		s.batching = true
		s.after(50*time.Millisecond, "reconcile", func() {
			s.batching = false
			if s.lead.Wants(s.table, s.m, s.mapRev) {
				s.discover(false, s.table)
			}
		})
	}
}

// discover gives the machine the cached maps and the placements that are here.
func (s *server) discover(full bool, tables ...string) {
	in := rules.Round{Full: full}
	held := s.disk.held()
	for _, name := range tables {
		h := s.on(name)
		t := rules.Table{Name: name, Map: h.m, Row: h.mapRev}
		if h.m != nil && !s.older {
			t.Txn = h.view.known.Row().Txn
		}
		for _, id := range held {
			if id.Table == name {
				r := s.disk.copies[id]
				t.Held = append(t.Held, rules.Held{Partition: id.ID, Placement: r.placement, Empty: r.empty()})
			}
		}
		if h.mapRev > 0 {
			in.Tables = append(in.Tables, t)
		}
	}
	s.decide(in)
}

// decide has the machine handle an input, and performs its effects, in order.
func (s *server) decide(in rules.Input) {
	s.effects = s.lead.Step(s.clock(), in, s.effects)
	if s.performing {
		return // the results of an effect come after the waiting effects
	}
	s.performing = true
	for i := 0; i < len(s.effects); i++ { // it grows meanwhile
		s.do(s.effects[i])
	}
	clear(s.effects)
	s.effects = s.effects[:0]
	s.performing = false
	s.leadWake.stop()
	s.leadWake = s.after(max(s.lead.Wake()-s.clock(), time.Millisecond), "lead", func() { s.decide(rules.Tick{}) })
}

// do performs one effect, as storage/lead's runner does.
func (s *server) do(e rules.Effect) {
	switch e := e.(type) {
	case rules.Assign:
		for i, a := range e.All {
			if c := s.disk.copies[a.Partition]; c != nil && c.placement == a.Placement {
				e.All[i].BrickEpoch = c.epoch
			}
		}
		s.step(lease.Assignments{All: e.All})
	case rules.LeaseInput:
		s.step(e.Input)
	case rules.Seal:
		s.gate(e.Partition).Seal()
	case rules.Open:
		s.gate(e.Partition).Open()
	case rules.HandOver:
		s.gate(e.Partition).HandOver()
	case rules.TakeBack:
		s.gate(e.Partition).TakeBack()
	case rules.Doubt:
		g := s.gate(e.Partition)
		g.Doubt(e.Seq)
		g.doubted = max(g.doubted, e.Seq)
	case rules.Settle:
		g := s.gate(e.Partition)
		g.Settle(e.Seq)
		g.doubted = 0
		s.w.mark(ruledOut)
	case rules.Unload:
		s.setUnload(e)
	case rules.Forget:
		delete(s.gates, e.Partition)
		delete(s.acts, e.Partition)
	case rules.Listed:
		if x := s.links[e.Partition]; x != nil {
			x.step(chain.ListSet{Ask: e.Ask, OK: e.OK, Epoch: e.Epoch, List: e.List})
		}
	case rules.Changed:
		if s.kept(e.Partition) {
			s.looksAtChains()
		}
		waiting := s.waiting[e.Partition]
		delete(s.waiting, e.Partition)
		for _, f := range waiting {
			s.after(20*time.Microsecond, "look again", f)
		}
	case rules.Alarmed:
		if r := s.disk.copies[e.Partition]; r != nil {
			s.w.mark(keptOnlyCopy)
			if s.w.opt.broken == alarmRemoves {
				s.remove(e.Partition, r.placement, e.Why)
			}
		}
	case rules.Note:
		switch e.What {
		case rules.SplitDone:
			s.w.n.splits++
		case rules.UnloadDone:
			s.w.n.finals++
		case rules.AttemptFailed:
			s.w.mark(handOverFailed)
		}
	default:
		s.answer(e)
	}
}

// answer finds the answer to a question of the machine: of the disk, the store or other servers.
func (s *server) answer(e rules.Effect) {
	switch e := e.(type) {
	case rules.Quiesce:
		s.quiesce(e.Partition, e.Within, func(idle bool) {
			r := s.disk.copies[e.Partition]
			s.decide(rules.Quiet{ID: e.ID, OK: idle, Empty: r == nil || r.empty()})
		})
	case rules.Ready:
		s.ready(e)
	case rules.Propose:
		s.handOver(e)
	case rules.RuleOut:
		s.ruleOut(e)
	case rules.ReadLease:
		s.get(lease.RowKey(e.Partition), storeTimeout, func(g got, ok bool) {
			s.decide(rules.LeaseRead{ID: e.ID, OK: ok, Found: g.ok, Row: g.row})
		})
	case rules.GuardLease:
		key := lease.RowKey(e.Partition)
		conditions, writes := []coord.Condition{{Key: key, Revision: e.Revision}}, []coord.Write{{Key: key, Value: e.Lease.Encode()}}
		s.commit(conditions, writes, storeTimeout, func(committed, bool) { s.decide(rules.LeaseGuarded{ID: e.ID}) })
	case rules.Record:
		if s.disk.isFull(s.w) {
			s.after(time.Millisecond, "not recorded", func() { s.decide(rules.Recorded{ID: e.ID}) })
			return
		}
		for _, x := range e.Seqs {
			s.disk.see(x.Table, peer.Acted{Txn: x.Txn, Seq: x.Seq})
		}
		s.disk.sync(s.proc, nil, func() { s.decide(rules.Recorded{ID: e.ID, OK: true}) })
	case rules.RemovePlacement:
		if r := s.disk.copies[e.Partition]; r != nil && r.placement == e.Placement {
			if e.IfEmpty && !r.empty() {
				s.decide(rules.Removed{ID: e.ID})
				return
			}
			s.remove(e.Partition, e.Placement, e.Why)
		}
		s.decide(rules.Removed{ID: e.ID, OK: true})
	default:
		panic(fmt.Sprintf("no effect %T", e))
	}
}

func (s *server) remove(id lease.Partition, placement point.PlacementID, why string) {
	s.w.say("%s removes %s, placement %d: %s", s.id, id, placement, why)
	s.disk.remove(id)
	s.unlink(id)
	s.disk.sync(s.proc, nil, func() {})
	delete(s.gates, id)
	s.w.n.removed++
	s.w.mark(removedDropped)
}

// ready asks all metadata servers of a table whether they are there.
func (s *server) ready(e rules.Ready) {
	servers, good, over := s.on(e.Table).row.Servers, 0, false
	end := func(ok bool) {
		if !over {
			over = true
			s.decide(rules.Answered{ID: e.ID, OK: ok})
		}
	}
	s.after(e.Within, "not ready", func() { end(false) })
	for _, id := range servers {
		ask(s.proc, s.w.indexOf(id), e.Within, "ready", func(answer func(bool)) { answer(true) }, func(there, ok bool) {
			if ok && there {
				good++
			}
			if 2*good > len(servers) {
				end(true)
			}
		})
	}
}

// handOver proposes the end of a split or an unload, as metadata/tables does: on the newest map, anew where another change was
// faster, until the machine gives it up.
func (s *server) handOver(e rules.Propose) {
	h, over, began := s.on(e.Partition.Table), false, s.clock()
	in := rules.Proposed{ID: e.ID}
	end := func(ok bool) {
		if !over {
			over, in.OK = true, ok
			s.decide(in)
		}
	}
	s.after(e.Within, "gives up", func() { end(false) })
	var plan func()
	again := func() { s.after(s.w.spread(50*time.Millisecond), "plan again", plan) }
	plan = func() {
		if over && (s.w.opt.broken != plansLate || s.clock()-began > changeTimeout) {
			return
		}
		if h.m == nil || h.m.Seq != h.row.Seq {
			again()
			return
		}
		_, leads := s.mayAct(e.Partition)
		ops, err := e.Plan(h.m, leads)
		if err != nil || len(ops) == 0 {
			end(err == nil)
			return
		}
		in.Base = max(in.Base, h.m.Seq)
		c := s.w.propose(h.view, ops)
		if e.Low != 0 {
			s.w.check.handsOver(c.Txn, s, e.Partition)
		}
		to := s.w.indexOf(h.row.Servers[s.w.rng.IntN(len(h.row.Servers))])
		ask(s.proc, to, txnStore, "change", func(answer func(changedAnswer)) {
			s.w.servers[to].on(c.Table).change(c, answer)
		}, func(a changedAnswer, ok bool) {
			switch {
			case ok && a.err == nil:
				s.w.check.reportedCommitted(c.Txn, a.changed)
				end(true)
				return
			case ok && fault.Is(a.err, fault.Stale):
				s.w.check.reportedAborted(c.Txn)
			}
			h.refresh()
			again()
		})
	}
	plan()
}

// ruleOut begins a new round of proposals.
func (s *server) ruleOut(e rules.RuleOut) {
	over, v := false, s.on(e.Table).view
	end := func(ok bool, seq uint64) {
		if !over {
			over = true
			s.decide(rules.RuledOut{ID: e.ID, OK: ok, Seq: seq})
		}
	}
	if s.w.opt.broken == notRuledOut {
		s.after(time.Millisecond, "pretends to rule out", func() { end(true, v.row.Seq) })
		return
	}
	s.after(e.Within, "not ruled out", func() { end(false, 0) })
	v.run(mapstore.NewRuleOut(e.Table), func(d mapstore.Done) { end(d.Err == nil, d.Row.Seq) })
}

// propose makes a transaction on the newest map of a view. Everything random in it is drawn here.
func (w *world) propose(v *view, ops []topology.Op) *peer.Change {
	c := &peer.Change{Table: v.table, Base: v.row.Txn, Txn: w.txnID(), Ops: topology.EncodeOps(ops), Round: v.round()}
	w.check.proposed[c.Txn] = ops
	return c
}

// door is a partition's gate, with the waiters for it to be idle.
type door struct {
	gate.Gate
	idle    []func() // called once, when no change is under way
	doubted uint64   // as of the last Doubt that was not settled: for a mark
}

func (d *door) enter(w *world) bool {
	ok := d.Enter()
	if !ok {
		w.mark(sealedRefused)
	}
	return ok
}

func (s *server) gate(id lease.Partition) *door {
	g := s.gates[id]
	if g == nil {
		g = &door{}
		s.gates[id] = g
	}
	return g
}

func (d *door) leave() {
	if d.Leave() {
		idle := d.idle
		d.idle = nil
		for _, f := range idle {
			f()
		}
	}
}

// quiesce calls f when no change of a partition is under way, or with false when that lasts too long.
func (s *server) quiesce(id lease.Partition, within time.Duration, f func(idle bool)) {
	g, over := s.gate(id), false
	end := func(idle bool) {
		if !over {
			over = true
			f(idle)
		}
	}
	if g.Idle() {
		s.after(time.Millisecond, "quiet", func() { end(true) })
		return
	}
	g.idle = append(g.idle, func() { end(true) })
	s.after(within, "not quiet", func() { end(false) })
}

// mayAct is called before and after every change of state (C105).
func (s *server) mayAct(id lease.Partition) (point.Epoch, bool) {
	if epoch, ok := s.machine.MayAct(id, s.clock()); ok {
		return epoch, true
	}
	epoch, goesOn := s.lead.Led(id)
	if epoch == 0 {
		return 0, false
	}
	if s.w.opt.broken == validFromAnswer && goesOn {
		return epoch, s.clock() < lease.Time(float64(s.answered-s.origin)*s.rate)+3*time.Second
	}
	return epoch, s.w.now < s.rogue
}

// mayWrite reports whether rows may be acked: by a good lease, or, while the store is away, because this placement alone is in sync.
func (s *server) mayWrite(id lease.Partition) (point.Epoch, bool) {
	if epoch, ok := s.mayAct(id); ok {
		return epoch, true
	}
	epoch, ok := s.lead.Alone(id)
	return epoch, ok && !s.machine.Status().Good
}

func (s *server) leads(e lease.Leads) {
	s.w.say("%s/%s leads %s at epoch %d, in sync %d", s.id, s.self.Boot, e.Partition, e.Epoch, len(e.Lease.InSync))
	if epoch, goesOn := s.lead.Led(e.Partition); goesOn && epoch == e.Epoch {
		s.w.mark(leadsAfterLapse)
	}
	s.listed[e.Partition] = e.Lease
	s.decide(rules.LeaseBegan{Leads: e})
	s.w.check.leads(s, e.Partition)
}

func (s *server) stops(e lease.Stops) {
	s.w.n.stops++
	s.w.say("%s/%s stops %s: %s", s.id, s.self.Boot, e.Partition, e.Why)
	if e.Lapsed {
		s.w.mark(lapsed)
	}
	s.decide(rules.LeaseEnded{Stops: e})
}

// holdTimeout bounds how long a first row waits for the in-sync list.
const holdTimeout = 2 * time.Second

// hold returns when no other placement can acquire the partition: before the first row of an epoch is acked.
func (s *server) hold(id lease.Partition, epoch point.Epoch, done func(ok bool)) {
	over := false
	end := func(ok bool) {
		if !over {
			over = true
			done(ok)
		}
	}
	limit := s.after(holdTimeout, "not held", func() { end(false) })
	var look func()
	look = func() {
		if over {
			return
		}
		broken := s.w.opt.broken == noHold || s.w.opt.broken == markStays && s.single(id, epoch)
		if !broken {
			s.decide(rules.Want{Partition: id, Epoch: epoch, Placed: s.machine.Placed(id)})
		}
		held, past := s.lead.Holding(id, epoch)
		_, _, short := s.lead.Short(id, s.machine.Placed(id))
		switch {
		case held || broken:
			limit.stop()
			end(true)
		case short && !broken:
			s.w.mark(tooFewLive)
			limit.stop()
			end(false)
		case past:
			s.w.mark(holdFailed)
			limit.stop()
			end(false)
		default:
			s.waiting[id] = append(s.waiting[id], look)
		}
	}
	look()
}

// single reports whether this server alone is in sync, whatever else the row says: for a broken rule.
func (s *server) single(id lease.Partition, epoch point.Epoch) bool {
	l := s.listed[id]
	return l.Epoch == epoch && len(l.InSync) == 1 && slices.ContainsFunc(l.InSync, func(m lease.Member) bool { return m.Server == s.id })
}
