package main

import (
	"slices"
	"time"

	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/point"
)

// selection is a read of all keys of a time range, from all partitions of one map that may have rows of it. Parents that
// unload are asked besides the partitions that took over; of two rows of a key the higher rank wins.
type selection struct {
	g      *gateway
	v      *view
	lo, hi point.Nanos
	tries  int

	read
	keys []keyID
	rows []row
	open int // partitions that have not answered
	over bool
}

const selectTries = 4

// sel begins a read.
func (g *gateway) sel() {
	v := g.any()
	lo := g.w.rng.Int64N(widths) * width
	g.w.n.selects++
	x := &selection{g: g, v: v, lo: lo, hi: lo + (1+g.w.rng.Int64N(hoursAsked))*width - 1}
	x.by, x.began = g.name, g.w.now
	x.ask()
}

// ask asks all partitions by the newest map.
func (x *selection) ask() {
	g := x.g
	if x.tries++; x.tries > selectTries || x.v.m == nil {
		g.w.n.failed++
		return
	}
	x.m, x.over, x.warned, x.old = x.v.m, false, false, x.v.isOld()
	x.keys, x.asked = x.keys[:0], nil
	for _, k := range g.w.history.of[x.v.table] {
		if t := g.w.history.keys[k].t; t >= x.lo && t <= x.hi {
			x.keys = append(x.keys, k)
		}
	}
	x.rows = make([]row, len(x.keys))
	all := x.m.Overlapping(x.lo, x.hi)
	if g.w.opt.broken == oneOfTwoLayers {
		all = slices.DeleteFunc(all, func(p *topology.Partition) bool { return !p.Accepts() })
	}
	if x.open = len(all); x.open == 0 {
		x.done()
	}
	for _, p := range all {
		x.askOne(p)
	}
}

func (x *selection) askOne(p *topology.Partition) {
	g, id := x.g, x.v.part(p.ID)
	q := question{id: id, lo: x.lo, hi: x.hi, next: x.m.NextID}
	if p.Accepts() {
		q.seq = x.m.Seq
	}
	var at []int
	for i, k := range x.keys {
		key := g.w.history.keys[k]
		if key.t >= p.TimeLo && key.t < p.TimeHi && key.ring >= p.PointLo && key.ring <= p.PointHi-1 {
			q.keys, at = append(q.keys, k), append(at, i)
		}
	}
	to := g.leader(id, p)
	if to < 0 {
		x.again()
		return
	}
	tries := x.tries
	ask(g.proc, to, insertTime, "select", func(answer func(found)) {
		s := g.w.servers[to]
		f := s.read(q)
		if f.may {
			g.w.n.reads++
			g.w.check.read(s, q, f)
		}
		answer(f)
	}, func(f found, ok bool) {
		switch {
		case x.over || tries != x.tries:
		case !ok || !f.may:
			x.again()
		default:
			for i, r := range f.rows {
				if r.value != 0 && r.rank > x.rows[at[i]].rank {
					x.rows[at[i]] = r
				}
			}
			x.asked = append(x.asked, f.by)
			x.warned = x.warned || f.incomplete
			if x.open--; x.open == 0 {
				x.done()
			}
		}
	})
}

// again asks all anew, once there was time to hear of a newer map.
func (x *selection) again() {
	if !x.over {
		x.over = true
		x.g.after(x.g.w.spread(300*time.Millisecond), "select again", x.ask)
	}
}

func (x *selection) done() {
	x.over = true
	for i, k := range x.keys {
		x.g.w.history.saw(&x.read, k, x.rows[i].value)
	}
}
