package main

import (
	"slices"
	"time"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/topology"
)

// fenceAge is how long a fence stands of which nobody knows whether the change behind it may yet come.
const fenceAge = time.Minute

// moveEmpty moves a partition of a table without rows to another server, led or not, as the master's executor does:
//
//	look ─▶ fence: prohibited where it lies, nobody in sync, if the lease row is as it was ─▶ change the map ─▶ unfence
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
	key := lease.RowKey(id)
	g.get(key, storeTimeout, func(x got, ok bool) {
		conditions := []coord.Condition{{Key: key, Revision: x.row.Revision}}
		var writes, allow []coord.Write
		l, err := lease.DecodeLease(x.row.Value)
		switch {
		case !ok || x.ok && (err != nil || !l.Empty || l.Offline != nil):
			delete(g.w.fenced, id)
			return
		case x.ok:
			writes = append(writes, coord.Write{Key: key, Value: l.Vacated().Encode()})
		default:
			conditions = append(conditions, coord.Condition{Key: lease.BornKey(id)})
		}
		if g.w.opt.broken == moveBlind {
			conditions = nil
		}
		for _, s := range placements(p) {
			writes = append(writes, lease.Prohibit(id, s, lease.Note{Who: "master"}))
			allow = append(allow, lease.Allow(id, s))
		}
		unfence := func(after time.Duration) { g.after(after, "unfence", func() { g.unfence(id, allow) }) }
		g.after(g.thinks(), "fence", func() {
			g.commit(conditions, writes, storeTimeout, func(c committed, ok bool) {
				switch {
				case !ok:
					g.w.mark(moveUnknown)
					unfence(fenceAge)
				case !c.ok:
					g.w.mark(moveConflict)
					delete(g.w.fenced, id)
				default:
					g.changeAnd(v, g.moving(p, to), func(known bool) {
						if known {
							g.w.n.moved++
							if x.ok {
								g.w.mark(movedEmpty)
							} else {
								g.w.mark(movedUnborn)
							}
							unfence(0)
						} else {
							unfence(fenceAge)
						}
					})
				}
			})
		})
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

func (g *gateway) unfence(id lease.Partition, allow []coord.Write) {
	g.commit(nil, allow, storeTimeout, func(_ committed, ok bool) {
		if !ok {
			g.after(time.Second, "unfence", func() { g.unfence(id, allow) })
			return
		}
		delete(g.w.fenced, id)
	})
}
