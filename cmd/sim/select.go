package main

import (
	"slices"

	"github.com/spillwaydb/spillway/gateway/follow"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/point"
)

// selection is a read of all keys of a time range, from all partitions of one map that may have rows of it. Parents that
// unload are asked besides its heirs; of two rows of a key the higher rank wins.
type selection struct {
	following
	lo, hi point.Nanos

	read
	keys   []keyID
	rows   []row
	open   int // partitions that have not answered
	silent int // servers with staged rows that did not
	lost   []follow.Failure
	seen   func() // nil: no observer
}

// sel begins a read.
func (g *gateway) sel() {
	v := g.any()
	lo := g.w.rng.Int64N(int64(g.w.widths)) * width
	g.w.n.selects++
	x := &selection{following: following{g: g, v: v, request: g.reads.Request(g.now())}, lo: lo, hi: lo + (1+g.w.rng.Int64N(hoursAsked))*width - 1}
	x.send, x.giveUp = x.ask, func() { g.w.n.failed++ }
	x.by, x.began = g.name, g.w.now
	x.ask()
}

// ask sends the question to all partitions of the newest map.
func (x *selection) ask() {
	g := x.g
	if x.v.m == nil {
		x.giveUp()
		return
	}
	x.m, x.lost, x.warned, x.old = x.v.m, nil, false, x.v.doubts(x.lo, x.hi)
	x.keys, x.asked = x.keys[:0], nil
	for _, k := range g.w.history.of[x.v.table] {
		if t := g.w.history.keys[k].t; t >= x.lo && t <= x.hi {
			x.keys = append(x.keys, k)
		}
	}
	x.rows = make([]row, len(x.keys))
	x.askStaged(x.askPartitions)
}

// askPartitions sends the question to all partitions of the map.
func (x *selection) askPartitions() {
	g := x.g
	all := x.m.Overlapping(x.lo, x.hi)
	if g.w.opt.broken == oneOfTwoLayers {
		all = slices.DeleteFunc(all, func(p *topology.Partition) bool { return !p.Accepts() })
	}
	if slices.ContainsFunc(all, func(p *topology.Partition) bool { return !p.Accepts() }) {
		g.w.mark(readTwoLayers)
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
	lead := g.lead(id, p, x.request.Try())
	if lead.Server == "" {
		x.answered(leaderless(p))
		return
	}
	to := g.w.indexOf(lead.Server)
	var got found
	g.attempt(&g.reads, id, p, lead.Server, func(answered func(error)) {
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
			case !ok:
				answered(errSilent)
				return
			case !f.may:
				answered(g.w.servers[to].named(x.v.table, errStale))
				return
			}
			got = f
			answered(nil)
		})
	}, func(verdict follow.Verdict, f follow.Failure) {
		if verdict == follow.Done {
			x.merge(got, at)
		}
		x.answered(f)
	})
}

// merge adds a server's answer: values for the keys at some places.
func (x *selection) merge(f found, at []int) {
	for i, r := range f.rows {
		if r.value != 0 && x.rows[at[i]].value != 0 {
			x.g.w.mark(rankDecided)
		}
		if old := x.rows[at[i]]; r.value != 0 && (old.value == 0 || r.rank > old.rank != (x.g.w.opt.broken == lowestRank)) {
			x.rows[at[i]] = r
		}
	}
	x.asked = append(x.asked, f.by)
	x.warned = x.warned || f.incomplete
}

// answered records how one partition's question ended. When all have, those that failed decide the next step.
func (x *selection) answered(f follow.Failure) {
	if f.Err != nil {
		x.lost = append(x.lost, f)
	}
	if x.open--; x.open > 0 {
		return
	}
	if len(x.lost) > 0 {
		x.await(x.m.Seq, x.lost)
		return
	}
	x.done()
}

func (x *selection) done() {
	if x.warned {
		x.g.w.mark(warnedIncomplete)
	}
	if x.old {
		x.g.w.mark(warnedOld)
	}
	if x.seen != nil {
		x.seen()
	}
	for i, k := range x.keys {
		x.g.w.history.saw(&x.read, k, x.rows[i].value)
	}
}
