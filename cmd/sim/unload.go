package main

import (
	"cmp"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/lead/rules"
	"github.com/spillwaydb/spillway/storage/unload"
)

// drawUnloads chooses how the rows of partitions that unload are moved: in a quarter of the runs they stay. It draws from a source of its own.
func (w *world) drawUnloads() {
	rng := rand.New(rand.NewPCG(w.opt.Seed, 0x0a70ad))
	if w.opt.scripted || rng.IntN(4) == 0 {
		return
	}
	w.unloads = true
	w.ends = w.opt.broken == "" || slices.Contains(endingRules, w.opt.broken)
	w.sliceRows = 1 + rng.IntN(6)
	w.unload = unload.Settings{After: []time.Duration{50 * time.Millisecond, 2 * time.Second, 10 * time.Second}[rng.IntN(3)], Window: 1 + rng.IntN(2),
		SendWithin: insertTime + time.Second, PauseMax: 3 * time.Second}
}

// moving moves the rows of one partition that unloads, as storage/unload/runner does.
type moving struct {
	s       *server
	id      lease.Partition
	epoch   point.Epoch
	begins  unload.Begin
	began   time.Time
	m       *unload.Machine
	slices  map[uint64][]row
	erasing uint64 // the last deletion
	wake    *timer
	over    bool
}

// setUnload begins or ends the moving of a partition's rows.
func (s *server) setUnload(e rules.Unload) {
	if x := s.moves[e.Partition]; x != nil {
		x.over = true
		x.wake.stop()
		delete(s.moves, e.Partition)
	}
	if !e.On {
		return
	}
	x := &moving{s: s, id: e.Partition, epoch: e.Epoch, begins: unload.Begin{First: e.First, Again: s.begun[e.Partition] == e.Epoch}, slices: map[uint64][]row{}}
	s.moves[e.Partition], s.begun[e.Partition] = x, e.Epoch
	x.endWrites()
}

// endWrites waits until no row is accepted under an earlier epoch, and none is under way.
func (x *moving) endWrites() {
	again := func() { x.s.after(500*time.Millisecond, "end writes", x.endWrites) }
	if x.over {
		return
	}
	at, ok := x.s.known(x.id)
	if !ok || at.State != topology.Unload {
		again()
		return
	}
	x.s.taking(x.id, x.epoch, func(r *replica) {
		if r == nil {
			again()
			return
		}
		x.s.quiesce(x.id, 5*time.Second, func(idle bool) {
			switch {
			case x.over:
			case !idle:
				again()
			default:
				x.begin(at)
			}
		})
	})
}

func (x *moving) begin(at *topology.Partition) {
	if x.over {
		return
	}
	x.m = unload.New(x.s.w.unload, at.TimeLo, at.TimeHi)
	x.began = x.now()
	x.step(x.begins)
	x.erases()
}

func (x *moving) now() time.Time { return time.Unix(0, int64(x.s.clock())) }

func (x *moving) step(in unload.Input) {
	if x.over {
		return
	}
	now := x.now()
	for _, e := range slices.Clone(x.m.Step(now, in)) {
		switch e := e.(type) {
		case unload.ReadSlice:
			x.s.after(x.s.think(), "read a slice", func() { x.read(e) })
		case unload.Send:
			x.send(e.ID)
		case unload.Drop:
			delete(x.slices, e.ID)
		case unload.Permit:
			x.permitted(e.ID)
		case unload.FindLeaders:
			x.findLeaders(e.ID)
		case unload.EndSlices:
			x.endSlices(e)
		case unload.Finish:
			x.s.w.n.emptied++
			x.s.decide(rules.Unloaded{Partition: x.id, Epoch: x.epoch})
		}
	}
	if x.over {
		return
	}
	x.wake.stop()
	if wake := x.m.Wake(); !wake.IsZero() {
		x.wake = x.s.after(max(wake.Sub(now), time.Millisecond), "unload", func() { x.step(unload.Tick{}) })
	}
}

// heirsTake reports whether the heirs accept rows: one that unloads itself goes first.
func (x *moving) heirsTake(m *topology.Map) bool {
	if m == nil {
		return false
	}
	at, ok := m.ByID(x.id.ID)
	return ok && at.State == topology.Unload && !slices.ContainsFunc(at.Into, func(id point.PartitionID) bool {
		heir, ok := m.ByID(id)
		return !ok || !heir.Accepts()
	})
}

// read answers a ReadSlice with so many rows as fit, and all of the last time.
func (x *moving) read(e unload.ReadSlice) {
	s := x.s
	r := s.disk.copies[x.id]
	epoch, leads := s.machine.MayAct(x.id, s.clock())
	if x.over || r == nil || !leads || epoch != x.epoch || r.closed || r.incomplete || !x.heirsTake(s.on(x.id.Table).m) {
		x.step(unload.Unread{ID: e.ID})
		return
	}
	keys := s.w.history.keys
	var all []row
	for key, c := range r.rows { // sorted below
		if t := keys[key].t; t < e.From || t >= e.To {
			continue
		}
		if !c.whole(key) {
			s.w.damaged(s.disk, x.id, r, rowDamageRead)
			x.step(unload.Unread{ID: e.ID})
			return
		}
		all = append(all, row{key, c.value, c.rank})
	}
	slices.SortFunc(all, func(a, b row) int {
		return cmp.Or(cmp.Compare(keys[a.key].t, keys[b.key].t), cmp.Compare(a.key, b.key))
	})
	n, to := min(s.w.sliceRows, len(all)), e.To
	for n < len(all) && keys[all[n].key].t == keys[all[n-1].key].t {
		n++
	}
	if n < len(all) {
		to = keys[all[n].key].t
	}
	x.slices[e.ID] = all[:n]
	x.step(unload.Read{ID: e.ID, To: to, Rows: n, Bytes: int64(n)})
}

// send gives the rows of a slice to the leaders of the partitions that have their keys by the newest map.
func (x *moving) send(id uint64) {
	s, m := x.s, x.s.on(x.id.Table).m
	rows := x.slices[id]
	open, ok := len(rows), x.heirsTake(m)
	if !ok {
		open = 0
	}
	ended := func(acked bool) {
		if ok = ok && acked; open == 0 {
			x.step(unload.Sent{ID: id, OK: ok || s.w.opt.broken == movedUnacked})
		}
	}
	if open == 0 {
		s.after(time.Millisecond, "not sent", func() { ended(false) })
		return
	}
	for _, in := range rows {
		k := s.w.history.keys[in.key]
		at, found := m.Find(k.ring, k.t)
		heir := lease.Partition{Table: x.id.Table}
		if found {
			heir.ID = at.ID
		}
		x.heirLeader(heir, func(holder topology.ServerID, from *slice) {
			if holder == "" {
				s.after(time.Millisecond, "no leader", func() {
					open--
					ended(false)
				})
				return
			}
			to := s.w.indexOf(holder)
			ask(s.proc, to, insertTime, "insert", func(say func(answer)) {
				switch {
				case s.w.servers[to].older && !s.w.ends:
					say(answer{})
				case from != nil && from.unnamed && s.dead: // its stream ended with it
				default:
					s.w.servers[to].insert(heir, insertion{row: in, inherited: true, slice: from}, say)
				}
			}, func(a answer, answered bool) {
				open--
				ended(answered && a.acked)
			})
		})
	}
}

// inherits prepares a row of a partition that unloads: a row here with a rank as high stays. false: the row here is damaged.
func (s *server) inherits(id lease.Partition, r *replica, in *insertion) bool {
	old, had := r.rows[in.key]
	switch {
	case !in.inherited || !had:
	case !old.whole(in.key):
		s.w.damaged(s.disk, id, r, rowDamageRead)
		return false
	case old.rank >= in.rank && s.w.opt.broken != inheritedWins:
		in.row = old.row
	}
	return true
}

// ranked is a row as it is logged.
func (s *server) ranked(r *replica, in insertion) row {
	if in.inherited {
		return in.row
	}
	return s.raiseRank(r, s.stampOf(in.row))
}

// inherited checks a partition that left the map because its rows are in its heirs: each that was acked is there, or one that is newer.
func (c *checker) inherited(id lease.Partition, after *topology.Map) {
	for _, key := range slices.Sorted(maps.Keys(c.rows[id])) {
		a := c.rows[id][key]
		if c.isLost(id, a.store) {
			continue
		}
		k, found := c.w.history.keys[key], c.damaged[a.value] // a damaged one goes with the others, if it goes
		for _, at := range after.Overlapping(k.t, k.t) {      // an heir may unload itself by now
			heir := lease.Partition{Table: id.Table, ID: at.ID}
			if b, has := c.rows[heir][key]; has && at.ID != id.ID && at.Contains(k.ring, k.t) && (b.rank >= a.rank || b.value == a.value || c.damaged[a.value]) {
				found = true
				c.w.history.moved(key, id, heir, b.store)
			}
		}
		if !found {
			c.w.fail("I1: %s is taken out of the map with value %x of key %d, which was acked, and no other has it", id, a.value, key)
			return
		}
	}
	c.w.mark(rowsMoved)
	delete(c.rows, id)
	c.emptied[id] = true // what the copies' checker knows of it stays: it is on disks for a while
}

// moved notes that the writes of a key that lay in one partition are in another.
func (h *history) moved(k keyID, from, to lease.Partition, store lease.StoreID) {
	for _, p := range h.past[k] {
		if p.in == from || p.moved == from {
			p.moved, p.movedTo = to, store
		}
	}
}
