package main

import (
	"slices"
	"time"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/master"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
)

// fenceAge is how long a fence stands of which nobody knows whether the change behind it may yet come.
const fenceAge = time.Minute

// moveEmpty moves a partition of a table without rows to another server, led or not: the master's own machine, with the store and the
// metadata servers of the simulated cluster.
func (g *gateway) moveEmpty(v *view) {
	var empty []*topology.Partition
	for p := range v.m.All() {
		if l, led := g.rows[v.part(p.ID)]; p.State == topology.Live && len(p.Joining) == 0 && (!led || l.Empty && l.Offline == nil) {
			empty = append(empty, p)
		}
	}
	if len(empty) == 0 {
		return
	}
	p := empty[g.w.rng.IntN(len(empty))]
	to := g.w.servers[g.w.rng.IntN(len(g.w.servers))].id
	id := v.part(p.ID)
	if slices.Contains(placements(p), to) || g.prohibited(id) {
		return
	}
	g.w.fenced[id] = true
	m := &mover{g: g, v: v, fence: master.Fence{Partition: id, Servers: placements(p)}}
	m.work = master.NewWork(v.table, v.m.Seq, []master.Step{{Kind: master.Balance, Table: v.table, Partition: p.ID, Ops: g.moving(p, to), Fences: []master.Fence{m.fence}}}, nil)
	m.step(master.Begin{})
}

// mover performs what a Work wants.
type mover struct {
	g     *gateway
	v     *view
	work  *master.Work
	fence master.Fence
	led   bool // the lease row was there
	doubt bool // the fence may stand although the Work does not say so
}

func (m *mover) step(in master.Input) {
	for _, e := range m.work.Step(time.Unix(0, int64(m.g.w.now)), in, nil) {
		switch e := e.(type) {
		case master.Read:
			m.read(e, nil)
		case master.Commit:
			m.commit(e)
		case master.Change:
			m.change(e)
		case master.Wait:
			m.g.after(e.For, "wait", func() { m.step(master.Waited{ID: e.ID}) })
		case master.Report:
			if e.Err == nil {
				m.g.w.n.moved++
				m.g.w.mark(map[bool]mark{true: movedEmpty, false: movedUnborn}[m.led])
			}
			m.doubt = e.Err != nil && fault.Is(e.Err, fault.Unavailable)
		case master.Ended:
			if m.doubt || len(e.Left) > 0 { // a later master finds it when it is old
				m.g.after(fenceAge, "unfence", m.unfence)
			} else {
				delete(m.g.w.fenced, m.fence.Partition)
			}
		}
	}
}

func (m *mover) read(e master.Read, rows []coord.Row) {
	if len(rows) == len(e.Keys) {
		m.led = rows[0].Revision != 0
		m.step(master.RowsRead{ID: e.ID, Rows: rows})
		return
	}
	key := e.Keys[len(rows)]
	m.g.get(key, storeTimeout, func(x got, ok bool) {
		switch {
		case !ok:
			m.step(master.RowsRead{ID: e.ID, Err: errSilent})
		case !x.ok:
			m.read(e, append(rows, coord.Row{Key: key}))
		default:
			m.read(e, append(rows, x.row))
		}
	})
}

func (m *mover) commit(e master.Commit) {
	conditions := e.Conditions
	if m.g.w.opt.broken == moveBlind {
		conditions = nil
	}
	m.g.after(m.g.thinks(), "commit of the master", func() {
		m.g.commit(conditions, e.Writes, storeTimeout, func(c committed, ok bool) {
			in := master.Committed{ID: e.ID, Revision: c.rev, OK: c.ok}
			switch {
			case !ok:
				m.g.w.mark(moveUnknown)
				in = master.Committed{ID: e.ID, Err: errSilent}
			case !c.ok:
				m.g.w.mark(moveConflict)
			}
			m.step(in)
		})
	})
}

func (m *mover) change(e master.Change) {
	if m.v.m == nil || m.v.m.Seq != e.Seq {
		m.step(master.Changed{ID: e.ID, Err: fault.Errorf(fault.Stale, "another map by now")})
		return
	}
	m.g.changeAnd(m.v, e.Ops, func(err error) { m.step(master.Changed{ID: e.ID, Seq: e.Seq + 1, Err: err}) })
}

// unfence deletes the prohibitions, as a later master does with those that are old.
func (m *mover) unfence() {
	var allow []coord.Write
	for _, s := range m.fence.Servers {
		allow = append(allow, lease.Allow(m.fence.Partition, s))
	}
	m.g.commit(nil, allow, storeTimeout, func(_ committed, ok bool) {
		if !ok {
			m.g.after(time.Second, "unfence", m.unfence)
			return
		}
		delete(m.g.w.fenced, m.fence.Partition)
	})
}

// thinks is how long a gateway may take from what it saw to what it does.
func (g *gateway) thinks() time.Duration {
	if g.w.chance(10) {
		return g.w.spread(2 * time.Second)
	}
	return time.Millisecond
}

// moving is how a partition comes to lie on one server alone, where it was not.
func (g *gateway) moving(p *topology.Partition, to topology.ServerID) []topology.Op {
	pl := g.placement(to)
	ops := []topology.Op{topology.Join{Partition: p.ID, Placement: pl}, topology.JoinFinalize{Partition: p.ID, Placement: pl.ID}}
	for _, old := range p.Placements {
		ops = append(ops, topology.Remove{Partition: p.ID, Placement: old.ID})
	}
	return ops
}

// prohibited reports whether somebody keeps the partition off a server already; for the world to see, not for a gateway.
func (g *gateway) prohibited(id lease.Partition) bool {
	return g.w.fenced[id] || slices.ContainsFunc(g.w.store.list(lease.Prefix), func(row coord.Row) bool {
		at, _, ok := lease.ParseProhibitKey(row.Key)
		return ok && at == id
	})
}
