package main

import (
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/registry"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/unload"
)

// Deletions of partitions that unload, and the ends of slices of earlier leaders that let them begin (storage/unload, ending.go). No row is deleted here: a deletion is asked for, permitted, and over after a
// while, and the checker fails where a slice of an earlier leader is acked after it was permitted, as then rows that it deleted would come back. Servers of the version before send slices that name
// nothing, and do not know EndSlices.

// unsettles has leaders replaced amid their slices, which would be rare otherwise: in half of the runs with pauses or crashes it pauses servers that move rows until others lead, restarts servers, and
// delays slices.
func (w *world) unsettles() {
	rng := rand.New(rand.NewPCG(w.opt.Seed, 0x0e4d5))
	if !w.ends || !w.opt.Faults.has(pause|crash) || w.opt.broken == "" && rng.IntN(2) == 0 {
		return
	}
	w.unsettled = true
	var again func()
	again = func() {
		w.after(spread(rng, 5*time.Second), "unsettle", func() {
			if w.healed {
				return
			}
			var moving []*server
			for _, s := range w.servers {
				if !s.dead && w.now >= s.paused && len(s.moves) > 0 {
					moving = append(moving, s)
				}
			}
			switch n := rng.IntN(3); {
			case len(moving) == 0:
			case n > 0 && w.opt.Faults.has(pause):
				moving[rng.IntN(len(moving))].pause(spread(rng, 5*takeAfter))
			case w.opt.Faults.has(crash):
				w.boot(rng.IntN(len(w.servers)), false)
			}
			again()
		})
	}
	again()
}

// slice names the sender of a row of a partition that unloads: peer.Slice.
type slice struct {
	parent lease.Partition
	epoch  point.Epoch
	under  point.Epoch
	// The sender is of the version before: only the checker knows the rest.
	unnamed bool
}

// learnLeases stores the lease rows of a listing, and notes which partitions have no row any more.
func (s *server) learnLeases(l listed) {
	was := s.leases
	s.leases = map[lease.Partition]lease.Lease{}
	for _, row := range l.rows {
		s.learnLease(coord.Event{Row: row})
	}
	for p := range was {
		if _, still := s.leases[p]; !still {
			s.leasesGone[p] = true
		}
	}
}

func (s *server) learnLease(e coord.Event) {
	p, ok := lease.ParseRowKey(e.Key)
	if !ok {
		return
	}
	if _, had := s.leases[p]; e.Deleted {
		delete(s.leases, p)
		s.leasesGone[p] = s.leasesGone[p] || had
	} else if row, err := s.w.store.lease(e.Key, e.Value); err == nil {
		s.leases[p] = row
		delete(s.leasesGone, p)
	}
}

// heirLeader finds the leader of an heir: its lease row is read before the parent's lease is found good, and any time may pass before the slice is sent.
func (x *moving) heirLeader(heir lease.Partition, found func(topology.ServerID, *slice)) {
	s := x.s
	if !s.w.ends {
		found(s.w.check.listed[heir].Holder, nil)
		return
	}
	look := func() (topology.ServerID, point.Epoch) {
		if l := s.leases[heir]; l.State == lease.Held && l.Offline == nil {
			return l.Holder, l.Epoch
		}
		return "", 0
	}
	holder, under := look()
	if epoch, leads := s.machine.MayAct(x.id, s.clock()); holder == "" || !leads || epoch != x.epoch {
		found("", nil)
		return
	}
	late := s.think()
	if s.w.unsettled && s.w.chance(30) {
		late = time.Duration(s.w.rng.Int64N(int64(6 * takeAfter)))
	}
	s.after(late, "open a stream", func() {
		if s.w.opt.broken == leaseReadLate {
			holder, under = look()
		}
		found(holder, &slice{x.id, x.epoch, under, s.older})
	})
}

// findLeaders answers FindLeaders by the lease rows of one moment, and by the servers that are registered since then. An older one may have sent slices that name nothing.
func (x *moving) findLeaders(id uint64) {
	s := x.s
	if !s.w.ends {
		return
	}
	answer := func(known bool, servers []topology.ServerID) {
		s.after(s.think(), "leaders", func() { x.step(unload.Leaders{ID: id, Known: known, Servers: servers}) })
	}
	servers, known := x.holders()
	if !known || s.older {
		answer(false, nil)
		return
	}
	s.list(registry.Prefix, storeTimeout, func(l listed, ok bool) {
		all := ok && len(l.rows) == len(s.w.servers) // in the product a server registers before it leads
		for _, row := range l.rows {
			srv, err := registry.Decode(row)
			all = all && err == nil && srv.Slices
		}
		if ok && !all {
			s.w.mark(endingBesideOlder)
		}
		answer(all || s.w.opt.broken == olderTrusted, servers)
	})
}

// holders returns the servers that hold leases of partitions to which rows may go (leaders.View, Holders).
func (x *moving) holders() (all []topology.ServerID, known bool) {
	s, m := x.s, x.s.on(x.id.Table).m
	if own := s.leases[x.id]; m == nil || own.State != lease.Held || own.Holder != s.id || own.Epoch != x.epoch {
		return nil, false
	}
	at, there := m.ByID(x.id.ID)
	may := func(p lease.Partition) bool {
		o, known := m.ByID(p.ID)
		return p.Table == x.id.Table && p != x.id && (!there || !known || o.TimeLo < at.TimeHi && at.TimeLo < o.TimeHi)
	}
	for p := range s.leasesGone { // any of them
		if may(p) {
			return nil, false
		}
	}
	for _, p := range slices.SortedFunc(maps.Keys(s.leases), comparePartitions) {
		if l := s.leases[p]; may(p) && l.State == lease.Held && !slices.Contains(all, l.Holder) {
			all = append(all, l.Holder)
		}
	}
	return all, true
}

// endSlices asks a server to refuse slices of earlier leaders.
func (x *moving) endSlices(e unload.EndSlices) {
	to := x.s.w.indexOf(e.Server)
	ask(x.s.proc, to, x.s.w.unload.SendWithin, "end slices", func(say func(bool)) { x.s.w.servers[to].endsSlices(x.id, x.epoch, say) }, func(ended, answered bool) {
		x.step(unload.Answered{ID: e.ID, Server: e.Server, OK: ended && answered})
	})
}

// ender waits until no slice of an epoch below one is being inserted.
type ender struct {
	parent lease.Partition
	below  point.Epoch
	say    func(bool)
}

// endsSlices refuses slices of earlier leaders from now on, and answers once none is being inserted.
func (s *server) endsSlices(parent lease.Partition, below point.Epoch, say func(bool)) {
	switch {
	case s.older:
		say(false)
	case !s.refusals.End(parent, below):
		say(false)
	case s.refusals.Ended(parent, below) || s.w.opt.broken == insideNotAwaited:
		say(true)
	default:
		s.w.mark(endingWaits)
		s.enders = append(s.enders, ender{parent, below, say})
	}
}

// entersUnnamed begins the insertion of a row before anything that it may wait for: where its slice names nothing, it is not refused afterwards.
func (s *server) entersUnnamed(in insertion) (leave func()) {
	if in.slice == nil || !in.slice.unnamed || s.older {
		return func() {}
	}
	table := in.slice.parent.Table
	s.refusals.EnterUnnamed(table)
	return func() {
		s.refusals.LeaveUnnamed(table)
		s.left()
	}
}

// enters begins the insertion of a row; false: its slice was ended.
func (s *server) enters(in insertion) (leave func(), may bool) {
	switch from := in.slice; {
	case from == nil || s.older || from.unnamed:
		return func() {}, true
	case s.refusals.Enter(from.parent, from.epoch):
		return func() {
			s.refusals.Leave(from.parent, from.epoch)
			s.left()
		}, true
	default:
		s.w.mark(sliceRefused)
		return func() {}, s.w.opt.broken == endedInserted
	}
}

// left answers those that waited for slices to be inserted.
func (s *server) left() {
	waiting := s.enders
	s.enders = nil
	for _, e := range waiting {
		if s.refusals.Ended(e.parent, e.below) {
			e.say(true)
		} else {
			s.enders = append(s.enders, e)
		}
	}
}

// isUnderItsLease reports whether a row may be inserted under an epoch of its heir.
func (s *server) isUnderItsLease(in insertion, epoch point.Epoch) bool {
	if in.slice == nil || s.older || in.slice.unnamed || in.slice.under == epoch {
		return true
	}
	s.w.mark(sliceOfOtherLease)
	return s.w.opt.broken == leaseNotCompared
}

// erases asks for a deletion soon after a takeover, and then now and then.
func (x *moving) erases() {
	if !x.s.w.ends {
		return
	}
	rng := rand.New(rand.NewPCG(x.s.w.rng.Uint64(), uint64(x.epoch)))
	var next func(within time.Duration)
	next = func(within time.Duration) {
		x.s.after(spread(rng, within), "delete", func() {
			if x.over || x.s.w.healed {
				return
			}
			x.erasing++
			x.step(unload.Delete{ID: x.erasing})
			next(8 * time.Second)
		})
	}
	if x.s.w.unsettled {
		next(time.Millisecond)
		return
	}
	next([]time.Duration{time.Millisecond, 500 * time.Millisecond, 3 * time.Second}[rng.IntN(3)])
}

// permitted carries a deletion out.
func (x *moving) permitted(id uint64) {
	s := x.s
	switch early := x.now().Before(x.began.Add(s.w.unload.SendWithin)); {
	case x.begins.First:
		s.w.check.sliced(x)
	case early && !x.begins.Again:
		s.w.mark(deletionAfterEnding)
		s.w.check.sliced(x)
	default:
		s.w.mark(deletionAfterTime)
	}
	s.after(s.think(), "deleted", func() { x.step(unload.Deleted{ID: id}) })
}

// endedSlices says that no slice of an earlier leader of a partition can be inserted any more.
type endedSlices struct {
	below  point.Epoch
	leases map[lease.Partition]point.Epoch // as they were then
}

// sliced notes that.
func (c *checker) sliced(x *moving) {
	if c.ended[x.id].below >= x.epoch {
		return
	}
	now := endedSlices{x.epoch, map[lease.Partition]point.Epoch{}}
	for p, l := range c.listed {
		if p.Table == x.id.Table {
			now.leases[p] = l.Epoch
		}
	}
	c.ended[x.id] = now
}

// inserted checks a row of a partition that unloads which is acked under an epoch of its heir. One that was inserted under an earlier lease of the heir than the one at the time of the
// deletion was there before: the later leader has it, and only its ack is late, where the earlier one was suspended.
func (c *checker) inserted(s *server, heir lease.Partition, in insertion, epoch point.Epoch) {
	from := in.slice
	if from == nil {
		return
	}
	if at := c.ended[from.parent]; from.epoch < at.below && epoch >= at.leases[heir] {
		c.w.fail("H: %s acks in %s, under epoch %d, value %x of key %d of a slice of %s of epoch %d, after a deletion was permitted under epoch %d: what it deleted comes back", s.id, heir, epoch, in.value, in.key, from.parent, from.epoch, at.below)
	}
}

// endingRules are those of deletions in partitions that unload.
var endingRules = []rule{endedInserted, insideNotAwaited, leaseNotCompared, leaseReadLate, olderTrusted}
