package main

import (
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/registry"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/staging"
)

// drawStaging chooses whether rows of leaders that are away are staged, and whether some are smeared: in half of the runs. It draws from a source of its own. A
// backup of the coordination store lacks announcements, which servers make again within a second: restored stores are left out.
func (w *world) drawStaging() {
	rng := rand.New(rand.NewPCG(w.opt.Seed, 0x57a6ed))
	ruled := w.opt.broken == "" || slices.Contains(stagingRules, w.opt.broken)
	if w.opt.scripted || w.opt.Faults.has(restore) || w.opt.Servers < 2 || !ruled || rng.IntN(2) == 0 && w.opt.broken == "" {
		return
	}
	w.stages, w.smears = true, rng.IntN(2) == 0
	w.staging = staging.Settings{BytesMax: []int64{1 << 20, 12 * rowBytes}[rng.IntN(2)],
		TurnDelay: []time.Duration{2 * time.Second, 10 * time.Second}[rng.IntN(2)], AwayAfter: []time.Duration{1500 * time.Millisecond, 5 * time.Second}[rng.IntN(2)]}
}

// stagedRow is a frame with one row.
type stagedRow struct {
	staging.Frame
	row row
}

// stage logs a frame, or another record of it.
func (d *disk) stage(f stagedRow) {
	old, had := d.staged[f.ID]
	d.staged[f.ID] = f
	d.wrote(func() {
		if had {
			d.staged[f.ID] = old
		} else {
			delete(d.staged, f.ID)
		}
	})
}

// unstage logs that a frame is not held any more. After a crash it may be back.
func (d *disk) unstage(id staging.ID) {
	if old, had := d.staged[id]; had {
		delete(d.staged, id)
		d.wrote(func() { d.staged[id] = old })
	}
}

// stager is a server's part in staging, as storage/staging/runner: staging.Machine decides.
type stager struct {
	*server
	m         *staging.Machine
	held      map[staging.ID]stagedRow // durable here
	given     map[staging.ID]stagedRow // that other servers hold now, and readers may not know that yet
	announced map[string]lease.Time    // tables, and when each last had frames
	pending   map[string]int           // frames being logged, by table
	known     bool                     // announced is as in the registry
	writes    []func()                 // of the registry, one at a time
	looks     *timer
	covering  bool
}

const (
	lookEvery    = 50 * time.Millisecond
	stageTimeout = time.Second
	announcedFor = 4 * lease.Time(time.Second)
	takeAfter    = 4 * time.Second
)

// newStager loads the frames that are on the disk.
func newStager(s *server) *stager {
	set := s.w.staging
	set.Server = s.id
	x := &stager{server: s, m: staging.New(set), held: map[staging.ID]stagedRow{}, given: map[staging.ID]stagedRow{}, announced: map[string]lease.Time{}, pending: map[string]int{}}
	var all []stagedRow
	for _, f := range s.disk.staged {
		all = append(all, f)
	}
	slices.SortFunc(all, func(a, b stagedRow) int { return a.ID.Compare(b.ID) })
	for _, f := range all {
		x.m.Restore(f.Frame)
		x.held[f.ID] = f
	}
	s.w.check.holds(s.disk.id, all)
	return x
}

// begin has frames forwarded.
func (x *stager) begin() {
	x.every(time.Second, "staged frames", x.beat)
	x.look()
}

// now is the server's wall clock.
func (x *stager) now() time.Time { return x.w.wall() }

// look forwards the frames that are due.
func (x *stager) look() {
	x.looks.stop()
	x.endDropped()
	for _, f := range x.m.Due(x.now()) {
		x.forward(f)
	}
	if x.m.Len() > 0 {
		x.looks = x.after(lookEvery, "look at staged frames", x.look)
	}
}

// newest gives the newest map of a table that is here, and below which number maps are of tables of that name that were dropped.
func (x *stager) newest(table string) (*topology.Map, uint64) {
	v := x.on(table)
	if v.row.Dropped {
		return v.m, v.row.Seq + 1
	}
	return v.m, v.row.Begun
}

// endDropped ends the frames of tables that were dropped.
func (x *stager) endDropped() {
	for _, table := range x.m.Tables() {
		_, begun := x.newest(table)
		for _, f := range x.m.End(table, begun) {
			x.w.mark(stagedEnded)
			x.drop(f.ID)
		}
	}
}

// drop forgets a frame.
func (x *stager) drop(id staging.ID) {
	if f, ok := x.held[id]; ok {
		delete(x.held, id)
		x.w.say("%s forgets the staged value %x of map %d", x.id, f.row.value, f.MapSeq)
		x.disk.unstage(id)
		x.w.check.releases(x.disk.id, f)
	}
}

// forward gives a frame to the leader of its partition.
func (x *stager) forward(f staging.Frame) {
	h, ok := x.held[f.ID]
	m, begun := x.newest(f.Table)
	postponed := func() {
		x.after(time.Millisecond, "postponed", func() { x.m.Postponed(x.now(), f.ID) })
	}
	if !ok || m == nil || f.Before(begun) {
		postponed()
		return
	}
	k := x.w.history.keys[h.row.key]
	at, found := m.Find(k.ring, k.t)
	if !found {
		x.cover(f.Table, k.t)
		postponed()
		return
	}
	id := lease.Partition{Table: f.Table, ID: at.ID}
	holder := x.w.check.listed[id].Holder
	if holder == "" {
		postponed()
		return
	}
	to := x.w.indexOf(holder)
	ask(x.proc, to, insertTime, "insert", func(say func(answer)) {
		x.w.servers[to].insert(id, insertion{row: h.row, inherited: true, staged: h.row.value, stamp: h.row.rank}, say)
	}, func(a answer, answered bool) {
		if !(answered && a.acked) && x.w.opt.broken != forgottenUnacked {
			x.m.Postponed(x.now(), f.ID)
			return
		}
		x.w.mark(stagedForwarded)
		x.w.say("%s has given the staged value %x to %s, which leads %s", x.id, h.row.value, holder, id)
		others, held := x.m.Forwarded(f.ID)
		if !held {
			return
		}
		x.drop(f.ID)
		for _, o := range others {
			to := x.w.indexOf(o)
			ask(x.proc, to, stageTimeout, "forget", func(say func(bool)) {
				if y := x.w.servers[to].stager; y != nil && y.m.Forget(f.ID) {
					y.drop(f.ID)
				}
				say(true)
			}, func(bool, bool) {})
		}
	})
}

// cover proposes a partition for a row.
func (x *stager) cover(table string, t point.Nanos) {
	v := x.on(table).view
	if x.covering || v.m == nil {
		return
	}
	ops := x.w.clients[0].cover(v, t)
	if ops == nil {
		return
	}
	x.covering = true
	c, to := x.w.propose(v, ops), x.w.rng.IntN(len(x.w.servers))
	ask(x.proc, to, 20*time.Second, "change", func(answer func(changedAnswer)) { x.w.servers[to].change(c, answer) }, func(a changedAnswer, ok bool) {
		x.covering = false
		if ok && a.err == nil {
			x.w.check.reportedCommitted(c.Txn, a.changed)
		}
		v.refresh()
	})
}

// beat looks at the other holders, stages their frames again, and keeps the announcement.
func (x *stager) beat() {
	leaving := x.registered[x.id].Drain != nil
	x.m.Leave(leaving)
	if x.m.Len() > 0 {
		for _, p := range x.m.Partners() {
			x.m.Answered(x.now(), p, x.isLive(p))
			if x.w.opt.broken != directoryIgnored {
				x.m.Began(p, x.registered[p].Since)
			}
		}
		var others []topology.ServerID
		for _, o := range x.w.servers {
			if srv, ok := x.registered[o.id]; ok && o.id != x.id && srv.Drain == nil && x.isLive(o.id) {
				others = append(others, o.id)
			}
		}
		for _, r := range x.m.Restages(x.now(), others) {
			x.restage(r)
		}
		x.look()
	}
	x.retract()
}

// isLive reports whether a server's heartbeat was seen lately.
func (x *stager) isLive(id topology.ServerID) bool {
	at, ok := x.beats[id]
	return ok && time.Duration(x.clock()-at) < takeAfter
}

// restage stages a frame on another server, and lets the other holders know.
func (x *stager) restage(r staging.Restage) {
	h, ok := x.held[r.ID]
	if !ok {
		x.m.Restaged(x.now(), r, false)
		return
	}
	h.Holders = r.Holders
	open, all := len(r.Servers), true
	for _, id := range r.Servers {
		to := x.w.indexOf(id)
		ask(x.proc, to, stageTimeout, "stage", func(say func(bool)) { x.w.servers[to].stages(h, say) }, func(kept, answered bool) {
			if all = all && kept && answered; open > 1 {
				open--
				return
			}
			gone, renamed := x.m.Restaged(x.now(), r, all)
			if gone || renamed {
				x.w.mark(stagedAgain)
				x.w.say("%s has staged the value %x again at %s", x.id, h.row.value, r.To)
			}
			if f, held := x.held[r.ID]; gone && held {
				x.given[r.ID] = f
				x.after(staging.ReadableFor, "given", func() { delete(x.given, r.ID) })
				x.drop(r.ID)
			}
			if renamed {
				x.logHolders(h)
			}
		})
	}
}

// logHolders logs a frame again with its holders.
func (x *stager) logHolders(h stagedRow) {
	x.disk.stage(h)
	x.disk.sync(x.proc, nil, func() {
		if _, still := x.held[h.ID]; still {
			x.held[h.ID] = h
		} else { // forgotten meanwhile, before this record: it must not come back
			x.disk.unstage(h.ID)
		}
	})
}

// stages accepts a frame from a gateway or another holder: durably, and announced.
func (s *server) stages(f stagedRow, say func(kept bool)) {
	x := s.stager
	if x == nil || s.disk.isFull(s.w) || s.disk.fenced {
		say(false)
		return
	}
	if _, begun := x.newest(f.Table); f.Before(begun) {
		say(false)
		return
	}
	f.Since = x.now()
	hold, err := x.m.Admit(f.Frame)
	if err != nil {
		if !strings.Contains(err.Error(), "another request") {
			s.w.mark(stagingFull)
		}
		say(false)
		return
	}
	if !hold {
		x.renamed(f, say)
		return
	}
	x.pending[f.Table]++
	end := func(kept bool) {
		if x.pending[f.Table]--; x.pending[f.Table] == 0 {
			delete(x.pending, f.Table)
		}
		if say(kept); !kept {
			x.m.Abandon(f.ID)
		}
	}
	log := func(announced bool) {
		if !announced || s.disk.isFull(s.w) || s.disk.fenced {
			end(false)
			return
		}
		s.disk.stage(f)
		store := s.disk.id
		s.disk.sync(s.proc, func() { s.w.check.holds(store, []stagedRow{f}) }, func() {
			s.w.say("%s has staged the value %x of key %d for %v", s.id, f.row.value, f.row.key, f.Holders)
			x.m.Logged(f.ID)
			x.held[f.ID] = f
			if _, ok := x.announced[f.Table]; ok {
				x.announced[f.Table] = x.clock()
			}
			end(true)
			x.look()
		})
	}
	if _, ok := x.announced[f.Table]; ok || s.w.opt.broken == notAnnounced {
		log(true)
		return
	}
	x.announce(f.Table, log)
}

// renamed keeps the holders of a frame that is held, if they are others.
func (x *stager) renamed(f stagedRow, say func(bool)) {
	h, ok := x.held[f.ID]
	if !ok || !x.m.Renamed(f.Frame) {
		say(true)
		return
	}
	x.w.mark(stagingRenamed)
	h.Holders = f.Holders
	x.disk.stage(h)
	x.disk.sync(x.proc, nil, func() {
		if _, still := x.held[f.ID]; still {
			x.held[f.ID] = h
			x.m.Rename(x.now(), f.ID, f.Holders)
		} else {
			x.disk.unstage(f.ID)
		}
		say(true)
	})
}

// announce makes a table known before the first ack.
func (x *stager) announce(table string, done func(bool)) {
	x.inTurn(func(next func()) {
		end := func(ok bool) {
			done(ok)
			next()
		}
		if _, ok := x.announced[table]; ok {
			end(true)
			return
		}
		x.write(append(x.tables(), table), func(ok bool) {
			if ok {
				x.announced[table] = x.clock()
			}
			end(ok)
		})
	})
}

// inTurn calls f when the writes of the registry before it are over; f calls its argument when its own is.
func (x *stager) inTurn(f func(next func())) {
	x.writes = append(x.writes, func() {
		f(func() {
			if x.writes = x.writes[1:]; len(x.writes) > 0 {
				x.writes[0]()
			}
		})
	})
	if len(x.writes) == 1 {
		x.writes[0]()
	}
}

// tables lists those that are announced, or have frames.
func (x *stager) tables() []string {
	all := x.m.Tables()
	for t := range x.announced {
		all = append(all, t)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// write writes tables into the server's row of the registry.
func (x *stager) write(tables []string, done func(ok bool)) {
	slices.Sort(tables)
	tables = slices.Compact(tables)
	key := registry.Key(x.id)
	x.get(key, storeTimeout, func(g got, ok bool) {
		row, err := registry.Decode(g.row)
		if !ok || !g.ok || err != nil || row.Store != x.disk.id {
			done(false)
			return
		}
		row.Staging = registry.StagingOf(tables)
		x.commit([]coord.Condition{{Key: key, Revision: g.row.Revision}}, []coord.Write{{Key: key, Value: row.Encode()}}, storeTimeout, func(c committed, ok bool) { done(ok && c.ok) })
	})
}

// retract withdraws the tables that have had no frames for a while, and announces those that have.
func (x *stager) retract() {
	if len(x.writes) > 0 {
		return
	}
	x.inTurn(func(next func()) {
		now, changed := x.clock(), !x.known
		for _, t := range x.m.Tables() {
			if _, ok := x.announced[t]; !ok {
				changed = true
			}
			x.announced[t] = now
		}
		for t := range x.pending {
			if _, ok := x.announced[t]; ok {
				x.announced[t] = now
			}
		}
		write := func() {
			for t, last := range x.announced {
				if now-last >= announcedFor && x.pending[t] == 0 {
					x.w.mark(stagingRetracted)
					delete(x.announced, t) // a frame that comes now announces it again, after this
					changed = true
				}
			}
			if !changed {
				next()
				return
			}
			x.write(x.tables(), func(ok bool) {
				if x.known = ok; !ok {
					clear(x.announced)
				}
				next()
			})
		}
		if !slices.ContainsFunc(x.tables(), func(t string) bool { return now-x.announced[t] >= announcedFor }) {
			write()
			return
		}
		if x.disk.fenced {
			next()
			return
		}
		x.disk.sync(x.proc, nil, write) // the forgotten frames are durable before
	})
}

// ackedStaged notes that a leader acked a row that may have been staged.
func (s *server) ackedStaged(id lease.Partition, in insertion) {
	if in.staged != 0 {
		s.w.history.forwarded(in.key, in.staged, id, s.disk.id)
	}
}

// Rules that may be left out.
const (
	forgottenUnacked rule = "a frame is forgotten that no leader acked"
	notAnnounced     rule = "a server stages rows that it did not announce"
	stagedOnOne      rule = "a row is acked once one server has staged it"
	silentStagers    rule = "readers do without servers with staged rows"
	directoryIgnored rule = "a holder that lost its disk counts as one"
	stagersNotProven rule = "a reader goes by announcements that it could not read"
)

var stagingRules = []rule{forgottenUnacked, notAnnounced, stagedOnOne, silentStagers, directoryIgnored, stagersNotProven, lateTaken}
