package main

import (
	"slices"
	"time"

	"github.com/spillwaydb/spillway/gateway/follow"
	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/mapstore"
	"github.com/spillwaydb/spillway/metadata/tables"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
)

// Writes and reads of gateways go by package follow, as in the product; this performs its effects, as gateway/follow/runner does.

// now is the gateway's clock as a machine reads it.
func (g *gateway) now() time.Time { return time.Unix(0, int64(g.clock())) }

// lead gives the leader of a partition by the cached lease rows; where it never had one, a placement chosen by the number of the try.
func (g *gateway) lead(id lease.Partition, at *topology.Partition, try int) follow.Lead {
	l, ok := g.rows[id]
	switch {
	case !ok || l.Epoch == 0 && l.Offline == nil:
		return follow.Lead{Server: at.Placements[try%len(at.Placements)].Server, Guess: true}
	case l.State == lease.Held && l.Offline == nil:
		return follow.Lead{Server: l.Holder}
	}
	return follow.Lead{}
}

// looks has all waiting requests look at the change.
func (g *gateway) looks() {
	for _, f := range slices.Clone(g.following) {
		f.look()
	}
	g.silent = slices.DeleteFunc(g.silent, func(look func() bool) bool { return look() })
}

// following is a request between two of its tries.
type following struct {
	g       *gateway
	v       *view
	request follow.Request
	send    func() // the next try
	giveUp  func()
	stage   func() // nil: nothing is staged

	waits  bool
	failed []follow.Failure
	tick   *timer
}

// await waits, after a try by the map of seq left failures, until another try makes sense.
func (f *following) await(seq uint64, failed []follow.Failure) {
	e := f.request.Failed(f.g.now(), seq, failed, f.g.w.rng.Float64())
	if e.Do == follow.GiveUp {
		f.giveUp()
		return
	}
	f.waits, f.failed = true, failed
	f.g.following = append(f.g.following, f)
	if e.Refresh {
		f.v.refresh()
		f.v.takeNamed(e.Newer)
	}
	f.look()
}

func (f *following) look() {
	if !f.waits {
		return
	}
	var seq uint64
	if f.v.m != nil {
		seq = f.v.m.Seq
	}
	var leads []follow.Lead
	for _, x := range f.failed {
		for _, p := range x.Partitions {
			leads = append(leads, f.g.lead(f.v.part(p.ID), p, f.request.Try()))
		}
	}
	f.do(f.request.Look(f.g.now(), seq, leads))
}

func (f *following) do(e follow.Effect) {
	if f.tick != nil {
		f.tick.stop()
	}
	if e.Do == follow.Wait {
		f.tick = f.g.after(e.Until.Sub(f.g.now())+time.Microsecond, "wait", func() {
			if f.waits {
				f.do(f.request.Tick(f.g.now()))
			}
		})
		return
	}
	f.waits = false
	f.g.following = slices.DeleteFunc(f.g.following, func(x *following) bool { return x == f })
	switch e.Do {
	case follow.Send:
		f.send()
	case follow.Stage:
		f.stage()
	default:
		f.giveUp()
	}
}

// The meaning of answers without rows, in the product's kinds.
var (
	errStale    = fault.Errorf(fault.Stale, "not here")
	errCanceled = fault.Errorf(fault.Canceled, "another leads")
	errAnew     = fault.Errorf(fault.Stale, "it needs a new stamp")
)

// attempt asks a server about a partition under a policy. question sends it, and answered receives the error of the answer, if it was not left before; done
// receives its meaning.
func (g *gateway) attempt(p *follow.Policy, id lease.Partition, at *topology.Partition, server topology.ServerID, question func(answered func(error)),
	done func(follow.Verdict, follow.Failure)) {
	a, over := p.Begin(server), false
	var silence *timer
	answered := func(err error) {
		if over {
			return
		}
		if over = true; err != errSilent && err != errDeaf && err != errCanceled {
			g.received[server] = g.now()
		}
		silence.stop()
		verdict, reason := a.Answer(err)
		done(verdict, follow.Failure{Partitions: []*topology.Partition{at}, Asked: server, Sent: true, Deaf: err == errDeaf, Reason: reason, Err: err})
	}
	look := func() bool {
		if !over && a.Look(g.lead(id, at, 0)) {
			answered(errCanceled)
		}
		return over
	}
	began := g.now()
	silent := func() time.Duration { return min(g.now().Sub(began), g.now().Sub(g.received[server])) }
	var listen func()
	listen = func() {
		if over {
			return
		}
		ping, again := a.Listen(silent())
		if !ping {
			g.after(again+time.Microsecond, "listen", listen)
			return
		}
		pinged := g.now()
		ask(g.proc, g.w.indexOf(server), follow.PingMax, "ping", func(say func(bool)) { say(true) }, func(_, ok bool) {
			switch {
			case ok:
				g.received[server] = g.now()
			case !over && a.Deaf(silent(), g.now().Sub(pinged)):
				answered(errDeaf)
			}
			g.after(time.Microsecond, "listen", listen)
		})
	}
	silence = g.after(follow.SilenceMax, "silence", func() {
		if !over && a.Silent() && !look() {
			g.silent = append(g.silent, look)
			if p.StageAfter > 0 {
				listen()
			}
		}
	})
	question(answered)
}

// restampsMax bounds how often a row gets a new stamp in one request.
const restampsMax = 8

// leaderless is the failure of a partition without a leader.
func leaderless(at *topology.Partition) follow.Failure {
	return follow.Failure{Partitions: []*topology.Partition{at}, Reason: follow.Leaderless, Err: errSilent}
}

// writing is a row that a gateway brings to a leader: a client sends it until it is acked.
type writing struct {
	following
	in    row
	anew  int       // stamps that were refused
	asked time.Time // when the last try began
}

// write begins a request for a row. A client that got no ack comes again.
func (g *gateway) write(v *view, in row) {
	if in.rank = g.stamp(); g.older {
		in.rank = 0
		g.w.history.find(in.key, in.value).older = true
	}
	w := &writing{following: following{g: g, v: v, request: g.writes.Request(g.now())}, in: in}
	w.following.send, w.giveUp, w.following.stage = w.try, w.again, w.stageAway
	if g.w.smears && g.w.chance(25) {
		w.smear()
		return
	}
	w.try()
}

// fails waits for a better moment after a try by the map of seq failed.
func (w *writing) fails(seq uint64, f follow.Failure) {
	if w.g.w.stages {
		f.Since = w.g.absence.Failed(w.g.now(), w.asked, follow.PartitionOf{Table: w.v.table, ID: uint64(f.Partitions[0].ID)}, &f)
	}
	w.await(seq, []follow.Failure{f})
}

func (w *writing) again() {
	g := w.g
	g.after(g.w.spread(300*time.Millisecond), "write again", func() { g.write(w.v, w.in) })
}

// tried notes the result of the last try of a row that was not acked.
func (g *gateway) tried(form string, args ...any) { g.last = line{g.w.now, form, args} }

func (w *writing) try() {
	g, v := w.g, w.v
	w.asked = g.now()
	if v.m == nil {
		g.tried("there is no table %s", v.table)
		w.again()
		return
	}
	k := g.w.history.keys[w.in.key]
	at, ok := v.m.Find(k.ring, k.t)
	if !ok {
		g.tried("nothing covers %d by map %d of %s", k.t, v.m.Seq, v.table)
		if g.changes < 8 {
			g.change(v, g.cover(v, k.t))
		}
		w.again()
		return
	}
	id, seq := v.part(at.ID), v.m.Seq
	lead := g.lead(id, at, w.request.Try())
	if lead.Server != "" && g.w.chance(3) { // a view of leases that is older still
		lead.Server = at.Placements[g.w.rng.IntN(len(at.Placements))].Server
	}
	if lead.Server == "" {
		g.tried("no server to ask for %s", at)
		w.fails(seq, leaderless(at))
		return
	}
	absent := follow.PartitionOf{Table: v.table, ID: uint64(at.ID)}
	if g.w.stages && g.absence.Skip(g.now(), absent) {
		w.fails(seq, follow.Failure{Partitions: []*topology.Partition{at}, Asked: lead.Server, Guess: lead.Guess, Reason: follow.Unanswered, Err: errSilent})
		return
	}
	to, in := g.w.indexOf(lead.Server), insertion{row: w.in}
	var ack answer
	g.attempt(&g.writes, id, at, lead.Server, func(answered func(error)) {
		ask(g.proc, to, insertTime, "insert", func(say func(answer)) {
			g.w.servers[to].insert(id, in, say)
		}, func(a answer, ok bool) {
			ack = a
			answered(w.outcome(to, a, ok))
		})
	}, func(verdict follow.Verdict, f follow.Failure) {
		if f.Err == errAnew {
			w.try()
			return
		}
		if verdict != follow.Done {
			f.Guess = lead.Guess
			g.tried("%s/%s at %s: %v; the lease row by %s: %+v", v.table, at, lead.Server, f.Reason, g.name, g.rows[id])
			w.fails(seq, f)
			return
		}
		g.absence.Answered(absent)
		g.open--
		delete(g.unacked, w.in.value)
		g.w.n.acked++
		g.w.history.acked(w.in, id, ack)
	})
}

// outcome is the error of a try by the answer of server to.
func (w *writing) outcome(to int, a answer, ok bool) error {
	switch {
	case !ok:
		return errSilent
	case a.above != 0 && w.anew < restampsMax:
		w.anew++
		w.g.stamped = max(w.g.stamped, a.above)
		w.in.rank = w.g.stamp()
		return errAnew
	case a.stalled:
		return errStalled
	case !a.acked:
		return w.g.w.servers[to].named(w.v.table, errStale)
	}
	return nil
}

// doubts reports whether a read must say that the gateway's map may lack part of its range. The times of rows are no times of the clock.
func (v *view) doubts(lo, hi point.Nanos) bool {
	if v.p.w.opt.broken == ageNotSaid {
		return false
	}
	_, _, doubt := follow.Doubt(v.m, lo, hi, hi, time.Unix(0, int64(v.p.clock())).Sub(v.known.NewestAt()))
	return doubt
}

// named puts the newest map of a server on a Stale answer.
func (s *server) named(table string, err error) error {
	v := s.on(table)
	if v.m == nil || v.m.Seq != v.row.Seq || s.older {
		return err
	}
	at := peer.MapAt{Txn: v.row.Txn, Seq: v.row.Seq}
	for _, id := range v.row.Servers {
		at.Servers = append(at.Servers, string(id))
	}
	return peer.WithMap(err, at)
}

// takeNamed fetches the map that a server named, as tables.Learn does.
func (v *view) takeNamed(at peer.MapAt) {
	if v.m == nil || at.Seq <= v.m.Seq || v.p.older {
		return
	}
	var servers []topology.ServerID
	for _, s := range at.Servers {
		servers = append(servers, topology.ServerID(s))
	}
	start := v.starts
	v.load(mapstore.Wanted{Table: v.table, Txn: at.Txn, Seq: at.Seq, Servers: servers}, func(s *stored) {
		if s == nil || v.starts != start || v.m == nil || s.m.Seq <= v.m.Seq {
			return
		}
		v.p.w.n.named++
		v.know(tables.Known{Map: s.m, Row: mapstore.Row{Txn: at.Txn, Seq: at.Seq, Servers: servers}})
	})
}
