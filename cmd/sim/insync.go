package main

import (
	"math/rand/v2"
	"time"

	"github.com/spillwaydb/spillway/gateway/follow"
	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/topology"
)

// In a third of the runs with copies people set how many placements must keep a row: at first, and again now and then.

// drawDemands chooses whether it is such a run. Its draws come from a source of its own, so that the other runs are as they are.
func (w *world) drawDemands() {
	w.demands = rand.New(rand.NewPCG(w.opt.Seed, 0x1d5ac))
	w.demanded = map[string]int{}
	if !w.copies() || w.demands.IntN(3) > 0 {
		w.demands = nil
		return
	}
	for _, table := range w.tables {
		w.demanded[table] = w.drawDemand(w.copied[table])
	}
}

// drawDemand draws a setting for a number of replicas: 0 is as many as follow from it.
func (w *world) drawDemand(replicas int) int {
	return w.demands.IntN(replicas + 1)
}

// demand sets another number for a table, once in a while.
func (g *gateway) demand() {
	if g.w.demands == nil || g.w.healed || g.w.demands.IntN(15) > 0 {
		return
	}
	v := g.views.at(g.w.tables[g.w.demands.IntN(len(g.w.tables))])
	if v.m == nil || g.changes >= 4 {
		return
	}
	c := v.m.Config
	c.InSyncMin = g.w.drawDemand(c.Replicas)
	g.w.n.demands++
	g.change(v, []topology.Op{topology.SetConfig{Config: c}})
}

// formerly is a configuration that was in force, and may still be that of a gateway.
type formerly struct {
	m     *topology.Map
	until time.Duration
}

// replaced notes that the map of a table is another.
func (t *truth) replaced(now time.Duration) {
	kept := t.former[:0]
	for _, f := range t.former {
		if now-f.until < follow.DoubtAge {
			kept = append(kept, f)
		}
	}
	t.former = kept
	if t.m != nil {
		t.former = append(t.former, formerly{t.m, now})
	}
}

// shortest is the length of the list of a partition that some gateway counts on which is not in doubt of its map.
func (c *checker) shortest(id lease.Partition) int {
	t := c.at(id.Table)
	if t.m == nil {
		return 1
	}
	least := 1
	p, ok := t.m.ByID(id.ID)
	if ok {
		least = t.m.Config.ShortestList(id.ID, len(p.Placements))
	}
	for _, f := range t.former {
		if old, was := f.m.ByID(id.ID); ok && was && c.w.now-f.until < follow.DoubtAge {
			least = max(least, f.m.Config.ShortestList(id.ID, min(len(p.Placements), len(old.Placements))))
		}
	}
	return least
}
