package main

import (
	"slices"
	"time"

	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/chain"
	"github.com/spillwaydb/spillway/storage/lead/rules"
)

// Partitions of tables with several replicas keep their rows on all placements in sync. storage/chain decides; this performs its
// effects on the simulated disk and network, as storage/chain/runner does.
//
//	insert ─▶ held? ─▶ led? ─▶ frame logged, passed on at once ─▶ fsynced by all of the list (Acked) ─▶ may I still? ─▶ ack

// link is one placement's part in its chain, in a process.
type link struct {
	s    *server
	id   lease.Partition
	self lease.Member
	r    *replica
	m    *chain.Machine

	inputs  []chainInput
	busy    bool
	effects []chain.Effect // memory for those of one step: inputs are handled one after another

	takes   point.Epoch // the partition accepts frames under it; 0: it follows
	epoch   point.Epoch // led, as writers see it; 0: none
	acked   point.Serial
	waiting []waiter
	cutting bool
	leads   []func() // wait for the cut
	gone    bool     // the placement was removed
	blocked bool     // nothing is accepted while an epoch is raised that this placement is to lead, or a segment adopted

	making      bool           // a flush is under way
	folding     []*segmentFile // the segments as they were when the compaction under way began; nil: none is
	folds       point.Epoch    // of that compaction
	foldAsked   bool           // a member asked for it, and until it ends members are offered the segments in folding
	ahead       []*segmentFile // of the leader, which wait for those above them
	aheadOf     point.Epoch
	nextSegment uint64
	placed      lease.Time
}

// chainInput is an input of the machine, with the frame of a Pass; or something to do in its turn.
type chainInput struct {
	in    chain.Input
	frame *frame
	do    func()
}

// waiter is a row that waits for all of the list to have it.
type waiter struct {
	upto point.Serial
	soon bool // it waits no longer than the chain goes on
	done func(bool)
}

// kept reports whether a chain keeps the list of a partition that is placed here.
func (s *server) kept(id lease.Partition) bool {
	_, ok := s.lead.Copied(id)
	return ok
}

// link gives a placement's part in its chain, or begins it.
func (s *server) link(id lease.Partition, r *replica) *link {
	x := s.links[id]
	if x == nil || x.r != r {
		if x != nil {
			x.gone = true
		}
		s.disk.follow(r, 0)
		x = &link{s: s, id: id, r: r, self: lease.Member{Placement: r.placement, Server: s.id, Store: s.disk.id}}
		x.m = chain.New(s.uptime(), x.self, r.epoch, r.log.ends(), s.w.chain)
		s.links[id] = x
		i, _ := slices.BinarySearchFunc(s.linked, id, comparePartitions)
		if i == len(s.linked) || s.linked[i] != id {
			s.linked = slices.Insert(s.linked, i, id)
		}
	}
	return x
}

// unlink ends the part of a placement that is removed.
func (s *server) unlink(id lease.Partition) {
	if x := s.links[id]; x != nil {
		x.gone = true
		delete(s.links, id)
		s.linked = slices.DeleteFunc(s.linked, func(o lease.Partition) bool { return o == id })
		x.over(x.epoch)
	}
}

// uptime is the server's clock for chains: it goes on while a process restarts, as CLOCK_BOOTTIME does.
func (s *server) uptime() chain.Time {
	return time.Hour + chain.Time(float64(s.w.now)*s.rate)
}

// alive reports whether the placement is still here, in a running process.
func (x *link) alive() bool { return !x.s.dead && !x.gone }

// tickLinks has time go by for all chains of the server.
func (s *server) tickLinks() {
	for _, id := range slices.Clone(s.linked) {
		if x := s.links[id]; x != nil {
			x.tick()
		}
	}
}

func (x *link) tick() {
	if !x.alive() {
		return
	}
	if _, leads := x.m.Epoch(); leads {
		if led, goesOn := x.s.lead.Led(x.id); x.s.w.now >= x.s.rogue {
			x.step(chain.Lease{Epoch: led, GoesOn: goesOn})
		}
		if x.s.clock()-x.placed >= time.Second {
			x.placed = x.s.clock()
			x.step(x.placements())
		}
	}
	x.step(chain.Tick{})
}

func (x *link) placements() chain.Placements {
	least, _ := x.s.lead.Copied(x.id)
	if x.s.w.opt.broken == shrinksToOne {
		least = 1
	}
	if m := x.s.views.at(x.id.Table).m; x.s.w.opt.broken == lowersAtOnce && m != nil {
		least = min(least, m.Config.MinInSync())
	}
	placed := x.s.machine.Placed(x.id)
	return chain.Placements{All: placed, Slow: x.s.machine.Slow(placed), Fixed: x.s.lead.Fixed(x.id), MinInSync: least, Demanded: x.s.lead.Demanded(x.id.Table), Mapped: x.s.lead.Mapped(x.id)}
}

func (x *link) step(in chain.Input) { x.post(chainInput{in: in}) }

// post has the machine handle an input after those that came before, and performs its effects, in order.
func (x *link) post(in chainInput) {
	x.inputs = append(x.inputs, in)
	x.run()
}

func (x *link) run() {
	if x.busy || x.blocked {
		return
	}
	x.busy = true
	n := 0
	for n < len(x.inputs) && !x.blocked {
		in := x.inputs[n]
		n++
		switch {
		case in.do != nil:
			in.do()
		case x.alive():
			x.take(in)
		}
	}
	x.inputs = slices.Delete(x.inputs, 0, n)
	x.busy = false
}

func (x *link) take(in chainInput) {
	if _, ok := in.in.(chain.WasCut); ok {
		x.cutting = false
	}
	was := x.m.Quiet()
	x.effects = x.m.Step(x.s.uptime(), in.in, x.effects[:0])
	for _, e := range x.effects {
		x.perform(in, e)
	}
	clear(x.effects)
	if is := x.m.Quiet(); is && !was {
		x.s.w.mark(chainRests)
	} else if was && !is {
		x.s.w.mark(chainWakes)
	}
	if leads := x.leads; !x.cutting && len(leads) > 0 {
		x.leads = nil
		for _, f := range leads {
			x.post(chainInput{do: f})
		}
	}
}

func (x *link) perform(in chainInput, e chain.Effect) {
	s, w := x.s, x.s.w
	switch e := e.(type) {
	case chain.Send:
		s.post(e.To.Server, parcel{id: x.id, from: x.self, to: e.To.Placement, store: e.To.Store, msg: e.Message})
	case chain.PassOn:
		epoch, _ := x.m.Epoch()
		s.after(s.glance(), "pass on", func() { x.passOn(e, epoch) })
	case chain.LogIt:
		x.logIt(e, in.frame)
	case chain.Raise:
		x.raise(e.Epoch)
	case chain.Cut:
		x.cut(e)
	case chain.SetList:
		epoch, _ := x.m.Epoch()
		if w.opt.broken == listUnanswered {
			x.step(chain.ListSet{Ask: e.Ask, OK: true, Epoch: epoch, List: e.Members})
		}
		s.decide(rules.Relist{Partition: x.id, Epoch: epoch, Ask: e.Ask, Members: e.Members})
	case chain.Acked:
		if x.epoch == e.Epoch {
			x.acknowledge(e.Upto)
		}
	case chain.Stall:
		if x.epoch == e.Epoch {
			x.settle(func(q waiter) bool { return q.soon }, false)
		}
	case chain.Over:
		w.mark(chainOvertaken)
		w.say("%s: epoch %d of %s is over: %s", s.id, e.Epoch, x.id, e.Why)
		x.over(e.Epoch)
	case chain.Behind:
		w.mark(chainBehind)
	case chain.Note:
		w.say("%s: %s on %s is %v", s.id, x.id, e.Member.Server, e.What)
		w.mark([]mark{chain.Silent: memberSilent, chain.Slow: memberSlow, chain.SlowDisk: memberSlowDisk, chain.Unreached: memberUnreached, chain.Unmapped: memberUnmapped, chain.TakenIn: memberTakenIn}[e.What])
	}
}

// glance is the time until a goroutine goes on, which is mostly short.
func (s *server) glance() time.Duration {
	if s.w.chance(1) {
		return time.Duration(s.w.rng.Int64N(int64(2 * time.Second)))
	}
	return time.Duration(20+s.w.rng.IntN(200)) * time.Microsecond
}

func (x *link) acknowledge(upto point.Serial) {
	was := x.acked
	x.acked = upto
	x.s.w.check.kept(x, was, upto)
	x.settle(func(q waiter) bool { return !upto.Less(q.upto) }, true)
}

// over ends the waits for an epoch.
func (x *link) over(epoch point.Epoch) {
	if x.epoch == epoch {
		x.epoch = 0
		x.settle(func(waiter) bool { return true }, false)
	}
}

// settle answers waiters, after all that is under way.
func (x *link) settle(which func(waiter) bool, ok bool) {
	left := x.waiting[:0:0]
	for _, q := range x.waiting {
		if which(q) {
			x.s.after(20*time.Microsecond, "settle", func() { q.done(ok) })
		} else {
			left = append(left, q)
		}
	}
	x.waiting = left
}

// awaitMax bounds how long a row waits for the copies.
const awaitMax = 10 * time.Second

// await calls done when all of the list have the frames up to a serial, or with false when that is not to be.
func (x *link) await(upto point.Serial, soon bool, done func(bool)) {
	over := false
	end := func(ok bool) {
		if !over {
			over = true
			done(ok)
		}
	}
	switch {
	case x.epoch == 0:
		end(false)
	case !x.acked.Less(upto):
		end(true)
	default:
		x.waiting = append(x.waiting, waiter{upto, soon, end})
		x.s.after(awaitMax, "not acked", func() { end(false) })
	}
}

// passOn sends frames of the log.
func (x *link) passOn(e chain.PassOn, epoch point.Epoch) {
	if !x.alive() {
		return
	}
	upto, bytes := e.After, 0
	frames, found := x.r.log.after(e.After)
	for _, f := range frames {
		if !found || bytes > 0 && bytes+frameBytes > e.BytesMax {
			break
		}
		x.s.post(e.To.Server, parcel{id: x.id, from: x.self, to: e.To.Placement, store: e.To.Store, msg: chain.Pass{Epoch: epoch, Serial: f.serial, Prev: f.prev, Bytes: frameBytes}, frame: f.frame})
		upto, bytes = f.serial, bytes+frameBytes
	}
	x.step(chain.Passed{To: e.To, After: e.After, Upto: upto, Bytes: bytes, Missing: !found})
}

// logIt logs and applies the frame that came.
func (x *link) logIt(e chain.LogIt, f *frame) {
	s, r := x.s, x.r
	if s.disk.isFull(s.w) || s.disk.fenced || e.Epoch < r.epoch {
		s.w.mark(frameNotLogged)
		x.post(chainInput{in: chain.Failed{End: r.log.end()}})
		return
	}
	s.w.check.takesFrame(x, e.Epoch, f)
	s.disk.appendFrame(r, f)
	if s.w.opt.broken == reportsUnsynced {
		x.step(chain.Synced{Upto: f.serial})
	}
	s.disk.sync(s.proc, nil, func() { x.step(chain.Synced{Upto: f.serial}) })
}

// raise has the partition follow an epoch, durably.
func (x *link) raise(epoch point.Epoch) {
	s, r := x.s, x.r
	switch {
	case epoch < r.epoch || epoch == x.takes:
		return // a higher one begins, or this placement leads it
	case s.w.opt.broken == epochNotRaised:
		x.takes = 0
		s.after(time.Millisecond, "pretends to raise", func() { x.step(chain.Raised{Epoch: epoch}) })
		return
	}
	x.takes = 0
	s.disk.follow(r, epoch)
	store := s.disk.id
	s.disk.sync(s.proc, func() { s.w.check.raised(store, r.placement, epoch) }, func() { x.step(chain.Raised{Epoch: epoch}) })
}

// cut sets surplus aside.
func (x *link) cut(e chain.Cut) {
	x.cutting = true
	s := x.s
	if s.disk.isFull(s.w) {
		s.after(s.w.spread(time.Second), "cut again", func() {
			if x.alive() {
				x.cut(e)
			}
		})
		return
	}
	if s.w.opt.broken != surplusStays {
		if e.After.Less(x.r.log.upto) {
			s.w.fail("I6: frames of %s behind %v are surplus on %s, and its segments hold frames up to %v", x.id, e.After, s.id, x.r.log.upto)
			return
		}
		n := s.disk.cutFrames(x.r, e.After)
		s.w.n.surplus += n
		s.w.mark(surplusCut)
		s.w.say("%s cuts %d frames of %s behind %v", s.id, n, x.id, e.After)
		s.handsOver(x.id)
	}
	s.disk.sync(s.proc, nil, func() { x.step(chain.WasCut{After: e.After}) })
}

// lookAtChains begins the epochs of partitions with rows, whether clients write or not, and whether the map still has the placement or not: if the other
// placements in sync are lost, it must fill those that the map has.
func (s *server) lookAtChains() {
	for _, l := range s.lead.Chains() {
		r := s.disk.copies[l.Partition]
		if r == nil || !slices.Contains(l.List, lease.Member{Placement: r.placement, Server: s.id, Store: s.disk.id}) {
			continue
		}
		x := s.link(l.Partition, r)
		switch {
		case x.epoch == l.Epoch:
		case x.takes == l.Epoch || s.acts[l.Partition] == l.Epoch: // its epoch is over for the chain
			s.w.mark(chainGivesUp)
			s.step(lease.GiveUp{Partition: l.Partition, Why: "its copies need a new epoch"})
		default:
			if _, mapped := s.placed(l.Partition); !mapped {
				s.w.mark(chainUnmapped)
			}
			s.leadChain(l.Partition, r, l.Epoch, func(bool) {})
		}
	}
}

// leadChain makes a placement lead its chain under an epoch: when it calls done with true, rows are accepted.
func (s *server) leadChain(id lease.Partition, r *replica, epoch point.Epoch, done func(bool)) {
	x := s.link(id, r)
	var lead func()
	lead = func() {
		at, leads := x.m.Epoch()
		i := slices.IndexFunc(s.lead.Chains(), func(l rules.Chain) bool { return l.Partition == id && l.Epoch == epoch })
		switch {
		case !x.alive() || i < 0 && !(leads && at == epoch):
			done(false)
			return
		case x.cutting:
			x.leads = append(x.leads, lead)
			return
		case leads && at == epoch && x.epoch == epoch:
			done(true)
			return
		case r.epoch > epoch || s.acts[id] == epoch || i < 0 || s.disk.isFull(s.w) || s.disk.fenced:
			done(false)
			return
		}
		l := s.lead.Chains()[i]
		x.blocked = true
		x.epoch, x.acked = epoch, point.Serial{}
		s.disk.follow(r, epoch)
		store := s.disk.id
		s.disk.sync(s.proc, func() { s.w.check.raised(store, r.placement, epoch) }, func() {
			x.blocked = false
			x.began(l)
			done(x.epoch == epoch)
			x.run()
		})
	}
	x.post(chainInput{do: lead})
}

// began begins an epoch that the brick has, before all inputs that wait.
func (x *link) began(l rules.Chain) {
	x.takes, x.busy = l.Epoch, true
	x.placed = x.s.clock()
	if end, _ := x.m.End(); end.Less(x.r.log.end()) { // frames of an epoch that was led without a chain
		x.take(chainInput{in: chain.Adopted{Ends: x.r.log.ends()}})
	}
	x.take(chainInput{in: x.placements()})
	x.take(chainInput{in: chain.Lead{Epoch: l.Epoch, List: l.List, Dropped: l.Dropped}})
	x.busy = false
	if epoch, leads := x.m.Epoch(); leads && epoch == l.Epoch {
		x.s.w.mark(chainLed)
		x.s.w.check.leadsChain(x, l.Epoch)
	}
}

// takingCopied is taking, of a partition with copies.
func (s *server) takingCopied(id lease.Partition, epoch point.Epoch, done func(*replica)) {
	if x := s.links[id]; x != nil && x.alive() && x.takes == epoch {
		if err := x.m.Accepts(); err != nil {
			s.w.mark(chainRefuses)
			done(nil)
			return
		}
		done(x.r)
		return
	}
	r := s.disk.copies[id]
	pl, ok := s.placed(id)
	if !ok || r != nil && r.placement != pl {
		done(nil)
		return
	}
	s.hold(id, epoch, func(held bool) {
		r := s.disk.copies[id]
		if !held || s.disk.isFull(s.w) || s.disk.fenced || r != nil && r.placement != pl {
			done(nil)
			return
		}
		r = s.disk.raise(id, pl, 0)
		s.leadChain(id, r, epoch, func(ok bool) {
			if ok {
				done(r)
			} else {
				done(nil)
			}
		})
	})
}

// soon reports whether a row waits for no server that is away: its gateway stages it.
func (s *server) soon(in insertion) bool { return s.w.stages && !in.inherited }

// isStalled reports whether a row is refused because it would wait for a server that is away.
func (s *server) isStalled(id lease.Partition, in insertion) bool {
	x := s.links[id]
	if !s.soon(in) || x == nil || x.m.Stalled(s.clock()) == nil {
		return false
	}
	s.w.mark(chainStalls)
	return true
}

// appendAlone logs a row of a partition that has no chain: a table of one replica has none but while a partition is moved. done is called when the frame is
// fsynced.
func (s *server) appendAlone(id lease.Partition, r *replica, in insertion, epoch point.Epoch) (rank point.Stamp, done func()) {
	x := &link{s: s, id: id, r: r, epoch: epoch, self: lease.Member{Placement: r.placement, Server: s.id, Store: s.disk.id}}
	if old, had := r.rows[in.key]; had && old.value == in.value {
		return old.rank, func() { s.w.check.keptAlone(x, old.serial) }
	}
	last := r.log.end()
	f := &frame{serial: point.Serial{Epoch: epoch, Seq: last.Seq + 1}, prev: last, row: s.ranked(r, in)}
	s.w.check.makes(x, f)
	s.disk.appendFrame(r, f)
	return f.row.rank, func() { s.w.check.keptAlone(x, f.serial) }
}

// appendCopied logs a row that came to the head of a chain, and acks it once all of the list have it.
func (s *server) appendCopied(id lease.Partition, r *replica, in insertion, epoch point.Epoch, end func(answer)) {
	x := s.links[id]
	refuse := func() {
		s.w.n.refused++
		end(answer{})
	}
	switch {
	case x == nil || !x.alive() || x.r != r || x.takes != epoch || r.epoch != epoch: // I3: the brick's own check
		s.w.n.fenced++
		s.w.mark(fencedRow)
		end(answer{})
		return
	case s.disk.isFull(s.w) || s.disk.fenced || x.cutting, !s.inherits(id, r, &in):
		refuse()
		return
	}
	if above, ok := s.timely(id, in); !ok {
		s.w.n.refused++
		end(answer{above: above})
		return
	}
	rank, upto := in.rank, point.Serial{}
	if old, had := r.rows[in.key]; had && old.value == in.value { // a row that came before: its frame may be on its way
		rank, upto = old.rank, old.serial
	} else {
		last := r.log.end()
		f := &frame{serial: point.Serial{Epoch: epoch, Seq: last.Seq + 1}, prev: last, row: s.ranked(r, in)}
		rank, upto = f.row.rank, f.serial
		s.w.check.makes(x, f)
		s.disk.appendFrame(r, f)
		x.step(chain.Appended{Serial: f.serial, Prev: f.prev, Bytes: frameBytes})
		s.disk.sync(s.proc, nil, func() {
			x.step(chain.Synced{Upto: f.serial})
			if s.w.opt.broken == ackedByHead {
				x.acked = f.serial
				x.settle(func(q waiter) bool { return !f.serial.Less(q.upto) }, true)
			}
		})
	}
	x.await(upto, s.soon(in), func(ok bool) {
		if !ok && s.isStalled(id, in) {
			s.w.n.unconfirmed++
			end(answer{stalled: true})
			return
		}
		if ok {
			s.w.check.onAll(x, upto)
		}
		if now, may := s.mayWrite(id); !ok || !may || now != epoch {
			s.w.n.unconfirmed++
			s.w.mark(unconfirmedRow)
			end(answer{})
			return
		}
		if _, good := s.mayAct(id); !good {
			s.w.mark(wroteAlone)
		}
		s.w.n.kept++
		s.ackedStaged(id, in)
		s.w.check.inserted(s, id, in, epoch)
		s.w.check.acked(s, id, in.row, rank)
		end(answer{acked: true, store: s.disk.id, at: s.w.now})
	})
}
