package main

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/mapstore"
	"github.com/spillwaydb/spillway/metadata/registry"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/protocols/rank"
	"github.com/spillwaydb/spillway/storage/lead/rules"
	replicas "github.com/spillwaydb/spillway/storage/replica"
	"github.com/spillwaydb/spillway/storage/unload"
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
	rogue    time.Duration // until when it believes that it leads all it led
	answered time.Duration // when the last renewal was answered, by the real clock: for a broken rule

	// Discovery and hand-over, discovery.go.
	lead       *rules.Machine
	leadWake   *timer
	effects    []rules.Effect
	performing bool
	inbox      []lease.Input // that wait for the one being handled
	stepping   bool
	waiting    map[lease.Partition][]func() // for the result of Holding
	listed     map[lease.Partition]lease.Lease
	acts       map[lease.Partition]point.Epoch // under which rows are accepted: the brick has it
	gates      map[lease.Partition]*door

	// Copies, chains.go.
	links  map[lease.Partition]*link
	linked []lease.Partition // the keys of links, in order
	posted [][]parcel        // to each server, that go together
	looked bool              // the chains are about to be looked at

	// Segments, segments.go.
	senders  map[lease.Partition]*sending
	receiver *replicas.Receiver
	handing  map[lease.Partition]bool // partitions of which rows are to be handed over that were set aside
	incoming []*incoming

	// Rows of partitions that unload, unload.go.
	moves map[lease.Partition]*moving
	begun map[lease.Partition]point.Epoch // under which they were last moved

	// Ends of slices, ending.go.
	leases     map[lease.Partition]lease.Lease
	leasesGone map[lease.Partition]bool
	refusals   unload.Refusals
	enders     []ender

	// Staged rows, staging.go.
	stager *stager // nil: none are
	beats  map[topology.ServerID]lease.Time

	// METADATA files.
	views  *views
	shelf  *mapstore.Shelf
	hosted map[string]*hosted
	seen   map[lease.Partition]*rank.Seen // stamps of rows that came

	// The master, master.go.
	candidate  *candidate
	registered map[topology.ServerID]registry.Server
	drained    bool
}

// hosted is a server's part for one table.
type hosted struct {
	*server
	*view

	// METADATA files.
	turns    []func()
	catching bool
	sweeping bool

	// Discovery.
	batching bool
}

// on gives the server's part for a table.
func (s *server) on(table string) *hosted {
	s.views.at(table)
	return s.hosted[table]
}

// boot starts a new process on server i's directory; fresh: on an emptied one.
func (w *world) boot(i int, fresh bool) {
	old := w.servers[i]
	w.kill(i)
	w.boots++
	s := &server{
		proc: &proc{w: w, node: i, name: string(old.id), rate: old.rate, older: old.older, origin: w.now - time.Duration(w.rng.IntN(1e9))},
		id:   old.id, disk: old.disk,
		waiting: map[lease.Partition][]func(){}, listed: map[lease.Partition]lease.Lease{}, acts: map[lease.Partition]point.Epoch{},
		gates: map[lease.Partition]*door{}, links: map[lease.Partition]*link{}, moves: map[lease.Partition]*moving{}, begun: map[lease.Partition]point.Epoch{}, leasesGone: map[lease.Partition]bool{}, handing: map[lease.Partition]bool{}, senders: map[lease.Partition]*sending{}, receiver: replicas.NewReceiver(w.segments), posted: make([][]parcel, len(w.servers)), hosted: map[string]*hosted{}, seen: map[lease.Partition]*rank.Seen{}, registered: map[topology.ServerID]registry.Server{}, beats: map[topology.ServerID]lease.Time{},
	}
	if fresh || s.disk == nil {
		name := lease.StoreID(fmt.Sprintf("dir%d", w.boots))
		if w.opt.broken == sameDirectory && s.disk != nil {
			name = s.disk.id
		}
		s.disk = newDisk(name)
	}
	s.self = lease.Self{Server: s.id, Boot: lease.Boot(fmt.Sprintf("b%d", w.boots)), Store: s.disk.id}
	var err error
	if s.machine, err = lease.New(s.self, lease.Settings{AcquireMax: w.limits.acquires}, rand.New(rand.NewPCG(w.rng.Uint64(), 1))); err != nil {
		panic(err)
	}
	var seen []rules.Seen
	for _, table := range slices.Sorted(maps.Keys(s.disk.seen)) {
		seen = append(seen, rules.Seen{Table: table, Seq: s.disk.seen[table].Seq, Txn: s.disk.seen[table].Txn})
	}
	s.lead = rules.New(s.id, s.disk.id, rules.Settings{Copies: w.copies(), Unload: w.unloads && (!s.older || w.ends)}, seen, rand.New(rand.NewPCG(w.rng.Uint64(), 2)))
	w.servers[i], w.nodes[i] = s, s.proc
	w.say("%s starts as %s on %s", s.id, s.self.Boot, s.disk.id)
	s.disk.start(w)
	s.begin()
}

// begin follows the store and starts what runs again and again. The order decides what the seed makes of it.
func (s *server) begin() {
	w := s.w
	s.shelf = mapstore.NewShelf(s.disk.infos())
	s.views = &views{p: s.proc, self: s, of: map[string]*view{}, made: func(v *view) {
		h := &hosted{server: s, view: v}
		s.hosted[v.table] = h
		v.changed, v.rowSeen = h.mapChanged, h.rowChanged
	}}
	s.step(lease.Tick{Wall: s.w.wall()})
	s.follow(lease.Prefix,
		func(l listed) {
			s.learnLeases(l)
			s.step(lease.Listed{Rows: l.rows, Revision: l.rev})
		},
		func(events []coord.Event) {
			for _, e := range events {
				s.learnLease(e)
				if id, ok := lease.ParseBeatKey(e.Key); ok && w.store.isBeat(e) {
					s.beats[id] = s.clock()
				}
			}
			s.step(lease.Watched{Events: events})
		})
	s.views.follow()
	s.register()
	s.follow(registry.Prefix, func(l listed) {
		for _, row := range l.rows {
			s.sees(row)
		}
	}, func(events []coord.Event) {
		for _, e := range events {
			s.sees(e.Row)
		}
	})
	if s.candidate = newCandidate(s); !w.opt.scripted {
		s.candidate.stand()
	}
	s.every(sweepEvery, "sweep", func() {
		s.scrub()
		for _, table := range w.tables {
			s.on(table).sweep()
		}
	})
	s.decide(rules.Clock{Now: w.hour()})
	s.every(time.Second, "publish", func() {
		s.decide(rules.Clock{Now: w.hour()})
		s.decide(s.published())
	})
	if !w.opt.scripted {
		s.every(rules.MeterEvery, "count", func() { s.decide(s.accepted()) })
	}
	s.chains()
	if w.stages {
		s.stager = newStager(s)
		s.stager.begin()
	}
	for _, id := range slices.SortedFunc(maps.Keys(s.disk.copies), comparePartitions) {
		if len(s.disk.copies[id].surplus) > 0 {
			s.handsOver(id)
		}
	}
	s.every(10*time.Second, "reconcile", func() {
		for _, table := range w.tables {
			h := s.on(table)
			h.catchUp()
			h.refresh()
		}
		s.discover(true, w.tables...)
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

// hour is the servers' clock for the time of partitions: a run begins in the first hour of its tables, so that most partitions are of the
// future. When all is well no partition is any more: all must be led.
func (w *world) hour() point.Nanos {
	switch {
	case w.opt.scripted:
		return w.dataNow()
	case w.healed:
		return point.Nanos(w.now) + 2*int64(w.widths)*width
	}
	return point.Nanos(w.now)
}

func (w *world) wall() time.Time { return time.Unix(1_800_000_000, int64(w.now)) }

// Leases, as package keeper runs them.

// step has the lease machine handle an input, and performs its effects, in order. An input that comes of an effect waits until the
// others are performed: the keeper handles inputs one after another.
func (s *server) step(in lease.Input) {
	s.inbox = append(s.inbox, in)
	if s.stepping {
		return
	}
	s.stepping = true
	for i := 0; i < len(s.inbox); i++ { // it grows meanwhile
		for _, e := range s.machine.Step(s.clock(), s.inbox[i], nil) {
			s.perform(e)
		}
	}
	clear(s.inbox)
	s.inbox = s.inbox[:0]
	s.stepping = false
	s.wake.stop()
	s.wake = s.after(max(s.machine.Wake()-s.clock(), time.Millisecond), "tick", func() { s.step(lease.Tick{Wall: s.w.wall()}) })
}

func (s *server) perform(e lease.Effect) {
	switch e := e.(type) {
	case lease.Commit:
		conditions := e.Conditions
		beat := len(e.Writes) > 0 && strings.HasPrefix(e.Writes[0].Key, lease.BeatPrefix)
		renewal := beat && e.Writes[0].Key == lease.BeatKey(s.id) // not a row in the place of another server's missing one
		if s.w.opt.broken == heartbeatNotCompared && !beat {
			conditions = slices.DeleteFunc(slices.Clone(conditions), func(c coord.Condition) bool { return strings.HasPrefix(c.Key, lease.BeatPrefix) })
		}
		s.commit(conditions, e.Writes, storeTimeout, func(c committed, ok bool) {
			a := lease.Answer{ID: e.ID, Outcome: lease.Unknown}
			switch {
			case ok && c.ok:
				a.Outcome, a.Revision = lease.Done, c.rev
				if renewal {
					s.answered = s.w.now
				}
			case ok:
				a.Outcome = lease.Conflict
			case renewal && s.w.opt.broken == renewalsAssumed:
				row, _ := s.w.store.get(e.Writes[0].Key) // the next renewal finds it: only the time is wrong
				a.Outcome, a.Revision = lease.Done, row.Revision
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
	case lease.EverLed:
		s.decide(rules.EverLed{EverLed: e})
	case lease.SetBack:
		s.w.fail("%s says that the store was set back while it ran", s.self.Boot)
	case lease.InSyncSet:
		s.listed[e.Partition] = e.Lease
		s.decide(rules.InSyncAnswered{InSyncSet: e})
	}
}

// published is what a server says of itself for its heartbeat. A disk that is full accepts no rows, and no copies. A slow one is said to be slow at once.
func (s *server) published() rules.Published {
	in := rules.Published{Good: s.machine.Status().Good, Room: 1 << 30}
	if in.Fsync = 3 * time.Millisecond; s.w.now < s.disk.slow {
		in.Fsync = time.Second
	}
	if s.disk.isFull(s.w) {
		in.Room, in.ReadOnly = 1, "its disk is full"
	}
	for _, key := range s.receiver.NoRoom() {
		in.NoRoom = append(in.NoRoom, lease.Partition{Table: key.Table, ID: key.Partition})
	}
	return in
}
