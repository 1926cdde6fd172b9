package main

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/files"
	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/point"
)

// server is one process of a storage server, and the directory that outlives it.
type server struct {
	*proc
	id   topology.ServerID
	self lease.Self
	disk *disk

	// Leases.
	machine  *lease.Machine
	wake     *timer
	records  map[lease.Partition]*record
	told     map[lease.Partition]point.PlacementID
	garbage  map[lease.Partition]bool
	good     bool          // as of the last time it was looked
	rogue    time.Duration // until when it believes to lead whatever it led
	answered time.Duration // when the last renewal was answered, by the real clock: for a broken rule

	// METADATA files.
	views  *views
	shelf  *files.Shelf
	hosted map[string]*hosted
	gates  map[lease.Partition]*gate
	tried  map[uint64]int // of rows that came: the newest try
}

// hosted is what a server does about one table.
type hosted struct {
	*server
	*view

	// METADATA files.
	turns    []func()
	catching bool
	sweeping bool

	// Discovery.
	batching bool
	planning bool
	again    bool
}

// on gives what the server does about a table.
func (s *server) on(table string) *hosted {
	s.views.at(table)
	return s.hosted[table]
}

// gate counts who is inside a partition.
type gate struct {
	inside  int
	sealed  bool
	handing bool     // a split is being finished
	doubt   uint64   // it may have been: a map newer than that one tells
	empty   []func() // called once, when nobody is
}

// boot starts a new process on server i's directory; fresh: on an emptied one.
func (w *world) boot(i int, fresh bool) {
	old := w.servers[i]
	w.kill(i)
	w.boots++
	s := &server{
		proc: &proc{w: w, node: i, name: string(old.id), rate: old.rate, origin: w.now - time.Duration(w.rng.IntN(1e9))},
		id:   old.id, disk: old.disk,
		records: map[lease.Partition]*record{}, told: map[lease.Partition]point.PlacementID{}, garbage: map[lease.Partition]bool{},
		gates: map[lease.Partition]*gate{}, hosted: map[string]*hosted{}, tried: map[uint64]int{},
	}
	if fresh || s.disk == nil {
		s.disk = newDisk(lease.StoreID(fmt.Sprintf("dir%d", w.boots)))
	}
	s.self = lease.Self{Server: s.id, Boot: lease.Boot(fmt.Sprintf("b%d", w.boots)), Store: s.disk.id}
	var err error
	if s.machine, err = lease.New(s.self, lease.Settings{}, rand.New(rand.NewPCG(w.rng.Uint64(), 1))); err != nil {
		panic(err)
	}
	w.servers[i], w.nodes[i] = s, s.proc
	w.say("%s starts as %s on %s", s.id, s.self.Boot, s.disk.id)

	s.disk.start(w)
	s.shelf = files.NewShelf(s.disk.infos())
	s.views = &views{p: s.proc, self: s, of: map[string]*view{}, made: func(v *view) {
		h := &hosted{server: s, view: v}
		s.hosted[v.table] = h
		v.changed, v.heard = h.mapChanged, h.heardRow
	}}
	s.step(lease.Tick{Wall: s.w.wall()})
	s.follow(lease.Prefix,
		func(l listed) { s.step(lease.Listed{Rows: l.rows, Revision: l.rev}) },
		func(events []coord.Event) { s.step(lease.Watched{Events: events}) }, nil)
	s.views.follow()
	s.every(sweepEvery, "sweep", func() {
		s.scrub()
		for _, table := range w.tables {
			s.on(table).sweep()
		}
	})
	s.every(time.Second, "publish", s.publish)
	s.every(10*time.Second, "reconcile", func() {
		for _, table := range w.tables {
			h := s.on(table)
			h.catchUp()
			h.refresh()
			h.reconcile()
		}
		s.forget()
	})
}

// kill ends a server's process: kill -9, or a power cut.
func (w *world) kill(i int) {
	s := w.servers[i]
	if s.dead {
		return
	}
	s.dead = true
	s.pending = nil
	s.disk.crash(w)
	w.check.crashed(s)
}

func (w *world) wall() time.Time { return time.Unix(1_800_000_000, int64(w.now)) }

// Leases, as package keeper runs them.

func (s *server) step(in lease.Input) {
	for _, e := range s.machine.Step(s.clock(), in, nil) {
		s.perform(e)
	}
	s.wake.stop()
	s.wake = s.after(max(s.machine.Wake()-s.clock(), time.Millisecond), "tick", func() { s.step(lease.Tick{Wall: s.w.wall()}) })
}

func (s *server) perform(e lease.Effect) {
	switch e := e.(type) {
	case lease.Commit:
		conditions := e.Conditions
		beat := len(e.Writes) > 0 && strings.HasPrefix(e.Writes[0].Key, lease.BeatPrefix)
		if s.w.opt.broken == heartbeatNotCompared && !beat {
			conditions = slices.DeleteFunc(slices.Clone(conditions), func(c coord.Condition) bool { return strings.HasPrefix(c.Key, lease.BeatPrefix) })
		}
		s.commit(conditions, e.Writes, storeTimeout, func(c committed, ok bool) {
			a := lease.Answer{ID: e.ID, Outcome: lease.Unknown}
			switch {
			case ok && c.ok:
				a.Outcome, a.Revision = lease.Done, c.rev
				if beat {
					s.answered = s.w.now
				}
			case ok:
				a.Outcome = lease.Conflict
			}
			s.step(a)
		})
	case lease.List:
		s.list(e.Prefix, storeTimeout, func(l listed, ok bool) {
			a := lease.Answer{ID: e.ID, Outcome: lease.Unknown}
			if ok {
				a = lease.Answer{ID: e.ID, Outcome: lease.Done, Rows: l.rows, Revision: l.rev}
			}
			s.step(a)
		})
	case lease.Leads:
		s.leads(e)
	case lease.Stops:
		s.stops(e)
	case lease.InSyncSet:
		s.inSyncSet(e)
	}
}

// mayAct is asked before and after every change of state (C105).
func (s *server) mayAct(id lease.Partition) (point.Epoch, bool) {
	if epoch, ok := s.machine.MayAct(id, s.clock()); ok {
		return epoch, true
	}
	r := s.records[id]
	if r == nil || r.epoch == 0 {
		return 0, false
	}
	if s.w.opt.broken == validFromAnswer && (r.leading || r.lapsed) {
		return r.epoch, s.clock() < lease.Time(float64(s.answered-s.origin)*s.rate)+3*time.Second
	}
	return r.epoch, s.w.now < s.rogue
}

// mayWrite is mayAct, or being alone in sync while nothing is heard of the store (DESIGN §5.5).
func (s *server) mayWrite(id lease.Partition) (point.Epoch, bool) {
	if epoch, ok := s.mayAct(id); ok {
		return epoch, true
	}
	r := s.records[id]
	if r == nil || !r.lapsed || !r.alone || s.machine.Status().Good {
		return 0, false
	}
	return r.epoch, true
}

// record is what is known of one partition's lease, as storage/lead keeps it.
type record struct {
	placement point.PlacementID
	epoch     point.Epoch // of the newest Leads
	acts      point.Epoch // under which rows are taken: the brick knows it
	leading   bool
	lapsed    bool
	alone     bool
	single    bool // alone, or the row says that there are no rows yet
	holding   bool
	waiting   []func()
}

func (s *server) record(id lease.Partition) *record {
	r := s.records[id]
	if r == nil {
		r = &record{}
		s.records[id] = r
	}
	return r
}

// wakeUp has everybody who waits look again, when all of this step was heard.
func (s *server) wakeUp(r *record) {
	waiting := r.waiting
	r.waiting = nil
	for _, f := range waiting {
		s.after(20*time.Microsecond, "look again", f)
	}
}

func (s *server) member(r *record) lease.Member {
	return lease.Member{Placement: r.placement, Server: s.id, Store: s.disk.id}
}

func (r *record) see(l *lease.Lease, self lease.Member) {
	r.alone = len(l.InSync) == 1 && l.InSync[0] == self && !l.Empty
	r.single = len(l.InSync) == 1 && l.InSync[0] == self
}

func (s *server) leads(e lease.Leads) {
	r := s.record(e.Partition)
	if r.lapsed && r.epoch == e.Epoch {
		s.w.mark(leadsAfterLapse)
	}
	r.epoch, r.leading, r.lapsed = e.Epoch, true, false
	r.see(&e.Lease, s.member(r))
	s.w.say("%s/%s leads %s at epoch %d, in sync %d", s.id, s.self.Boot, e.Partition, e.Epoch, len(e.Lease.InSync))
	s.w.check.leads(s, e.Partition)
	s.wakeUp(r)
}

// stopTimeout bounds how long inserts under way are waited for before a lease is let go.
const stopTimeout = 5 * time.Second

func (s *server) stops(e lease.Stops) {
	id := e.Partition
	r := s.record(id)
	r.leading, r.lapsed = false, e.Lapsed
	s.w.n.stops++
	s.w.say("%s/%s stops %s: %s", s.id, s.self.Boot, id, e.Why)
	s.wakeUp(r)
	stopped := func() { s.step(lease.Stopped{Partition: e.Partition}) }
	if e.Lapsed {
		s.w.mark(lapsed)
		s.after(time.Millisecond, "stopped", stopped)
		return
	}
	s.quiesce(id, func(bool) { stopped() })
}

// quiesce calls f when nobody is inside a partition any more, or with false when that takes too long.
func (s *server) quiesce(id lease.Partition, f func(empty bool)) {
	g, over := s.gate(id), false
	end := func(empty bool) {
		if !over {
			over = true
			f(empty)
		}
	}
	if g.inside == 0 {
		s.after(time.Millisecond, "quiet", func() { end(true) })
		return
	}
	g.empty = append(g.empty, func() { end(true) })
	s.after(stopTimeout, "not quiet", func() { end(false) })
}

func (s *server) gate(id lease.Partition) *gate {
	g := s.gates[id]
	if g == nil {
		g = &gate{}
		s.gates[id] = g
	}
	return g
}

func (g *gate) leave() {
	if g.inside--; g.inside == 0 {
		empty := g.empty
		g.empty = nil
		for _, f := range empty {
			f()
		}
	}
}

func (s *server) inSyncSet(e lease.InSyncSet) {
	r := s.record(e.Partition)
	r.holding = false
	if e.OK && e.Lease.Epoch == r.epoch {
		r.see(&e.Lease, s.member(r))
	}
	s.wakeUp(r)
}

// publish ends what is allowed while nothing is heard of the store, once a heartbeat has been good for a while.
func (s *server) publish() {
	was := s.good
	if s.good = s.machine.Status().Good; s.good && was {
		for _, r := range s.records { // each by itself: the order does not matter
			r.lapsed = r.lapsed && r.leading
		}
	}
}

// holdTimeout bounds how long a first row waits for the in-sync list.
const holdTimeout = 2 * time.Second

// hold makes the in-sync list this placement alone: before the first row of an epoch is acked.
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
		r := s.record(id)
		switch {
		case over:
		case s.w.opt.broken == noHold, s.w.opt.broken == markStays && r.epoch == epoch && r.single && r.leading, r.epoch == epoch && r.alone && (r.leading || r.lapsed):
			limit.stop()
			end(true)
		case r.epoch > epoch || r.epoch == epoch && !r.leading:
			s.w.mark(holdFailed)
			limit.stop()
			end(false)
		default:
			r.waiting = append(r.waiting, look)
			if r.epoch == epoch && !r.holding {
				r.holding = true
				s.step(lease.SetInSync{Partition: id, Members: []lease.Member{s.member(r)}})
			}
		}
	}
	look()
}
