package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/mapstore"
	"github.com/spillwaydb/spillway/metadata/master"
	"github.com/spillwaydb/spillway/metadata/registry"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/lead/rules"
)

// candidate is a storage server as candidate for master, and as the master: the product's machines decide (master.Hold, master.Rows,
// master.Plan, master.Work), and this performs their decisions as master.Runner does.
//
//	every candidate: the row "master" ─▶ Hold ─▶ a term begins
//	term: lease rows, heartbeats, registered servers, maps, sizes ─▶ Plan ─▶ Works ─▶ store, metadata servers
type candidate struct {
	*server
	hold master.Hold
	term *term // nil: it is not the master
}

// term is one time as master.
type term struct {
	*candidate
	rows    *master.Rows
	sizes   map[lease.Partition]master.Size
	dice    *rand.Rand
	over    bool
	busy    bool // a round is under way
	roundAt time.Duration
	last    []master.Step // the newest plan
	planned bool
}

// masterSettings draws the master's settings. Times are shorter than the product's, or nothing would move within a run.
func masterSettings(rng *rand.Rand) (s master.Settings) {
	either := func(a, b time.Duration) time.Duration { return []time.Duration{a, b}[rng.IntN(2)] }
	s.EmptyAfter, s.DeadAfter = either(4500*time.Millisecond, 10*time.Second), either(12*time.Second, 40*time.Second)
	s.SettleAfter, s.Every = either(2*time.Second, 10*time.Second), either(time.Second, 5*time.Second)
	s.Ahead, s.ClosedAfter = either(10*time.Minute, 2*time.Hour), either(10*time.Minute, time.Hour)
	s.SplitBytes, s.BalanceBytes = 6*rowBytes, -1
	if rng.IntN(2) == 0 {
		s.SplitBytes, s.BalanceBytes = -1, 2*rowBytes
	}
	s.MovesMax = []int{2, 64}[rng.IntN(2)]
	s.CreateMax = []int{1, 256}[rng.IntN(2)]
	s.DropMax = []int{256, 16_384}[rng.IntN(2)]
	s.RoomFrom = []int{6, 0}[rng.IntN(2)]
	if s.MergeFrom = -1; s.DropMax == 256 { // no draw of its own: runs and scripts are as they were
		s.MergeFrom, s.MergeInto = 2, [2]time.Duration{3 * time.Hour, 7 * time.Hour}
	}
	s.RestFor, s.HandedFor, s.MovedFor, s.BalanceRows = 10*time.Second, 20*time.Second, 20*time.Second, -1
	if s.DropMax == 16_384 {
		s.BalanceRows = 100
	}
	s.SetDefaults()
	return s
}

// rowBytes is the size of a row, for the master.
const rowBytes = 100

// dataNow is the time of the master's wall clock: some moment of the times that are written to, or a little later. It may stand, go
// fast, and be set back.
func (w *world) dataNow() point.Nanos {
	return (w.dataFrom + int64(w.now)*w.pace) % (int64(w.widths+4) * width)
}

func newCandidate(s *server) *candidate {
	return &candidate{server: s, hold: master.NewHold(master.Holder{Holder: s.id, Boot: s.self.Boot}, s.w.master)}
}

// stand has it try to become master.
func (c *candidate) stand() { c.after(c.w.spread(time.Second), "master's row", c.keep) }

// about gives d, more or less by a quarter.
func (w *world) about(d time.Duration) time.Duration {
	return d*3/4 + time.Duration(w.rng.Int64N(int64(d)/2+1))
}

// keep renews the row, or waits for it to grow old.
func (c *candidate) keep() {
	c.renew(func(ours bool) {
		pause := c.w.master.ActFor / 3
		if !ours {
			pause *= 2
		}
		c.after(c.w.about(pause), "master's row", c.keep)
	})
}

func (c *candidate) renew(done func(ours bool)) {
	timeout := c.w.master.ActFor / 2
	write := func() {
		next, rev, ok := c.hold.Want()
		if !ok {
			done(false)
			return
		}
		sent := c.clock()
		c.commit([]coord.Condition{{Key: master.Key, Revision: rev}}, []coord.Write{{Key: master.Key, Value: next.Encode()}}, timeout, func(x committed, ok bool) {
			if ok && x.ok {
				c.hold.Wrote(sent, c.clock(), next, x.rev)
				c.begin()
			} else {
				c.hold.Doubt()
			}
			done(true)
		})
	}
	if c.hold.Known() {
		write()
		return
	}
	c.get(master.Key, timeout, func(g got, ok bool) {
		if !ok {
			done(true)
			return
		}
		c.hold.Saw(c.clock(), g.row)
		write()
	})
}

func (c *candidate) may() bool { return c.hold.MayAct(c.clock()) }

// begin begins a term, if there is none.
func (c *candidate) begin() {
	if c.term != nil || !c.may() {
		return
	}
	c.w.mark(becameMaster)
	c.w.say("%s/%s is master", c.id, c.self.Boot)
	t := &term{candidate: c, rows: master.NewRows(c.clock, c.w.master.TakeAfter), dice: rand.New(rand.NewPCG(c.w.rng.Uint64(), 3))}
	c.term = t
	c.followWhile(func() bool { return !t.over }, lease.Prefix, func(l listed) { t.read(t.rows.Listed(l.rows, l.rev)) },
		func(events []coord.Event) { t.read(t.rows.Changed(events)) })
	t.tick()
	t.askSizes()
}

func (t *term) read(err error) {
	if err != nil {
		t.w.fail("the master cannot read the lease table: %v", err)
	}
}

// tick looks whether this is still the master, and whether a round is due.
func (t *term) tick() {
	if t.over = t.over || !t.may(); t.over {
		if t.busy { // work under way ends first
			t.after(t.w.master.ActFor/10, "master", t.tick)
			return
		}
		t.term = nil
		t.w.mark(masterNoMore)
		t.begin()
		return
	}
	t.after(t.w.master.ActFor/10, "master", t.tick)
	if !t.rows.Quiet() {
		t.round()
		return
	}
	t.list(lease.BeatPrefix, t.w.master.ActFor/3, func(l listed, ok bool) {
		if ok {
			t.rows.BeatsRead(l.rows)
			t.round()
		}
	})
}

// round looks, plans and carries out, if it is time.
func (t *term) round() {
	if t.busy || t.over || !t.rows.Ready() || t.clock() < t.roundAt {
		return
	}
	t.busy = true
	for _, row := range t.rows.OldFences() {
		t.w.mark(fenceLeftBehind)
		t.commit([]coord.Condition{{Key: row.Key, Revision: row.Revision}}, []coord.Write{{Key: row.Key, Delete: true}}, storeTimeout, func(committed, bool) {})
	}
	t.list(mapstore.Prefix, storeTimeout, func(l listed, ok bool) {
		s := t.look()
		if ok {
			s.DroppedBy(l.rows)
			s.MetadataBy(l.rows)
		}
		if t.w.opt.broken == planByOthers {
			s.Leases = misled(s.Leases, s.Tables)
		}
		t.last, t.planned = master.Plan(s, t.w.master, t.dice), true
		t.carryOut(master.Works(s.Tables, t.last, t.rows, true))
	})
}

// look gathers the input of a plan.
func (t *term) look() master.State {
	s := master.State{Now: t.w.dataNow(), Sizes: t.sizes}
	for _, table := range t.w.tables {
		if h := t.on(table); h.m != nil && !h.row.Dropped {
			s.Tables = append(s.Tables, h.m)
		}
	}
	var servers []registry.Server
	for _, o := range t.w.servers {
		if row, ok := t.registered[o.id]; ok {
			servers = append(servers, row)
		}
	}
	t.rows.Fill(&s, servers)
	return s
}

// carryOut performs Works until all have ended; then the next round may come.
func (t *term) carryOut(works []*master.Work) {
	open := len(works)
	end := func() {
		t.busy, t.roundAt = false, t.clock()+t.w.about(t.w.master.Every)
	}
	if open == 0 {
		end()
		return
	}
	for _, w := range works {
		for _, p := range w.Fenced() {
			t.w.fenced[p] = t.w.now + 2*time.Minute
		}
		x := &working{term: t, Work: w}
		x.ended = func() {
			if open--; open == 0 {
				end()
			}
		}
		x.step(master.Begin{})
	}
}

// sizesEvery is how often all servers are asked for the sizes of their partitions.
const sizesEvery = 10 * time.Second

// askSizes keeps the sizes of partitions, as their servers report them. Of a partition that several hold, the largest answer counts.
func (t *term) askSizes() {
	if t.over {
		return
	}
	sizes, open := map[lease.Partition]master.Size{}, len(t.w.servers)
	for at := range t.w.servers {
		ask(t.proc, at, 5*time.Second, "sizes", func(answer func(map[lease.Partition]master.Size)) { answer(t.w.servers[at].sizes()) }, func(reported map[lease.Partition]master.Size, ok bool) {
			for id, s := range reported { // each into a place of its own: the order does not matter
				if s.Rows >= sizes[id].Rows {
					sizes[id] = s
				}
			}
			if open--; open == 0 {
				if !t.over {
					t.sizes = sizes
				}
				t.after(t.w.about(sizesEvery), "sizes", t.askSizes)
			}
		})
	}
}

// sizes is the content of a server, as it reports it.
func (s *server) sizes() map[lease.Partition]master.Size {
	out := map[lease.Partition]master.Size{}
	for id, r := range s.disk.copies { // each into a place of its own
		size := master.Size{Bytes: int64(len(r.rows)) * rowBytes, Rows: uint64(len(r.rows))}
		first := true
		for key := range r.rows {
			t := s.w.history.keys[key].t
			if first {
				size.MinTime, size.MaxTime, first = t, t, false
			}
			size.MinTime, size.MaxTime = min(size.MinTime, t), max(size.MaxTime, t)
		}
		out[id] = size
	}
	return out
}

// misled names as holders, of every partition with rows, the servers that do not hold it: for a broken rule.
func misled(rows map[lease.Partition]lease.Lease, tables []*topology.Map) map[lease.Partition]lease.Lease {
	for _, m := range tables {
		for p := range m.All() {
			id := lease.Partition{Table: m.Table, ID: p.ID}
			l, ok := rows[id]
			if !ok || l.Empty || len(p.Placements) < 2 {
				continue
			}
			for _, pl := range p.Placements {
				if !slices.ContainsFunc(l.InSync, func(m lease.Member) bool { return m.Placement == pl.ID }) {
					l.InSync = []lease.Member{{Placement: pl.ID, Server: pl.Server}}
					rows[id] = l
					break
				}
			}
		}
	}
	return rows
}

// working performs the effects of a Work.
type working struct {
	*term
	*master.Work
	doubt bool // a fence may stand although the Work does not say so
	ended func()
}

func (x *working) step(in master.Input) {
	now, effects := x.w.wall(), []master.Effect(nil)
	if !x.may() {
		x.w.mark(masterLostAtWork)
		effects = x.Step(now, master.Lost{}, effects)
	}
	for _, e := range x.Step(now, in, effects) {
		x.perform(e)
	}
}

func (x *working) perform(e master.Effect) {
	switch e := e.(type) {
	case master.Read:
		x.readRows(e, nil)
	case master.Commit:
		x.commitRows(e)
	case master.Change:
		x.change(e)
	case master.ChangeMapServer:
		txn := mapstore.NewJoin(e.Table, e.MapServer.Server)
		if e.MapServer.Leave {
			txn = mapstore.NewRemove(e.Table, e.MapServer.Server)
		}
		x.on(e.Table).run(txn, func(d mapstore.Done) { x.step(master.Changed{ID: e.ID, Err: d.Err}) })
	case master.DropTable:
		x.dropTable(e)
	case master.Wait:
		x.after(e.For, "wait", func() { x.step(master.Waited{ID: e.ID}) })
	case master.Report:
		x.doubt = x.doubt || e.Err != nil && fault.Is(e.Err, fault.Unavailable)
		x.w.say("the master %s: %s: %v", x.id, e.Step.What, e.Err)
		if e.Err == nil {
			x.w.markStep(e.Step)
		}
	case master.Ended:
		for _, p := range x.Fenced() {
			if x.doubt || len(e.Left) > 0 { // a later master finds it when it is old
				x.w.fenced[p] = x.w.now + 2*time.Minute
			} else {
				delete(x.w.fenced, p)
			}
		}
		x.ended()
	}
}

func (x *working) readRows(e master.Read, rows []coord.Row) {
	if len(rows) == len(e.Keys) {
		x.step(master.RowsRead{ID: e.ID, Rows: rows})
		return
	}
	key := e.Keys[len(rows)]
	x.get(key, storeTimeout, func(g got, ok bool) {
		switch {
		case !ok:
			x.step(master.RowsRead{ID: e.ID, Err: errSilent})
		case !g.ok:
			x.readRows(e, append(rows, coord.Row{Key: key}))
		default:
			x.readRows(e, append(rows, g.row))
		}
	})
}

func (x *working) commitRows(e master.Commit) {
	conditions := e.Conditions
	if x.w.opt.broken == moveBlind {
		conditions = nil
	}
	x.after(x.thinks(), "commit of the master", func() {
		x.commit(conditions, e.Writes, storeTimeout, func(c committed, ok bool) {
			in := master.Committed{ID: e.ID, Revision: c.rev, OK: c.ok}
			switch {
			case !ok:
				x.w.mark(moveUnknown)
				in = master.Committed{ID: e.ID, Err: errSilent}
			case !c.ok:
				x.w.mark(moveConflict)
			}
			x.step(in)
		})
	})
}

// thinks is how long a master may need from observation to action.
func (x *working) thinks() time.Duration {
	if x.w.chance(10) {
		return x.w.spread(2 * time.Second)
	}
	return time.Millisecond
}

// change proposes ops on the very map they were planned on, anew where their result is unknown, until there is no more time.
func (x *working) change(e master.Change) {
	h, over := x.on(e.Table), false
	end := func(seq uint64, err error) {
		if !over {
			over = true
			x.step(master.Changed{ID: e.ID, Seq: seq, Err: err})
		}
	}
	x.after(changeTimeout, "the master gives up", func() { end(0, errSilent) })
	var plan func()
	again := func() {
		h.refresh()
		x.after(x.w.spread(50*time.Millisecond), "plan again", plan)
	}
	plan = func() {
		switch {
		case over:
			return
		case h.m == nil || h.m.Seq != h.row.Seq:
			again()
			return
		case h.m.Seq != e.Seq:
			end(0, fault.Errorf(fault.Stale, "planned on another map"))
			return
		}
		next, err := h.m.Apply(e.Ops...)
		switch {
		case err != nil:
			end(0, err)
			return
		case h.row.Dropping && next.NextID != h.m.NextID:
			end(0, fault.Errorf(fault.Unavailable, "the table is being dropped"))
			return
		}
		c := x.w.propose(h.view, e.Ops)
		x.w.check.byMaster[c.Txn] = true
		to := x.w.indexOf(h.row.Servers[x.w.rng.IntN(len(h.row.Servers))])
		ask(x.proc, to, txnStore, "change", func(answer func(changedAnswer)) { x.w.servers[to].change(c, answer) }, func(a changedAnswer, ok bool) {
			switch {
			case ok && a.err == nil:
				x.w.check.reportedCommitted(c.Txn, a.changed)
				end(a.changed.Seq, nil)
				return
			case ok && fault.Is(a.err, fault.Invalid):
				x.w.check.reportedAborted(c.Txn)
				end(0, a.err)
				return
			case ok && fault.Is(a.err, fault.NotFound):
				end(0, a.err)
				return
			case ok && fault.Is(a.err, fault.Stale):
				x.w.check.reportedAborted(c.Txn)
			}
			again()
		})
	}
	plan()
}

// dropTable ends the drop of a table that has no partitions any more.
func (x *working) dropTable(e master.DropTable) {
	h := x.on(e.Table)
	if h.m == nil || h.m.Seq != h.row.Seq || h.m.Len() > 0 || !h.row.Dropping {
		x.after(time.Millisecond, "not dropped", func() { x.step(master.Changed{ID: e.ID, Err: fault.Errorf(fault.Stale, "it has partitions")}) })
		return
	}
	x.w.mark(droppedByAnother)
	h.run(mapstore.NewDrop(e.Table, h.row.Txn), func(d mapstore.Done) { x.step(master.Changed{ID: e.ID, Err: d.Err}) })
}

// isFenced reports whether the master keeps the partition off a server already, or may: for the world, not for its operators.
func (w *world) isFenced(id lease.Partition) bool {
	return w.now < w.fenced[id] || slices.ContainsFunc(w.servers, func(s *server) bool {
		row, ok := w.store.get(lease.ProhibitKey(id, s.id))
		return ok && isFence(row)
	})
}

// nothingPlanned reports whether a master has looked since all was well, and found nothing to do but repairs that only people can make.
func (w *world) nothingPlanned() (why string) {
	for _, s := range w.servers {
		if s.dead || s.candidate.term == nil || !s.candidate.may() {
			continue
		}
		t := s.candidate.term
		for _, step := range t.last {
			if step.Kind != master.Alarm {
				return "the master would " + step.What + ": " + step.Why
			}
		}
		if t.planned && !t.busy {
			return t.uneven()
		}
	}
	return "no master has looked"
}

// uneven returns a lead that would be handed over, or a copy that would be moved for load, if none had been so lately, or is being moved; "": there is none.
func (t *term) uneven() string {
	if t.w.opt.Crowded && t.w.now-t.w.healedAt < 90*time.Second {
		return "loads are not known yet"
	}
	s := t.look()
	s.Handed, s.Moved = nil, nil
	for i, srv := range s.Servers {
		s.Servers[i].Unfilled = nil
		for _, m := range srv.Moves {
			return fmt.Sprintf("p%d of %s is moving from %s to %s: %s", m.Partition, m.Table, srv.ID, m.To, m.Note.Reason)
		}
	}
	for _, step := range master.Plan(s, t.w.master, rand.New(rand.NewPCG(1, 1))) {
		if step.Kind == master.Lead || step.Relief != nil {
			return "loads are uneven: the master would " + step.What + ": " + step.Why
		}
	}
	return ""
}

// accepted returns the rows that the partitions here have accepted, which are their loads. Their rates follow from their ids, and a few are a hundred times those of others: the rows that
// clients write are too few to be a load.
func (s *server) accepted() (in rules.Accepted) {
	rates := [...]uint64{2000, 40, 700, 0, 20, 150, 0}
	for _, table := range s.w.tables {
		m := s.on(table).m
		if m == nil {
			continue
		}
		for p := range m.All() {
			if rate := rates[uint64(p.ID)%uint64(len(rates))]; rate > 0 {
				in.All = append(in.All, rules.Count{Partition: lease.Partition{Table: table, ID: p.ID}, Rows: rate * uint64(s.w.now/time.Second)})
			}
		}
	}
	return in
}

// isFence reports whether a prohibition is a master's.
func isFence(row coord.Row) bool {
	var note lease.Note
	return json.Unmarshal(row.Value, &note) == nil && note.Who == master.Fencer
}

// Registered servers.

// register writes the server's row, keeping the operators' settings in it, and watches those of all.
func (s *server) register() {
	key := registry.Key(s.id)
	again := func() { s.after(s.w.spread(time.Second), "register", s.register) }
	s.get(key, storeTimeout, func(g got, ok bool) {
		if !ok {
			again()
			return
		}
		row := registry.Server{ID: s.id, Addr: string(s.id) + ":1", Host: string(s.id), Zone: s.w.zone(s.id), Store: s.disk.id, Copies: copiesOf[s.w.copies()], Slices: !s.older, Since: s.w.wall()}
		if old, err := registry.Decode(g.row); g.ok && err == nil {
			if row.Drain, row.Moves, row.Unfilled = old.Drain, old.Moves, old.Unfilled; old.Store == row.Store {
				row.Since, row.Staging = old.Since, old.Staging
			}
		}
		s.commit([]coord.Condition{{Key: key, Revision: g.row.Revision}}, []coord.Write{{Key: key, Value: row.Encode()}}, storeTimeout, func(c committed, ok bool) {
			if !ok || !c.ok {
				again()
			}
		})
	})
}

var copiesOf = map[bool]string{true: registry.CopiesOn, false: registry.CopiesOff}

// zone is the zone of a server: in half of the runs there are two zones.
func (w *world) zone(id topology.ServerID) string {
	if !w.zones {
		return ""
	}
	return fmt.Sprintf("z%d", w.indexOf(id)%2)
}

// sees records the row of a server. A drained server hands its leases over.
func (s *server) sees(row coord.Row) {
	srv, err := registry.Decode(row)
	if err != nil {
		s.w.fail("the row of a server cannot be read: %v", err)
		return
	}
	s.registered[srv.ID] = srv
	s.decide(rules.Servers{All: s.placeable()})
	if on := srv.Drain != nil; srv.ID == s.id && on != s.drained {
		s.drained = on
		s.step(lease.Drain{On: on})
	}
}

// placeable is the registered servers as the rules see them, in order.
func (s *server) placeable() (all []rules.Server) {
	for _, srv := range s.registered {
		all = append(all, rules.Server{ID: srv.ID, Host: srv.Host, Copies: srv.Copies == registry.CopiesOn, Leaves: srv.Drain != nil})
	}
	slices.SortFunc(all, func(a, b rules.Server) int { return cmp.Compare(a.ID, b.ID) })
	return all
}

// drain has an operator drain a server for a while.
func (g *gateway) drain(id topology.ServerID, on bool) {
	key := registry.Key(id)
	again := func() {
		if !on {
			g.after(time.Second, "drain", func() { g.drain(id, on) })
		}
	}
	g.get(key, storeTimeout, func(x got, ok bool) {
		row, err := registry.Decode(x.row)
		if !ok || !x.ok || err != nil {
			again()
			return
		}
		row.Drain = nil
		if on && g.w.healed {
			return
		}
		if on {
			g.w.mark(drained)
			row.Drain = &lease.Note{Who: "ann", Reason: "a new disk"}
		}
		g.commit([]coord.Condition{{Key: key, Revision: x.row.Revision}}, []coord.Write{{Key: key, Value: row.Encode()}}, storeTimeout, func(c committed, ok bool) {
			switch {
			case on: // or not
				g.after(g.w.spread(40*time.Second), "undrain", func() { g.drain(id, false) })
			case !ok || !c.ok:
				again()
			}
		})
	})
}
