package main

import (
	"slices"
	"time"

	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/chain"
	replicas "github.com/spillwaydb/spillway/storage/replica"
)

// Leaders of partitions with copies flush and compact; the other placements fetch the segments, and release their logs. storage/replica decides;
// this performs its effects, as storage/replica/runner, storage/partition and the runner of chains do.

// segmentFile is a segment: a set of frames that never changes. All placements that have it share it.
type segmentFile struct {
	replicas.Segment
	frames []*frame // its own; a major's are all
}

func idsOf(segments []*segmentFile) (ids []point.SegmentID) {
	for _, g := range segments {
		ids = append(ids, g.ID)
	}
	return ids
}

func (j *journal) segmentEnds() []point.EpochEnd {
	if n := len(j.segments); n > 0 {
		return j.segments[n-1].Ends
	}
	return nil
}

// holds reports whether the frames up to some ends include those up to others.
func holds(a, b []point.EpochEnd) bool {
	return !slices.ContainsFunc(b, func(e point.EpochEnd) bool {
		return !slices.ContainsFunc(a, func(x point.EpochEnd) bool { return x.Epoch == e.Epoch && x.Seq >= e.Seq })
	})
}

// commitSegments makes these the segments of a placement, and releases the log up to their end. It is durable with the disk's next sync.
func (d *disk) commitSegments(p *proc, r *replica, segments []*segmentFile, done func()) {
	j := r.log
	was, rows, high := *j, r.rows, r.high
	j.segments = segments
	j.upto = lastOf(j.segmentEnds())
	n := 0
	for n < len(j.records) && !j.upto.Less(j.records[n].serial) {
		if x := j.records[n]; x.at < d.synced && j.solid.Less(x.serial) {
			j.solid = x.serial // a power cut brings the log back, which has it
		}
		n++
	}
	j.records = slices.Clone(j.records[n:])
	if len(j.records) == 0 && j.end().Less(j.upto) { // it has more than the log had
		j.all = nil
		for _, g := range segments {
			j.all = append(j.all, g.frames...)
		}
		r.rebuild()
	}
	d.wrote(func() {
		solid := j.solid
		*j = was
		j.solid, r.rows, r.high = solid, rows, high
	})
	upto := j.upto
	d.sync(p, func() {
		if j.solid.Less(upto) {
			j.solid = upto
		}
	}, done)
}

func lastOf(ends []point.EpochEnd) point.Serial {
	if len(ends) == 0 {
		return point.Serial{}
	}
	return point.Serial(ends[len(ends)-1])
}

// sending is a leader's part for one partition and epoch.
type sending struct {
	x       *link
	epoch   point.Epoch
	m       *replicas.Sender
	chain   []*segmentFile
	members []lease.Member
	procs   []*proc // of the members: one that restarted is asked again
}

// copyEvery is how often a server looks at the segments that it owes and receives.
const copyEvery = 500 * time.Millisecond

// lookAtSegments begins and ends the senders of epochs, and gives them the segments and members that changed; leaders flush now and then.
func (s *server) lookAtSegments() {
	for _, id := range slices.Clone(s.linked) {
		x := s.links[id]
		epoch, leads := x.m.Epoch()
		if !leads || !x.alive() {
			delete(s.senders, id)
			continue
		}
		y := s.senders[id]
		if y == nil || y.epoch != epoch || y.x != x {
			y = &sending{x: x, epoch: epoch, m: replicas.NewSender(s.w.segments)}
			s.senders[id] = y
		}
		x.maintain()
		y.renew()
	}
	if at, ok := s.receiver.Next(); ok && s.uptime() >= at {
		s.receives(replicas.Tick{})
	}
}

// renew leaves out once each member that was restarted, so that the machine begins anew with it: the new process has forgotten the offers, and the machine
// would wait for its answer.
func (y *sending) renew() {
	s := y.x.s
	members := slices.DeleteFunc(s.machine.Placed(y.x.id), func(m lease.Member) bool { return m == y.x.self })
	var procs []*proc
	for _, m := range members {
		procs = append(procs, s.w.nodes[s.w.indexOf(m.Server)])
	}
	if !slices.Equal(members, y.members) || !slices.Equal(procs, y.procs) {
		var same []lease.Member
		for i, m := range members {
			if n := slices.Index(y.members, m); n >= 0 && y.procs[n] == procs[i] {
				same = append(same, m)
			}
		}
		y.members, y.procs = members, procs
		y.step(replicas.Members{All: same})
		y.step(replicas.Members{All: members})
	}
	if offered := y.x.offered(); !slices.Equal(offered, y.chain) {
		y.chain = offered
		var list []replicas.Segment
		for _, g := range offered {
			list = append(list, g.Segment)
		}
		y.step(replicas.Chain{Segments: list})
	}
	if at, ok := y.m.Next(); ok && s.uptime() >= at {
		y.step(replicas.Tick{})
	}
}

func (y *sending) step(in replicas.SenderInput) {
	s, x := y.x.s, y.x
	for _, e := range y.m.Step(s.uptime(), in, nil) {
		switch e := e.(type) {
		case replicas.Offer:
			y.send(e.To, replicas.Offered{From: x.self, To: keyOf(x.id, e.To.Placement), Epoch: y.epoch, Slot: e.Slot, Segment: e.Segment}, nil)
		case replicas.Transit:
			s.after(s.glance(), "transit", func() { y.transit(e, e.Offset) })
		case replicas.Flush:
			x.flush()
		case replicas.Compact:
			x.compact(0, true)
		case replicas.Suspect:
			s.w.mark(segmentSuspect)
		case replicas.Level:
			s.w.mark(segmentsLevel)
		}
	}
}

func keyOf(id lease.Partition, pl point.PlacementID) replicas.Key {
	return replicas.Key{Table: id.Table, Partition: id.ID, Placement: pl}
}

// send sends a message about segments; file goes with a commit.
func (y *sending) send(to lease.Member, m any, file *segmentFile) {
	y.x.s.post(to.Server, parcel{id: y.x.id, from: y.x.self, to: to.Placement, store: to.Store, epoch: y.epoch, segment: m, file: file})
}

// pieceBytes is the size of a piece of a segment.
const pieceBytes = 400

// piece is a part of a segment's bytes.
type piece struct {
	slot         uint64
	offset, upto uint64
}

// transit sends the bytes of a segment, then the commit.
func (y *sending) transit(e replicas.Transit, offset uint64) {
	s := y.x.s
	i := slices.IndexFunc(y.x.r.log.segments, func(g *segmentFile) bool { return g.ID == e.ID })
	if s.senders[y.x.id] != y || i < 0 {
		y.step(replicas.Sent{To: e.To, Slot: e.Slot})
		return
	}
	g := y.x.r.log.segments[i]
	if offset >= g.Size {
		y.send(e.To, replicas.Committed{From: y.x.self, To: keyOf(y.x.id, e.To.Placement), Slot: e.Slot}, g)
		y.step(replicas.Sent{To: e.To, Slot: e.Slot, OK: true})
		return
	}
	upto := min(offset+pieceBytes, g.Size)
	y.send(e.To, piece{e.Slot, offset, upto}, nil)
	s.after(time.Duration(1+s.w.rng.IntN(20))*time.Millisecond, "transit", func() { y.transit(e, upto) })
}

// maintain flushes and compacts, as leaders do by size and age.
func (x *link) maintain() {
	j, w := x.r.log, x.s.w
	switch {
	case len(j.segments) > w.segmentsMax && w.chance(30):
		x.compact(w.rng.IntN(len(j.segments)), false)
	case len(j.records) > w.flushFrom && w.chance(30),
		w.healed && len(j.records) > 0 && w.chance(100): // by age; a follower may have the segment of a leader before
		x.flush()
	}
}

// leadsStill reports whether the placement still makes the segments of its partition.
func (x *link) leadsStill(epoch point.Epoch) bool {
	return x.alive() && x.takes == epoch && !x.s.disk.isFull(x.s.w) && !x.s.disk.fenced
}

// flush makes a segment of the frames that all of the list have.
func (x *link) flush() {
	j, epoch, upto, s := x.r.log, x.takes, x.acked, x.s
	if s.w.opt.broken == flushesUnacked {
		upto = j.end()
	}
	if x.making || epoch == 0 || x.epoch != epoch || !j.upto.Less(upto) {
		return
	}
	x.making = true
	s.after(time.Duration(s.w.rng.Int64N(int64(500*time.Millisecond))), "flush", func() {
		x.making = false
		if !x.leadsStill(epoch) || j.find(upto) == nil || !j.upto.Less(upto) {
			return
		}
		g := &segmentFile{frames: slices.Clone(j.all[j.upto.Seq:upto.Seq])}
		g.Ends = endsOf(j.all[:upto.Seq])
		if n := len(j.segments); n > 0 {
			g.Base = j.segments[n-1].ID
		} else {
			g.Major = true
		}
		x.name(g, epoch)
		s.disk.commitSegments(s.proc, x.r, append(slices.Clone(j.segments), g), func() {})
		s.w.mark(segmentFlushed)
	})
}

// compact folds the segments from one on: all into a major, or the newest into a minor.
func (x *link) compact(from int, asked bool) {
	j, epoch, s := x.r.log, x.takes, x.s
	if x.folding != nil || epoch == 0 || len(j.segments) < from+2 {
		return
	}
	n := len(j.segments)
	x.folding, x.folds, x.foldAsked = j.segments, epoch, asked
	s.after(time.Duration(s.w.rng.Int64N(int64(time.Second))), "compact", func() {
		had := x.folding
		x.folding = nil
		if !x.leadsStill(epoch) || len(j.segments) < n || !slices.Equal(j.segments[:n], had) {
			return
		}
		g := &segmentFile{frames: slices.Concat(framesOf(j.segments[from:n])...)}
		g.Major, g.Ends, g.Base = from == 0, slices.Clone(j.segments[n-1].Ends), j.segments[n-1].ID
		if !g.Major {
			g.Base = j.segments[from-1].ID
		}
		made := append(slices.Clone(j.segments[:from]), g)
		x.name(g, epoch)
		if late := j.segments[n:]; len(late) > 0 { // flushed meanwhile: it gets the result as its base
			l := &segmentFile{frames: slices.Concat(framesOf(late)...)}
			l.Ends, l.Base = slices.Clone(late[len(late)-1].Ends), g.ID
			x.name(l, epoch)
			made = append(made, l)
			s.w.mark(segmentsBelow)
		}
		s.disk.commitSegments(s.proc, x.r, made, func() {})
		if g.Major {
			s.w.mark(segmentCompacted)
		} else {
			s.w.mark(segmentsFolded)
		}
	})
}

func framesOf(segments []*segmentFile) (all [][]*frame) {
	for _, g := range segments {
		all = append(all, g.frames)
	}
	return all
}

// offered are the segments that the others may get: while a compaction runs that was asked for, those from before it.
func (x *link) offered() []*segmentFile {
	if x.folding != nil && x.foldAsked && x.folds == x.takes {
		return x.folding
	}
	return x.r.log.segments
}

// name gives a new segment its id.
func (x *link) name(g *segmentFile, epoch point.Epoch) {
	x.nextSegment = max(x.nextSegment, 1)
	for _, old := range x.r.log.segments {
		x.nextSegment = max(x.nextSegment, old.ID.Seq+1)
	}
	g.ID = point.SegmentID{Epoch: epoch, Seq: x.nextSegment}
	x.nextSegment++
	g.Size = uint64(len(g.frames)) * frameBytes
	x.s.w.n.made++
	g.Checksum = uint64(x.s.w.n.made)
	x.s.w.check.madeSegment(x, g)
}

// Receiving.

type unfinished struct {
	at replicas.Key
	id point.SegmentID
}

// aboutSegments handles a message about segments.
func (s *server) aboutSegments(p parcel) {
	switch m := p.segment.(type) {
	case replicas.Offered:
		m.Has, m.Free = s.holding(p.id, p.to, p.epoch), 1<<30
		if s.disk.isFull(s.w) {
			m.Free = 0
		}
		s.receives(m)
	case piece:
		at := keyOf(p.id, p.to)
		i := slices.IndexFunc(s.incoming, func(f *incoming) bool { return f.at == at && f.from == p.from && f.slot == m.slot })
		if i < 0 || s.incoming[i].upto != m.offset {
			return // it is asked for again
		}
		s.incoming[i].upto = m.upto
		s.receives(replicas.Came{From: p.from, To: at, Slot: m.slot, Upto: m.upto})
	case replicas.Committed:
		if i := slices.IndexFunc(s.incoming, func(f *incoming) bool { return f.at == m.To && f.from == p.from && f.slot == m.Slot }); i >= 0 {
			s.incoming[i].file = p.file
		}
		s.receives(m)
	case replicas.SenderInput:
		if y := s.senders[p.id]; y != nil && y.epoch == p.epoch && y.x.self.Placement == p.to && y.x.alive() {
			if _, no := m.(replicas.Declined); no {
				s.w.mark(segmentDeclined)
			}
			y.step(m)
		}
	}
}

// incoming is the unfinished file of a segment.
type incoming struct {
	unfinished
	from lease.Member
	slot uint64
	upto uint64
	file *segmentFile // of the commit
}

// holding is the state of a placement, for an offer of an epoch.
func (s *server) holding(id lease.Partition, pl point.PlacementID, epoch point.Epoch) replicas.Holding {
	x := s.links[id]
	if x == nil || !x.alive() || x.self.Placement != pl {
		return replicas.Holding{Later: true}
	}
	h := replicas.Holding{Chain: slices.Concat(idsOf(x.r.log.segments), idsOf(x.waits(epoch))), Ends: x.r.log.segmentEnds()}
	h.Epoch, h.Leads = x.m.Epoch()
	h.Later = !x.m.Joined() || h.Epoch != epoch
	return h
}

func (s *server) receives(in replicas.ReceiverInput) {
	for _, e := range s.receiver.Step(s.uptime(), in, nil) {
		switch e := e.(type) {
		case replicas.Accept:
			u := unfinished{e.At, e.Segment.ID}
			i := slices.IndexFunc(s.incoming, func(f *incoming) bool { return f.unfinished == u })
			if i < 0 {
				s.incoming = append(s.incoming, &incoming{unfinished: u})
				i = len(s.incoming) - 1
			}
			f := s.incoming[i]
			f.from, f.slot, f.upto = e.To, e.Slot, e.Offset
			s.reply(e.To, e.At, e.Epoch, replicas.Accepted{From: s.member(e.At), Slot: e.Slot, Offset: e.Offset})
		case replicas.Decline:
			s.reply(e.To, e.At, e.Epoch, replicas.Declined{From: s.member(e.At), Slot: e.Slot, Reason: e.Reason, Ends: e.Ends})
		case replicas.Ack:
			s.reply(e.To, e.At, e.Epoch, replicas.Acked{From: s.member(e.At), Slot: e.Slot, ID: e.ID})
		case replicas.Adopt:
			s.after(s.glance(), "verify", func() { s.adopt(e) })
		case replicas.Discard:
			s.discard(unfinished{e.At, e.ID})
		}
	}
}

func (s *server) discard(u unfinished) {
	s.incoming = slices.DeleteFunc(s.incoming, func(f *incoming) bool { return f.unfinished == u })
}

func (s *server) member(at replicas.Key) lease.Member {
	return lease.Member{Placement: at.Placement, Server: s.id, Store: s.disk.id}
}

func (s *server) reply(to lease.Member, at replicas.Key, epoch point.Epoch, m replicas.SenderInput) {
	id := lease.Partition{Table: at.Table, ID: at.Partition}
	s.post(to.Server, parcel{id: id, from: s.member(at), to: to.Placement, store: to.Store, epoch: epoch, segment: m})
}

// adopt makes a whole file a segment of its placement, in its turn.
func (s *server) adopt(e replicas.Adopt) {
	u := unfinished{e.At, e.Segment.ID}
	id := lease.Partition{Table: e.At.Table, ID: e.At.Partition}
	end := func(refused replicas.Reason) {
		x := s.links[id]
		var ends []point.EpochEnd
		if x != nil && x.r.log != nil {
			ends = x.r.log.segmentEnds()
		}
		s.receives(replicas.Adopted{To: e.At, ID: e.Segment.ID, Refused: refused, Ends: ends})
		if refused == 0 {
			s.discard(u)
		}
	}
	x, i := s.links[id], slices.IndexFunc(s.incoming, func(f *incoming) bool { return f.unfinished == u })
	switch {
	case x == nil || !x.alive() || x.self.Placement != e.At.Placement:
		end(replicas.StaleEpoch)
	case i < 0 || s.incoming[i].file == nil:
		end(replicas.Invalid)
	case s.w.chance(2): // the bytes are damaged on their way
		s.w.mark(segmentDamaged)
		if s.w.opt.broken != damageAdopted {
			end(replicas.Invalid)
			return
		}
		g := *s.incoming[i].file
		g.frames = slices.Clone(g.frames)
		g.frames[0] = g.frames[0].halved()
		x.post(chainInput{do: func() { x.adopt(e, &g, end) }})
	default:
		g := s.incoming[i].file // others may be gone by the time it is adopted
		x.post(chainInput{do: func() { x.adopt(e, g, end) }})
	}
}

// waits are the segments of the leader of an epoch that wait for those above them.
func (x *link) waits(epoch point.Epoch) []*segmentFile {
	if x.aheadOf != epoch {
		return nil
	}
	return x.ahead
}

// adopt checks a segment as storage/partition does, and goes on from its end.
func (x *link) adopt(e replicas.Adopt, g *segmentFile, end func(replicas.Reason)) {
	s, j := x.s, x.r.log
	epoch, _ := x.m.Epoch()
	if !x.alive() || !x.m.Joined() || epoch != e.Epoch || s.disk.isFull(s.w) || s.disk.fenced {
		s.after(0, "not adopted", func() { end(replicas.StaleEpoch) })
		return
	}
	lowest, keep := g, 0
	var before []*segmentFile
	if i := slices.Index(idsOf(x.waits(epoch)), g.Base); i >= 0 && !g.Major {
		before = x.ahead[:i+1]
		lowest = before[0]
	}
	if !lowest.Major {
		keep = slices.Index(idsOf(j.segments), lowest.Base) + 1
	}
	surplus := func() bool { // it must be cut first
		upto := lastOf(g.Ends)
		return slices.ContainsFunc(j.ends(), func(o point.EpochEnd) bool { return o.Epoch < upto.Epoch && !holds(g.Ends, []point.EpochEnd{o}) })
	}
	if !lowest.Major && keep == 0 || !holds(e.Segment.Ends, j.segmentEnds()) && s.w.opt.broken != segmentsTakeAway {
		s.after(0, "not adopted", func() { end(replicas.OutOfOrder) })
		return
	}
	s.w.check.adopts(x, g)
	if !holds(g.Ends, j.segmentEnds()) && s.w.opt.broken != segmentsTakeAway { // it waits for those above it
		x.ahead, x.aheadOf = append(slices.Clip(before), g), epoch
		s.w.mark(segmentWaits)
		s.after(0, "kept", func() { end(0) })
		return
	}
	if surplus() {
		s.after(0, "not adopted", func() { end(replicas.OutOfOrder) })
		return
	}
	x.blocked = true // frames and epochs wait: readers and the chain see it when it is durable
	was := j.end()
	x.ahead = nil
	s.disk.commitSegments(s.proc, x.r, slices.Concat(j.segments[:keep], before, []*segmentFile{g}), func() {
		s.w.mark(segmentAdopted)
		x.blocked, x.busy = false, true
		if was.Less(j.end()) {
			x.take(chainInput{in: chain.Adopted{Ends: j.ends()}})
		} else {
			x.take(chainInput{in: chain.Synced{Upto: j.upto}})
		}
		x.busy = false
		end(0)
		x.run()
	})
	if was.Less(j.end()) {
		s.w.mark(segmentsFill)
	}
}
