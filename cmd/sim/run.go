package main

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/mapstore"
	"github.com/spillwaydb/spillway/metadata/registry"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/point"
)

// Result is the result of a run.
type Result struct {
	Options  Options
	Events   int           // deliveries and faults
	Timers   int           // all that happened, ticks too
	Time     time.Duration // simulated
	Hash     uint64        // of all that happened, in order
	Broken   string        // the invariant that did not hold, or the part that did not converge; empty: none
	Tail     []string      // the last things that happened
	HealedIn time.Duration
	done     []decision
	n        counts
	marks    marks
}

// metadataServers is how many keep the table's files at first.
const metadataServers = 3

// Run plays a cluster's life: faults for Events events, then none, and the cluster must converge.
func Run(o Options, say func(string)) Result {
	w := newWorld(o)
	w.trace.all = say
	for i := range w.servers {
		w.boot(i, true)
	}
	for _, table := range w.tables {
		w.makeTable(table)
	}
	for _, g := range w.clients {
		g.start()
	}
	w.beginWith()
	w.upgrades()
	w.plansRestore()
	w.nemesis()
	w.unsettles()
	for w.events < o.Events && w.step(math.MaxInt64) {
		if w.timers%1024 == 0 {
			w.checkAll()
		}
	}
	healedIn := w.heal()
	if o.atEnd != nil {
		o.atEnd()
	}
	return Result{Options: w.opt, Events: w.events, Timers: w.timers, Time: w.now, Hash: w.hash, Broken: w.broken, Tail: w.trace.tail(60), HealedIn: healedIn, done: w.done, n: w.n, marks: w.marks}
}

// config is the configuration of a new table.
func (w *world) config(table string) topology.Config {
	return topology.Config{PartitionWidth: time.Hour, Replicas: min(w.replicasOf(table), len(w.servers)), InSyncMin: w.demanded[table]}
}

// makeTable makes a table before anything goes wrong.
func (w *world) makeTable(table string) {
	m, err := topology.New(table, w.config(table))
	if err != nil {
		panic(err)
	}
	var servers []topology.ServerID
	for _, i := range w.rng.Perm(len(w.servers))[:min(metadataServers, len(w.servers))] {
		servers = append(servers, w.servers[i].id)
	}
	made := false
	w.servers[w.indexOf(servers[0])].on(table).run(mapstore.NewCreate(w.txnID(), m, servers), func(d mapstore.Done) { made = d.Err == nil })
	// A swap without a majority is a rule that may be broken: the table itself is made all the same.
	for !made && w.broken == "" && w.step(time.Minute) {
	}
}

// beginWith makes the partitions that a run begins with.
func (w *world) beginWith() {
	for w.opt.Partitions > 0 && w.broken == "" && w.step(time.Minute) {
		open := false
		for _, table := range w.tables {
			v := w.clients[0].views.at(table)
			if v.m == nil || v.m.Len() < w.widths {
				open = true
			}
			if v.m != nil && v.m.Len() < w.widths && w.clients[0].changes == 0 {
				var times []point.Nanos
				for i := range w.widths {
					times = append(times, int64(i)*width)
				}
				w.clients[0].change(v, w.clients[0].cover(v, times...))
			}
		}
		if !open {
			return
		}
	}
}

// checkAll checks all partitions on all servers, besides the checks at every beginning of a lease.
func (w *world) checkAll() {
	w.check.sureHaveAll()
	for _, table := range w.tables {
		t := w.check.at(table)
		if t.m == nil {
			continue
		}
		for p := range t.m.All() {
			var acts *server
			for _, s := range w.servers {
				if s.dead || w.now < s.rogue {
					continue
				}
				if _, ok := s.mayAct(t.part(p.ID)); ok {
					if acts != nil {
						w.fail("I3: %s and %s may both act for %s", acts.id, s.id, t.part(p.ID))
					}
					acts = s
				}
			}
		}
	}
}

// healMax bounds the time of a cluster without faults to converge, and stepMax the time between two steps of its master, or two segments that followers
// adopt. The master moves two partitions at a time, each in three steps, and a server with one slot accepts one segment of each leader a retry, 5 s, where
// hundreds of chains flush at once: many of them need longer than healMax.
const (
	healMax = 3 * time.Minute
	stepMax = 30 * time.Second
)

// heal ends all faults. Then, within bounded time, the cluster must be whole; that time is returned.
func (w *world) heal() time.Duration {
	if w.broken != "" {
		return 0
	}
	w.healed, w.healedAt, w.calm = true, w.now, true
	w.allNew()
	w.dataFrom, w.pace = w.dataNow(), 0 // else there is always something to plan
	w.leaveDead()
	w.say("all is well again, but for %q", w.without)
	began := w.now
	w.net.calm(len(w.nodes))
	w.store.away = 0
	for _, x := range w.store.watches {
		x.stalled = 0
	}
	for i, s := range w.servers {
		s.rogue = 0
		switch {
		case s.id == w.without:
			w.kill(i)
			continue
		case s.dead:
			w.boot(i, false)
			continue
		}
		s.disk.slow, s.disk.full, s.disk.fails = 0, 0, false
		s.paused = w.now
		s.resume()
	}
	for _, s := range w.servers {
		if !s.dead {
			s.scrub()
		}
	}
	w.putBack()
	if w.without != "" {
		w.untilWhole(began)
		w.mark(coreWhole)
		w.boot(w.indexOf(w.without), false)
		w.say("%s is there again", w.without)
		w.without, began = "", w.now
	}
	return w.untilWhole(began)
}

// leaveDead chooses, in some runs, a server that stays dead when all else is well: everything that does not need
// it must go on. A majority of each table's metadata servers has its file without it.
func (w *world) leaveDead() {
	if !w.opt.Faults.has(crash) || len(w.servers) < 3 || w.rng.IntN(3) > 0 || w.marks[storeRestored] > 0 { // leases of a backup may need the dead one
		return
	}
	if s := w.servers[w.rng.IntN(len(w.servers))]; w.check.mayLose(s) {
		w.without = s.id
	}
}

// untilWhole waits until the cluster is whole, and returns the time since began.
func (w *world) untilWhole(began time.Duration) time.Duration {
	progress := func() int { return w.n.steps + w.marks[segmentAdopted] }
	why, until, steps := "not looked yet", began+healMax, progress()
	for next := w.now; w.broken == ""; {
		if !w.step(until) {
			break
		}
		if now := progress(); now > steps {
			steps, until = now, min(max(until, w.now+stepMax), began+10*healMax)
		}
		if w.now < next {
			continue
		}
		if why = w.notWhole(); why == "" {
			if w.without == "" && w.writesLast() {
				continue
			}
			if w.without == "" {
				w.rowsAreThere()
			}
			return w.now - began
		}
		next = w.now + 200*time.Millisecond
	}
	if w.broken == "" {
		w.fail("%s, %v after all was well", why, (w.now - began).Round(time.Second))
	}
	return 0
}

// putBack does the operators' work at the end: partitions go online, prohibitions go, except fences of the master, and no server is
// drained any more.
func (w *world) putBack() {
	for _, row := range w.store.list(registry.Prefix) {
		if s, err := registry.Decode(row); err == nil && s.Drain != nil {
			s.Drain = nil
			w.store.commit(nil, []coord.Write{{Key: row.Key, Value: s.Encode()}})
		}
	}
	for _, row := range w.store.list(lease.Prefix) {
		if id, _, ok := lease.ParseProhibitKey(row.Key); ok && !w.isFenced(id) {
			w.store.commit(nil, []coord.Write{{Key: row.Key, Delete: true}})
		}
		if _, ok := lease.ParseRowKey(row.Key); ok {
			if l, err := lease.DecodeLease(row.Value); err == nil && l.Offline != nil {
				w.store.commit(nil, []coord.Write{{Key: row.Key, Value: l.TakenOnline().Encode()}})
			}
		}
	}
}

// notWhole reports why the cluster is not whole yet; "" if it is.
func (w *world) notWhole() string {
	w.n.stuck = 0
	for _, g := range w.clients {
		switch {
		case g.changes > 0:
			return fmt.Sprintf("not whole: %d changes of %s are not answered", g.changes, g.name)
		case g.open > w.waiting(g):
			return fmt.Sprintf("not whole: %d rows of %s are not acked: %s", g.open, g.name, fmt.Sprintf(g.last.form, g.last.args...))
		}
	}
	for _, table := range w.tables {
		if why := w.tableNotWhole(w.check.at(table)); why != "" {
			return why
		}
	}
	if why := w.nothingStaged(); why != "" {
		return "not whole: " + why
	}
	if why := w.nothingPlanned(); why != "" {
		return "not whole: " + why
	}
	if why := w.copiesNotWhole(); why != "" {
		return "not whole: " + why
	}
	if why := w.remembersTooMuch(); why != "" {
		return "not whole: " + why
	}
	return ""
}

// remembersTooMuch checks that the machines of servers know the partitions that exist, or have rows in the store or on the server's disk, and no others,
// however many were dropped (I5).
func (w *world) remembersTooMuch() string {
	there := map[lease.Partition]bool{}
	for _, table := range w.tables {
		t := w.check.at(table)
		for p := range t.m.All() {
			there[t.part(p.ID)] = true
		}
	}
	for _, row := range w.store.list(lease.Prefix) {
		for _, parse := range []func(string) (lease.Partition, bool){lease.ParseRowKey, lease.ParseBornKey} {
			if id, ok := parse(row.Key); ok {
				there[id] = true
			}
		}
	}
	for _, s := range w.servers {
		if s.dead {
			continue
		}
		most := len(there)
		for _, id := range s.disk.held() {
			if !there[id] {
				most++
			}
		}
		if n := s.machine.Known(); n > most {
			return fmt.Sprintf("I5: the lease machine of %s knows %d partitions, and %d are there", s.id, n, most)
		}
		if n := s.lead.Known(); n > most {
			return fmt.Sprintf("I5: the machine of leading of %s knows %d partitions, and %d are there", s.id, n, most)
		}
	}
	return ""
}

func (w *world) tableNotWhole(t *truth) string {
	c := w.check
	if t.row.Dropped || t.row.Dropping {
		return fmt.Sprintf("not whole: %s is dropped, or about to be, and no process ends the drop", t.name)
	}
	for _, id := range t.row.Servers {
		if id != w.without && c.has[id][t.row.Txn] == nil {
			return fmt.Sprintf("not whole: metadata server %s does not have the file of transaction %d of %s", id, t.row.Seq, t.name)
		}
	}
	for _, s := range w.servers {
		if s.id == w.without {
			continue
		}
		if v := s.views.at(t.name); v.m == nil || v.m.Seq != t.row.Seq || v.mapRev != v.rev {
			return fmt.Sprintf("not whole: %s does not know the map of transaction %d of %s", s.id, t.row.Seq, t.name)
		}
	}
	for p := range t.m.All() {
		id := t.part(p.ID)
		leader := w.leader(id)
		if leader != nil {
			if r := leader.disk.copies[id]; r != nil && r.closed {
				return fmt.Sprintf("not whole: %s is damaged on %s, and it was not repaired", id, leader.id)
			}
			continue
		}
		if p.TimeLo > w.hour() && c.listed[id].Epoch == 0 {
			continue // its time has not come
		}
		if w.canLead(id, p) {
			return fmt.Sprintf("not whole: no server leads %s %s; its row: %+v", id, p, c.listed[id])
		}
		w.n.stuck++
		if c.hasLiving(id) && w.without == "" {
			return fmt.Sprintf("I1: no server can lead %s, which has acked rows", id)
		}
	}
	return ""
}

func (w *world) leader(id lease.Partition) *server {
	for _, s := range w.servers {
		if s.dead {
			continue
		}
		if _, ok := s.machine.MayAct(id, s.clock()); ok {
			return s
		}
	}
	return nil
}

// waiting counts the rows of a gateway that wait for the server that stays dead: it alone can lead their partitions.
func (w *world) waiting(g *gateway) (n int) {
	if w.without == "" {
		return 0
	}
	for _, in := range g.unacked {
		k := w.history.keys[in.key]
		t := w.check.at(k.table)
		if p, ok := t.m.Find(k.ring, k.t); ok && (w.leader(t.part(p.ID)) == nil && !w.canLead(t.part(p.ID), p) || w.needsDead(t, p)) {
			n++
		}
	}
	return n
}

// canLead reports whether a server that is listed as in sync, with its store, has the partition by the map or has rows of it; or has an empty one by the map.
func (w *world) canLead(id lease.Partition, p *topology.Partition) bool {
	l, ever := w.check.listed[id]
	for _, s := range w.servers {
		if s.id == w.without {
			continue
		}
		pl, on := p.On(s.id)
		if !ever || l.Epoch == 0 || l.Vacant() {
			if on {
				return true
			}
			continue
		}
		if on && l.Empty {
			return true
		}
		r := s.disk.copies[id]
		for _, m := range l.InSync {
			if m.Store == s.disk.id && (on && pl.ID == m.Placement || r != nil && r.placement == m.Placement) {
				return true
			}
		}
	}
	return false
}

// rowsAreThere checks that every acked row is at the placement that leads, or that its answers say that they are incomplete (I1).
func (w *world) rowsAreThere() {
	for _, id := range w.check.ids() {
		if _, ok := w.check.at(id.Table).m.ByID(id.ID); !ok {
			if w.check.hasLiving(id) {
				w.fail("I1: %s is gone from the map with acked rows, and it was not dropped", id)
			}
			continue
		}
		leader := w.leader(id)
		if leader == nil {
			if w.check.hasLiving(id) {
				w.fail("I1: no server leads %s, which has acked rows", id)
			}
			continue
		}
		q := question{id: id, keys: slices.Sorted(maps.Keys(w.check.rows[id])), next: math.MaxUint64}
		f := leader.read(q)
		if !f.may {
			w.fail("I1: %s leads %s, all is well, and it does not answer", leader.id, id)
			continue
		}
		w.check.read(leader, q, f)
	}
}

// String is the one line at the end.
func (r Result) String() string {
	n := r.n
	end := fmt.Sprintf("whole %.1f s after the faults", r.HealedIn.Seconds())
	if r.Broken != "" {
		end = "BROKEN"
	}
	return fmt.Sprintf("seed %#x: %d deliveries and faults, %d timers, %v simulated, hash %016x; "+
		"%d transactions (%d proposed, %d stale, %d invalid, %d unresolved), %d takes, %d stops, "+
		"%d rows, %d acked (%d on lost disks), %d reads, %d refused, %d fenced, %d unconfirmed, %d files swept, %d split, %d unloaded (%d with rows), %d removed, %d steps of masters, %d empty ones moved, %d stuck; "+
		"%d rows kept by copies, %d surplus, %d of them handed over, %d times another number demanded; %d tables dropped, %d made again; %d files and rows damaged, %d of them noticed, %d torn, %d fsyncs failed, %d disks full; "+
		"%d crashes, %d disks lost, %d pauses, %d cuts, %d outages, %d compactions, %d slow disks, %d rogues, %d meddled; %v; %s",
		r.Options.Seed, r.Events, r.Timers, r.Time.Round(time.Second), r.Hash,
		n.txns, n.changes, n.stale, n.invalid, n.unresolved, n.takes, n.stops,
		n.rows, n.acked, n.lost, n.reads, n.refused, n.fenced, n.unconfirmed, n.sweeps, n.splits, n.finals, n.emptied, n.removed, n.steps, n.moved, n.stuck,
		n.kept, n.surplus, n.handed, n.demands, n.drops, n.remade, n.rots, n.found, n.torn, n.fsyncs, n.fulls,
		n.crashes, n.wipes, n.pauses, n.cuts, n.outages, n.compactions, n.slows, n.rogues, n.people, n.asked, end)
}

// Again is the line to paste that plays the same run.
func (r Result) Again() string { return r.Options.again() }
