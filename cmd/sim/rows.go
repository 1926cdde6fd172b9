package main

import (
	"time"

	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/point"
)

// rowID names a row. A row that is sent again keeps its name.
type rowID uint64

// answer is what a server says to an insert.
type answer uint8

const (
	acked answer = iota
	stale        // not the leader, or not any more: look at the newest map and leases
)

// insert takes a row in, as storage/server does:
//
//	may I? ─▶ inside ─▶ alone in sync? ─▶ epoch raised, durably ─▶ frame logged, durably ─▶ may I still? ─▶ ack
func (s *server) insert(id lease.Partition, row rowID, say func(answer)) {
	epoch, ok := s.mayWrite(id)
	g := s.gate(id)
	if !ok || g.sealed || s.disk.isFull(s.w) || s.isClosed(id) {
		s.w.n.refused++
		say(stale)
		return
	}
	g.inside++
	end := func(a answer) {
		say(a)
		g.leave()
	}
	s.ready(id, epoch, func(r *replica) {
		if r == nil {
			s.w.n.refused++
			end(stale)
			return
		}
		s.after(s.think(), "append", func() { s.append(id, r, row, epoch, end) })
	})
}

// think is how long a goroutine may take from one step to the next: mostly no time.
func (s *server) think() time.Duration {
	if s.w.chance(3) {
		return time.Duration(s.w.rng.Int64N(int64(9 * time.Second)))
	}
	return time.Duration(10+s.w.rng.IntN(300)) * time.Microsecond
}

// ready gives the partition when it may take rows under an epoch; nil if it may not.
func (s *server) ready(id lease.Partition, epoch point.Epoch, done func(*replica)) {
	rec, r := s.record(id), s.disk.copies[id]
	if r != nil && rec.acts == epoch {
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
		if !held || r != nil && r.epoch > epoch && s.w.opt.broken != brickEpochOff {
			done(nil)
			return
		}
		if r != nil {
			pl = r.placement
		}
		if s.disk.isFull(s.w) || s.disk.fenced {
			done(nil)
			return
		}
		r = s.disk.raise(id, pl, epoch)
		store := s.disk.id
		s.disk.sync(s.proc, func() { s.w.check.raised(store, pl, epoch) }, func() {
			rec.acts = max(rec.acts, epoch)
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

func (s *server) append(id lease.Partition, r *replica, row rowID, epoch point.Epoch, end func(answer)) {
	if s.disk.copies[id] != r || epoch < r.epoch && s.w.opt.broken != brickEpochOff { // I3: the brick's own check
		s.w.n.fenced++
		end(stale)
		return
	}
	if s.disk.isFull(s.w) || s.disk.fenced {
		s.w.n.refused++
		end(stale)
		return
	}
	s.w.check.accepts(s, id, r, epoch)
	s.disk.append(r, row, epoch)
	confirm := func() {
		if now, ok := s.mayWrite(id); !ok || now != epoch {
			s.w.n.unconfirmed++
			end(stale)
			return
		}
		s.w.check.acked(s, id, r, row)
		end(acked)
	}
	if s.w.opt.broken == ackBeforeSync {
		s.disk.sync(s.proc, nil, func() {})
		confirm()
		return
	}
	s.disk.sync(s.proc, nil, confirm)
}

// found is what a server answers to a read.
type found struct {
	may        bool // what is here of the partition is all there is of it
	has        bool
	incomplete bool // damaged rows were set aside: the answer warns
}

// read looks for a row.
func (s *server) read(id lease.Partition, row rowID) found {
	if _, may := s.machine.MayAct(id, s.clock()); !may || s.isClosed(id) {
		return found{}
	}
	r := s.disk.copies[id]
	if r == nil {
		return found{may: true}
	}
	c, has := r.rows[row]
	if has && !c.whole(row) && s.w.opt.broken != sumsIgnored {
		s.w.damaged(s.disk, id, r)
		return found{}
	}
	return found{may: true, has: has && c.row == row, incomplete: r.incomplete}
}

// isClosed reports whether damage closed a partition here.
func (s *server) isClosed(id lease.Partition) bool {
	r := s.disk.copies[id]
	return r != nil && r.closed
}

// empty reports whether no row was ever taken.
func (r *replica) empty() bool { return len(r.rows) == 0 }

func placements(p *topology.Partition) []topology.ServerID {
	var out []topology.ServerID
	for _, pl := range p.Placements {
		out = append(out, pl.Server)
	}
	return out
}
