package main

import (
	"maps"
	"slices"
	"time"

	"github.com/spillwaydb/spillway/gateway/follow"
	"github.com/spillwaydb/spillway/gateway/staged"
	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/mapstore"
	"github.com/spillwaydb/spillway/metadata/registry"
	"github.com/spillwaydb/spillway/metadata/tables"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
)

// gateway is a process that keeps nothing: it sends rows to the leaders by its view, asks for them back, and proposes
// changes of the map through any server.
type gateway struct {
	*proc
	views *views
	rows  map[lease.Partition]lease.Lease
	store map[topology.ServerID]lease.StoreID // by heartbeat rows

	open    int // rows under way
	unacked map[uint64]row
	last    line   // result of the last try of a row that was not acked
	changes int    // changes under way
	work    string // the table that is dropped or made by this gateway

	writes, reads follow.Policy
	following     []*following                    // requests that wait
	received      map[topology.ServerID]time.Time // when a server last answered anything
	silent        []func() bool                   // questions without an answer for long: each looks at the leaders, and returns true when it is over
	stamped       point.Stamp

	// Staging.
	registered   map[topology.ServerID]registry.Server
	registeredAt map[string]coord.Revision
	provenAt     lease.Time
	beats        map[topology.ServerID]lease.Time
	staged       *staged.View
	absence      follow.Absence

	ahead time.Duration // of its wall clock
}

const (
	width      = int64(time.Hour)
	rowsOpen   = 8
	insertTime = 2 * time.Second
)

func (g *gateway) start() {
	g.writes, g.reads = follow.Writes(5*time.Second, false), follow.Reads(2*time.Second)
	g.received = map[topology.ServerID]time.Time{}
	g.rows, g.store = map[lease.Partition]lease.Lease{}, map[topology.ServerID]lease.StoreID{}
	g.registered, g.registeredAt, g.beats = map[topology.ServerID]registry.Server{}, map[string]coord.Revision{}, map[topology.ServerID]lease.Time{}
	if g.w.stages {
		g.writes.StageAfter = follow.SilenceMax
		g.staged = staged.New(atStaging{g}, g.isLive, true)
		g.followRegistry()
	}
	g.views = &views{p: g.proc, of: map[string]*view{}, made: func(v *view) { v.changed = g.looks }}
	g.views.follow()
	g.follow(lease.Prefix, func(l listed) {
		clear(g.rows)
		for _, row := range l.rows {
			g.learn(row, false)
		}
		g.looks()
	}, func(events []coord.Event) {
		for _, e := range events {
			g.learn(e.Row, e.Deleted)
		}
		g.looks()
	})
	if g.w.opt.scripted {
		g.every(time.Second, "refresh", g.views.refresh)
		return
	}
	g.every(150*time.Millisecond, "write", func() {
		if !g.w.calm && g.open < rowsOpen {
			g.open++
			g.w.n.rows++
			in := g.w.history.draw()
			g.unacked[in.value] = in
			g.write(g.views.at(g.w.history.keys[in.key].table), in)
		}
	})
	g.every(400*time.Millisecond, "select", g.sel)
	g.every(1500*time.Millisecond, "propose", func() {
		v := g.any()
		switch {
		case g.w.calm || g.changes >= 4 || v.m == nil:
		case g.w.chance(40): // the master's turn
		default:
			g.change(v, g.draw(v))
		}
	})
	g.every(2*time.Second, "look after", func() {
		for _, table := range g.w.tables {
			g.lookAfter(g.views.at(table))
		}
	})
	g.every(time.Second, "refresh", g.views.refresh)
	g.every(time.Second, "tables", func() {
		g.tables()
		g.demand()
	})
}

// stamp gives the rank of rows that come now, by the gateway's own clock, never one twice.
func (g *gateway) stamp() point.Stamp {
	now := uint64(g.w.wall().Add(g.ahead).UnixNano())
	g.stamped = max(point.Stamp(now), g.stamped+rankStep)&^(rankStep-1) | point.Stamp(g.node)
	return g.stamped
}

// any draws a table.
func (g *gateway) any() *view { return g.views.at(g.w.tables[g.w.rng.IntN(len(g.w.tables))]) }

// isBeat reports whether a change of a heartbeat row is a sign of life.
func (s *store) isBeat(e coord.Event) bool {
	if e.Deleted {
		return false
	}
	b, err := s.beat(e.Key, e.Value)
	return err == nil && !b.Missing
}

func (g *gateway) learn(row coord.Row, gone bool) {
	if s, ok := lease.ParseBeatKey(row.Key); ok && !gone {
		if b, err := g.w.store.beat(row.Key, row.Value); err == nil && !b.Missing {
			g.beats[s], g.store[s] = g.clock(), b.Store
		}
	}
	if p, ok := lease.ParseRowKey(row.Key); ok {
		if gone {
			delete(g.rows, p)
		} else if l, err := g.w.store.lease(row.Key, row.Value); err == nil {
			g.rows[p] = l
		}
	}
}

// change proposes ops, the same transaction again and again, until its result is known.
func (g *gateway) change(v *view, ops []topology.Op) {
	if len(ops) > 0 {
		g.changeAnd(v, ops, func(error) {})
	}
}

// changeAnd is change, and done gets its result: nil, an error that says that it was not committed, or Unavailable.
func (g *gateway) changeAnd(v *view, ops []topology.Op, done func(error)) {
	c := g.w.propose(v, ops)
	seq := v.row.Seq
	g.w.n.changes++
	g.changes++
	g.send(v, c, seq, 0, done)
}

func (g *gateway) send(v *view, c *peer.Change, seq uint64, tries int, done func(error)) {
	to := g.w.rng.IntN(len(g.w.servers))
	ask(g.proc, to, 20*time.Second, "change", func(answer func(changedAnswer)) {
		g.w.servers[to].change(c, answer)
	}, func(a changedAnswer, ok bool) {
		err := a.err
		switch {
		case ok && a.err == nil:
			g.w.check.reportedCommitted(c.Txn, a.changed)
			g.committed(v, c, a.changed)
		case ok && fault.Is(a.err, fault.Stale):
			g.w.n.stale++
			g.w.mark(answeredStale)
			g.w.check.reportedAborted(c.Txn)
		case ok && fault.Is(a.err, fault.NotFound): // the table was dropped: the row's result does not matter
		case ok && fault.Is(a.err, fault.Invalid):
			g.w.n.invalid++
			g.w.mark(answeredInvalid)
			g.w.check.reportedAborted(c.Txn)
		case v.row.Seq > seq+keepFiles, g.w.healed && tries > 4 && v.row.Txn != c.Base:
			err = errSilent
			g.w.n.unresolved++ // its result is lost for good: look at the newest map
		default:
			if g.w.healed {
				tries++
			}
			g.after(g.w.spread(time.Second), "change again", func() { g.send(v, c, seq, tries, done) })
			return
		}
		g.changes--
		done(err)
	})
}

// committed publishes the map after a change of this gateway, before its row comes.
func (g *gateway) committed(v *view, c *peer.Change, d peer.Changed) {
	if v.m == nil || v.known.Row().Txn != c.Base || d.Txn != c.Txn {
		return
	}
	ops, err := topology.DecodeOps(c.Ops)
	if err != nil {
		g.w.fail("the ops of a change cannot be read: %v", err)
		return
	}
	if next, err := v.m.Apply(ops...); err == nil && next.Seq == d.Seq {
		v.know(tables.Known{Map: next, Row: mapstore.Row{Txn: c.Txn, Seq: next.Seq}})
	}
}

// Draws of ops; many of them make no sense by the time they come.

func (g *gateway) place(v *view) func(point.PartitionID) []topology.Placement {
	return func(point.PartitionID) (out []topology.Placement) {
		for _, i := range g.w.rng.Perm(len(g.w.servers))[:min(max(2, g.w.copied[v.table]), len(g.w.servers))] {
			out = append(out, g.placement(g.w.servers[i].id))
		}
		return out
	}
}

func (g *gateway) placement(s topology.ServerID) topology.Placement {
	return topology.Placement{ID: point.PlacementID(g.w.rng.Uint64() | 1), Server: s}
}

func (g *gateway) cover(v *view, times ...point.Nanos) []topology.Op {
	c := v.m.Covering(times, g.place(v))
	if len(c.Partitions) == 0 {
		return nil
	}
	return []topology.Op{c}
}

func (g *gateway) draw(v *view) []topology.Op {
	m, rng := v.m, g.w.rng
	all := slices.Collect(m.All())
	if len(all) == 0 {
		return g.cover(v, rng.Int64N(int64(g.w.widths)*width))
	}
	p := all[rng.IntN(len(all))]
	kind := rng.IntN(12)
	if len(all) > g.w.partitionsMax {
		kind = 7
	}
	switch kind {
	case 0, 1:
		return g.cover(v, rng.Int64N(int64(g.w.widths)*width), rng.Int64N(int64(g.w.widths)*width))
	case 2, 3:
		if p.State == topology.Splitting {
			return []topology.Op{topology.SplitAbort{Partition: p.ID, Low: p.Split.Low.ID}}
		}
		cut := topology.AtTime(p.TimeLo + (p.TimeHi-p.TimeLo)/2)
		if rng.IntN(2) == 0 {
			cut = topology.AtRing(p.PointLo + (p.PointHi-p.PointLo)/2)
		}
		return []topology.Op{topology.SplitBegin{Partition: p.ID, Split: topology.Split{At: cut,
			Low: topology.Child{ID: m.NextID, Placements: g.place(v)(0)}, High: topology.Child{ID: m.NextID + 1, Placements: g.place(v)(0)}}}}
	case 4:
		for p := range m.All() {
			if p.State == topology.Splitting {
				return []topology.Op{topology.SplitAbort{Partition: p.ID, Low: p.Split.Low.ID}}
			}
		}
	case 5: // beyond the written times, so that the replaced partition has no rows
		edges := []topology.Edge{{At: int64(g.w.widths)*width + rng.Int64N(2*width)}, {At: int64(g.w.widths)*width + rng.Int64N(4*width)}}
		o := m.Presplitting(int64(g.w.widths-1)*width, edges, g.place(v))
		if len(o.Partitions) > 0 && len(all) < g.w.widths+4 {
			return []topology.Op{o}
		}
	case 6:
		weights := [][]uint32{{1}, {1, 1}, {1, 2, 1}}[rng.IntN(3)]
		from := int64(g.w.widths+rng.IntN(6)) * width
		if ranges, err := topology.Spread(m.RangesAt(from), weights); err == nil {
			return []topology.Op{topology.SetColumns{Now: 0, Layout: topology.Layout{From: from, Weights: weights, Ranges: ranges}}}
		}
	case 7:
		return []topology.Op{topology.Drop{IDs: family(m, p.ID)}}
	case 8:
		free := slices.DeleteFunc(slices.Clone(g.w.servers), func(s *server) bool { return slices.Contains(placements(p), s.id) })
		if len(free) > 0 && len(p.Joining) == 0 {
			return []topology.Op{topology.Join{Partition: p.ID, Placement: g.placement(free[rng.IntN(len(free))].id)}}
		}
	case 9, 10:
		return g.takeOut(v, p)
	case 11:
		c := m.Config
		c.Retention = time.Duration(g.w.widths/4+rng.IntN(4*g.w.widths)) * time.Hour
		return []topology.Op{topology.SetConfig{Config: c}}
	}
	return nil
}

// takeOut removes a placement: a joining one, or one that is live while an in-sync one stays by the lease row as last
// seen. If the row has changed since, the server that has the only copy must keep it all the same.
func (g *gateway) takeOut(v *view, p *topology.Partition) []topology.Op {
	if len(p.Joining) > 0 {
		return []topology.Op{topology.Remove{Partition: p.ID, Placement: p.Joining[0].ID}}
	}
	l, led := g.rows[v.part(p.ID)]
	if !led || len(p.Placements) < 2 {
		return nil
	}
	pl := p.Placements[g.w.rng.IntN(len(p.Placements))]
	stays := slices.ContainsFunc(l.InSync, func(m lease.Member) bool {
		return m.Placement != pl.ID && slices.ContainsFunc(p.Placements, func(q topology.Placement) bool { return q.ID == m.Placement })
	})
	alone := len(l.InSync) == 1 && l.InSync[0].Placement == pl.ID && g.w.check.hasRows(v.part(p.ID))
	if !stays && !alone {
		return nil
	}
	return []topology.Op{topology.Remove{Partition: p.ID, Placement: pl.ID}}
}

// lookAfter does the operators' work: it drops partitions that were lost with their disks, gives partitions that only one server has back
// to it, and puts bumps and prohibitions.
func (g *gateway) lookAfter(v *view) {
	m := v.m
	if m == nil || v.mapRev != v.rev {
		return
	}
	var lost []point.PartitionID
	for p := range m.All() {
		if l, ok := g.rows[v.part(p.ID)]; ok && g.isLost(l) {
			lost = append(lost, family(m, p.ID)...)
		}
	}
	if len(lost) > 0 && g.changes < 8 {
		g.change(v, []topology.Op{topology.Drop{IDs: lost}})
	} else if g.changes < 8 {
		g.change(v, g.takeBack(v))
	}
	var known []lease.Partition
	for _, id := range slices.SortedFunc(maps.Keys(g.rows), comparePartitions) {
		if id.Table == v.table {
			known = append(known, id)
		}
	}
	if g.w.opt.Faults.has(people) && !g.w.healed && g.w.chance(20) && len(known) > 0 {
		g.meddle(known[g.w.rng.IntN(len(known))])
	}
}

// family lists a partition with those that unload into it and those that it unloads into, transitively: if one of them were
// dropped alone, the others would lie on keys that no server accepts and no partition may cover.
func family(m *topology.Map, id point.PartitionID) []point.PartitionID {
	ids := []point.PartitionID{id}
	for i := 0; i < len(ids); i++ {
		for p := range m.All() {
			kin := p.ID == ids[i] || slices.Contains(p.Into, ids[i])
			if !kin {
				continue
			}
			for _, other := range append([]point.PartitionID{p.ID}, p.Into...) {
				if _, there := m.ByID(other); there && !slices.Contains(ids, other) {
					ids = append(ids, other)
				}
			}
		}
	}
	return ids
}

// takeBack gives a partition back to a server that is in sync, where the map has only others, or those with lost disks:
// they cannot lead it. One that stays dead could not either, and the master would remove it again.
func (g *gateway) takeBack(v *view) []topology.Op {
	for p := range v.m.All() {
		l, ok := g.rows[v.part(p.ID)]
		there := slices.DeleteFunc(slices.Clone(l.InSync), func(m lease.Member) bool { return g.store[m.Server] != m.Store || m.Server == g.w.without })
		if !ok || len(there) == 0 || p.State == topology.Unload ||
			slices.ContainsFunc(there, func(m lease.Member) bool {
				return slices.Contains(p.Placements, topology.Placement{ID: m.Placement, Server: m.Server})
			}) {
			continue
		}
		m := there[0]
		var ops []topology.Op
		if pl, ok := p.JoiningOn(m.Server); ok {
			ops = append(ops, topology.Remove{Partition: p.ID, Placement: pl.ID})
		}
		return append(ops, topology.Join{Partition: p.ID, Placement: topology.Placement{ID: m.Placement, Server: m.Server}},
			topology.JoinFinalize{Partition: p.ID, Placement: m.Placement})
	}
	return nil
}

// isLost reports whether every store that the row lists was replaced, as far as the gateway has seen.
func (g *gateway) isLost(l lease.Lease) bool {
	return len(l.InSync) > 0 && !slices.ContainsFunc(l.InSync, func(m lease.Member) bool {
		now, ok := g.store[m.Server]
		return !ok || now == m.Store
	})
}

// gone reports whether the process that the row names has been replaced: it looks at the world's state, which the
// master would know after ten minutes of silence.
func (g *gateway) gone(l lease.Lease) bool {
	return g.w.servers[g.w.indexOf(l.Holder)].self.Boot != l.Boot
}

// meddle bumps a partition, sets it offline or back, keeps it off a server for a while, or deletes a heartbeat row.
func (g *gateway) meddle(id lease.Partition) {
	key := lease.RowKey(id)
	note := lease.Note{Who: "ann", Reason: "looks odd"}
	g.w.n.people++
	if g.w.chance(15) {
		s := g.w.servers[g.w.rng.IntN(len(g.w.servers))].id
		g.drain(s, true)
		return
	}
	if g.w.chance(15) {
		g.deleteBeats(g.w.servers[g.w.rng.IntN(len(g.w.servers))].id, 1+g.w.rng.IntN(3))
		return
	}
	if g.w.chance(30) && !g.w.isFenced(id) {
		s := g.w.servers[g.w.rng.IntN(len(g.w.servers))].id
		g.commit(nil, []coord.Write{lease.Prohibit(id, s, note)}, storeTimeout, func(committed, bool) {})
		g.after(g.w.spread(20*time.Second), "allow", func() { g.allow(id, s) })
		return
	}
	g.get(key, storeTimeout, func(x got, ok bool) {
		l, err := lease.DecodeLease(x.row.Value)
		if !ok || !x.ok || err != nil {
			return
		}
		switch {
		case l.Offline != nil:
			l = l.TakenOnline()
		case g.w.chance(50):
			l = l.Bumped(note)
			g.w.mark(bumped)
		default:
			l = l.TakenOffline(note)
			g.after(g.w.spread(20*time.Second), "online", func() { g.online(id) })
		}
		g.commit([]coord.Condition{{Key: key, Revision: x.row.Revision}}, []coord.Write{{Key: key, Value: l.Encode()}}, storeTimeout, func(committed, bool) {})
	})
}

// deleteBeats deletes the heartbeat row of a server, and again after its process may have written it anew.
func (g *gateway) deleteBeats(s topology.ServerID, times int) {
	g.w.say("a person deletes the heartbeat row of %s", s)
	g.w.mark(beatGone)
	g.commit(nil, []coord.Write{{Key: lease.BeatKey(s), Delete: true}}, storeTimeout, func(committed, bool) {})
	if times > 1 {
		g.after(g.w.spread(4*time.Second), "delete beats", func() { g.deleteBeats(s, times-1) })
	}
}

// allow removes a prohibition. Careful operators wait while the master relies on it.
func (g *gateway) allow(id lease.Partition, s topology.ServerID) {
	if g.w.isFenced(id) {
		g.after(time.Second, "allow", func() { g.allow(id, s) })
		return
	}
	g.commit(nil, []coord.Write{lease.Allow(id, s)}, storeTimeout, func(_ committed, ok bool) {
		if !ok {
			g.after(time.Second, "allow", func() { g.allow(id, s) })
		}
	})
}

func (g *gateway) online(id lease.Partition) {
	key := lease.RowKey(id)
	again := func() { g.after(time.Second, "online", func() { g.online(id) }) }
	g.get(key, storeTimeout, func(x got, ok bool) {
		l, err := lease.DecodeLease(x.row.Value)
		switch {
		case !ok:
			again()
		case !x.ok || err != nil || l.Offline == nil:
		default:
			g.commit([]coord.Condition{{Key: key, Revision: x.row.Revision}}, []coord.Write{{Key: key, Value: l.TakenOnline().Encode()}}, storeTimeout, func(c committed, ok bool) {
				if !ok || !c.ok {
					again()
				}
			})
		}
	})
}

// txnID draws the name of a transaction.
func (w *world) txnID() peer.TxnID { return mapstore.NewTxnID(w.rng) }
