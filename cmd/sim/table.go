package main

import (
	"time"

	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/mapstore"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/point"
)

// tables does the operators' work on whole tables: one is dropped now and then, another process ends a drop that died
// halfway, and a dropped table is made again under its name.
func (g *gateway) tables() {
	if g.work != "" {
		return
	}
	for _, table := range g.w.tables {
		v := g.views.at(table)
		switch sooner := g.w.healed; {
		case v.rev == 0:
		case v.row.Dropped && (sooner || g.w.chance(20)):
			g.work = table
			g.remake(v)
			return
		case v.row.Dropped:
		case v.row.Dropping && (sooner || g.w.chance(10)),
			!sooner && g.w.opt.Faults.has(drops) && g.w.rng.IntN(150) == 0:
			g.work = table
			g.drop(v)
			return
		}
	}
}

func (g *gateway) remake(v *view) {
	m, err := topology.New(v.table, g.w.config(v.table))
	if err != nil {
		panic(err)
	}
	var servers []topology.ServerID
	for _, i := range g.w.rng.Perm(len(g.w.servers))[:min(metadataServers, len(g.w.servers))] {
		servers = append(servers, g.w.servers[i].id)
	}
	txn := g.w.txnID()
	g.w.check.made[txn] = g.w.config(v.table)
	v.run(mapstore.NewCreate(txn, m, servers), func(mapstore.Done) { g.work = "" })
}

// drop drops a table, as `spillway table drop` does:
//
//	mark as being dropped ─▶ drop all partitions ─▶ wait until no lease is held ─▶ drop
//
// The command may die after each; then the master ends it. It also sweeps the lease rows.
func (g *gateway) drop(v *view) {
	g.workOn(func() { v.run(mapstore.NewBeginDrop(v.table), g.dropped(v, g.emptyTable)) })
}

// workOn has the command do its next step, unless it dies.
func (g *gateway) workOn(step func()) {
	if !g.w.healed && g.w.chance(5) {
		g.work = ""
		return
	}
	g.after(g.w.spread(200*time.Millisecond), "table", step)
}

// dropped goes on with next if a transaction was done; else another command does, later.
func (g *gateway) dropped(v *view, next func(*view)) func(mapstore.Done) {
	return func(d mapstore.Done) {
		if d.Err != nil {
			g.work = ""
			return
		}
		g.workOn(func() { next(v) })
	}
}

func (g *gateway) emptyTable(v *view) {
	switch {
	case v.row.Dropped:
		g.work = ""
	case v.m == nil || !v.row.Dropping || v.m.Seq != v.row.Seq:
		g.workOn(func() { g.emptyTable(v) })
	case v.m.Len() > 0 && g.w.opt.broken != dropUnemptied:
		var ids []point.PartitionID
		for p := range v.m.All() {
			ids = append(ids, p.ID)
		}
		g.changeAnd(v, []topology.Op{topology.Drop{IDs: ids}}, func(error) { g.workOn(func() { g.emptyTable(v) }) })
	case g.isHeld(v.table) && g.w.opt.broken != dropUnemptied:
		g.workOn(func() { g.emptyTable(v) })
	default:
		v.run(mapstore.NewDrop(v.table, v.row.Txn), func(mapstore.Done) { g.work = "" })
	}
}

// isHeld reports whether a running server holds a lease of a table.
func (g *gateway) isHeld(table string) bool {
	for p, l := range g.rows { // any: the order does not matter
		if p.Table == table && l.State == lease.Held && !g.gone(l) && !g.w.servers[g.w.indexOf(l.Holder)].dead {
			return true
		}
	}
	return false
}
