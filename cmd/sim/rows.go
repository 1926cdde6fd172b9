package main

import (
	"slices"
	"time"

	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/protocols/rank"
	"github.com/spillwaydb/spillway/storage/lead/rules"
)

// keyID names a key: a series and a time of a table (history.go).
type keyID uint32

// row is a value for a key. No two writes write the same value.
type row struct {
	key   keyID
	value uint64
	rank  point.Stamp // by the gateway's clock when it came
}

// insertion is a row on its way.
type insertion struct {
	row
	slice     *slice      // of a partition that unloads; nil: of none, or not named
	inherited bool        // from a partition that unloads, or staged: its rank stays, and a newer row here, too
	staged    uint64      // the value of a row that was staged; else 0
	stamp     point.Stamp // of that row
}

// timely refuses a try that comes after a later one of the same row, or too late, as partitions do: the ranks of rows that were acked meanwhile would be below its.
// Its gateway, if it still waits, gives it a stamp above the one returned.
func (s *server) timely(id lease.Partition, in insertion) (above point.Stamp, ok bool) {
	if in.inherited && in.staged == 0 || s.w.opt.broken == lateTryLogged {
		return 0, true
	}
	seen := s.seen[id]
	if seen == nil {
		seen = &rank.Seen{}
		s.seen[id] = seen
	}
	switch {
	case in.staged != 0:
		seen.Observe(in.stamp)
		return 0, true
	case in.rank == 0: // rows that hung here since before it would be ranked above it
		seen.Observe(s.stampOf(in.row).rank)
		return 0, true
	}
	if newest, late := seen.Late(in.rank, s.w.wall().UnixNano()); late && s.w.opt.broken != lateTaken {
		s.w.mark(lateInsert)
		return newest, false
	}
	if !seen.Take(in.rank) {
		s.w.mark(lateTry)
		return in.rank, false
	}
	return 0, true
}

// answer is a server's answer to an insert.
type answer struct {
	acked bool // else it is stale: look at the newest map and leases
	store lease.StoreID
	at    time.Duration // when it was acked
	above point.Stamp   // not 0: it needs a stamp above this one
	// The row waits for a server that is away, or would: its gateway may stage it.
	stalled bool
}

// insert stores a row, as storage/server does:
//
//	may I? ─▶ inside ─▶ alone in sync? ─▶ epoch raised, durably ─▶ frame logged, durably ─▶ may I still? ─▶ ack
func (s *server) insert(id lease.Partition, in insertion, say func(answer)) {
	epoch, ok := s.mayWrite(id)
	g := s.gate(id)
	if s.disk.isFull(s.w) {
		s.w.mark(writeOnFull)
	}
	if !ok || s.disk.isFull(s.w) || s.isClosed(id) || !g.enter(s.w) {
		s.w.n.refused++
		if !ok {
			s.wanted(id)
		}
		say(answer{})
		return
	}
	leave := s.entersUnnamed(in)
	end := func(a answer) {
		say(a)
		g.leave()
		leave()
	}
	if !s.isUnderItsLease(in, epoch) {
		s.w.n.refused++
		end(answer{})
		return
	}
	copied := s.kept(id)
	s.taking(id, epoch, func(r *replica) {
		if r == nil || copied && s.isStalled(id, in) {
			s.w.n.refused++
			end(answer{stalled: r != nil})
			return
		}
		leave, may := s.enters(in)
		if !may {
			s.w.n.refused++
			end(answer{})
			return
		}
		end := func(a answer) {
			end(a)
			leave()
		}
		s.after(s.think(), "append", func() { s.append(id, r, in, epoch, copied, end) })
	})
}

// think is the time that a goroutine may need from one step to the next: mostly no time.
func (s *server) think() time.Duration {
	if s.w.chance(3) {
		return time.Duration(s.w.rng.Int64N(int64(9 * time.Second)))
	}
	return time.Duration(10+s.w.rng.IntN(300)) * time.Microsecond
}

// taking gives the partition when it may accept rows under an epoch; nil if it may not.
func (s *server) taking(id lease.Partition, epoch point.Epoch, done func(*replica)) {
	if s.kept(id) {
		s.takingCopied(id, epoch, done)
		return
	}
	r := s.disk.copies[id]
	if r != nil && s.acts[id] == epoch {
		done(r)
		return
	}
	pl, ok := s.placed(id)
	if !ok && r == nil || r != nil && ok && r.placement != pl {
		done(nil)
		return
	}
	s.hold(id, epoch, func(held bool) {
		r := s.disk.copies[id]
		if !held || r != nil && r.epoch > epoch && s.w.opt.broken != brickEpochOff || s.disk.isFull(s.w) || s.disk.fenced {
			done(nil)
			return
		}
		if r != nil {
			pl = r.placement
		}
		r = s.disk.raise(id, pl, epoch)
		if s.w.isCopied(id) {
			s.disk.follow(r, epoch)
		}
		store := s.disk.id
		s.disk.sync(s.proc, func() { s.w.check.raised(store, pl, epoch) }, func() {
			s.acts[id] = max(s.acts[id], epoch)
			done(r)
		})
	})
}

// placed is where the server's map has a partition here.
func (s *server) placed(id lease.Partition) (point.PlacementID, bool) {
	m := s.on(id.Table).m
	if m == nil {
		return 0, false
	}
	at, ok := m.ByID(id.ID)
	if !ok {
		return 0, false
	}
	pl, ok := at.On(s.id)
	return pl.ID, ok
}

func (s *server) append(id lease.Partition, r *replica, in insertion, epoch point.Epoch, copied bool, end func(answer)) {
	if copied {
		s.appendCopied(id, r, in, epoch, end)
		return
	}
	switch {
	case s.disk.copies[id] != r || epoch < r.epoch && s.w.opt.broken != brickEpochOff: // I3: the brick's own check
		s.w.n.fenced++
		s.w.mark(fencedRow)
		end(answer{})
		return
	case s.disk.isFull(s.w) || s.disk.fenced:
		s.w.n.refused++
		end(answer{})
		return
	}
	if above, ok := s.timely(id, in); !ok && s.w.opt.broken != brickEpochOff { // it hides most effects of that
		s.w.n.refused++
		end(answer{above: above})
		return
	}
	if !s.inherits(id, r, &in) {
		end(answer{})
		return
	}
	s.w.check.accepts(s, id, r, epoch)
	rank, done := point.Stamp(0), func() {}
	if r.log != nil {
		rank, done = s.appendAlone(id, r, in, epoch)
	} else {
		rank = s.disk.append(r, s.ranked(r, in), epoch)
	}
	confirm := func() {
		done()
		if now, ok := s.mayWrite(id); !ok || now != epoch {
			s.w.n.unconfirmed++
			s.w.mark(unconfirmedRow)
			end(answer{})
			return
		}
		if _, good := s.mayAct(id); !good {
			s.w.mark(wroteAlone)
		}
		s.ackedStaged(id, in)
		s.w.check.inserted(s, id, in, epoch)
		s.w.check.acked(s, id, in.row, rank)
		end(answer{acked: true, store: s.disk.id, at: s.w.now})
	}
	if s.w.opt.broken == ackBeforeSync {
		s.disk.sync(s.proc, nil, func() {})
		confirm()
		return
	}
	s.disk.sync(s.proc, nil, confirm)
}

// rankStep is the distance of two stamps of one gateway: the low bits distinguish gateways.
const rankStep = 1 << 10

// raiseRank gives a row a rank above all that its partition accepted: the row that is acked later wins, whatever clock it came by.
func (s *server) raiseRank(r *replica, in row) row {
	if in.rank <= r.high && s.w.opt.broken != ranksNotRaised {
		s.w.mark(rankRaised)
		in.rank = (r.high &^ (rankStep - 1)) + rankStep | in.rank&(rankStep-1)
	}
	return in
}

// question is a gateway's question to a partition's leader: its keys, and the map it is based on.
type question struct {
	id     lease.Partition
	keys   []keyID
	lo, hi point.Nanos
	seq    uint64            // of the map, if the partition accepts rows by it; else 0
	next   point.PartitionID // the first that the map does not have
}

// found is a server's answer: a row for each key, with value 0 where there is none.
type found struct {
	may        bool // the rows here are all rows of the partition
	rows       []row
	incomplete bool          // damaged rows were set aside: the answer warns
	by         *topology.Map // for the checker: the newest that the server has
}

// read answers a question, as storage/server does: an asker with a map too old for it looks for a newer one.
func (s *server) read(q question) found {
	if _, may := s.machine.MayAct(q.id, s.clock()); !may && s.w.opt.broken != readUnled {
		s.w.mark(stalePlacement)
		s.wanted(q.id)
		return found{}
	}
	if s.isClosed(q.id) || s.isNews(q) {
		return found{}
	}
	f := found{may: true, rows: make([]row, len(q.keys)), by: s.on(q.id.Table).m}
	r := s.disk.copies[q.id]
	if r == nil {
		return f
	}
	f.incomplete = r.incomplete && s.w.opt.broken != incompleteNotSaid
	for i, key := range q.keys {
		c, has := r.rows[key]
		if !has {
			continue
		}
		if !c.whole(key) && s.w.opt.broken != sumsIgnored {
			s.w.damaged(s.disk, q.id, r, rowDamageRead)
			return found{}
		}
		f.rows[i] = c.row
	}
	return f
}

// wanted says that a request came for a partition that is not led here: one of the future is led then (storage/lead/rules).
func (s *server) wanted(id lease.Partition) {
	if at, there := s.known(id); there && at.TimeLo > s.w.hour() && s.w.check.listed[id].Epoch == 0 {
		s.w.mark(askedEarly)
	}
	s.decide(rules.Early{Partition: id})
}

// known gives a partition by this server's map.
func (s *server) known(id lease.Partition) (*topology.Partition, bool) {
	m := s.on(id.Table).m
	if m == nil {
		return nil, false
	}
	return m.ByID(id.ID)
}

// isNews reports whether rows may be acked at times for which the asker's map has no server (storage/server, Reading by an old map).
func (s *server) isNews(q question) bool {
	m, g := s.on(q.id.Table).m, s.gate(q.id)
	if m == nil {
		return true
	}
	if g.doubted > 0 && m.Seq > g.doubted {
		s.w.mark(doubtResolved)
	}
	if s.w.opt.broken != oldMapsAnswered {
		if q.seq > 0 && g.Doubtful(m.Seq) {
			s.w.mark(staleHanding)
			return true
		}
		if at, there := m.ByID(q.id.ID); q.seq > 0 && m.Seq > q.seq && !(there && at.Accepts()) {
			s.w.mark(staleTaken)
			return true
		}
	}
	news := slices.ContainsFunc(m.Overlapping(q.lo, q.hi), func(p *topology.Partition) bool { return p.ID >= q.next })
	if news {
		s.w.mark(staleNext)
	}
	return news && s.w.opt.broken != nextIgnored
}

// isClosed reports whether damage closed a partition here.
func (s *server) isClosed(id lease.Partition) bool {
	r := s.disk.copies[id]
	return r != nil && r.closed
}

// empty reports whether no row was ever accepted.
func (r *replica) empty() bool { return len(r.rows) == 0 && !r.incomplete }

func placements(p *topology.Partition) []topology.ServerID {
	var out []topology.ServerID
	for _, pl := range p.Placements {
		out = append(out, pl.Server)
	}
	return out
}
