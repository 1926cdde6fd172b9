package rpc

import (
	"cmp"
	"context"
	"sync"
	"time"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// room is memory that peers share: for messages that arrive. It has no clock, lock or goroutine; sharedRoom has.
//
//	most ─┬─ a peer that holds nothing gets what fits
//	      └─ one that holds something leaves spare to those that do not
//
// Of the peers that wait the one that holds least is served first, of several such the one that was served the longest ago, and none
// overtakes it, so that a long message gets its turn. However many connections, calls and messages a peer has, they are one peer's.
//
// A peer that holds nothing and does not wait is forgotten, and when it comes again it is behind those that wait: as one that was never
// served it would be before them each time, and two such peers had their turns for ever. One that gives something back is behind those that
// came meanwhile. So each peer that waits, and holds nothing, waits for one message of each other peer at most.
//
// Invariant: used is the sum of what the peers hold, and at most most.
type room struct {
	most, spare int64 // constant; spare is at least the longest request, and half of most at the most

	used  int64
	turns uint64
	peers map[string]*roomPeer // that hold something, or wait
}

// roomPeer is a peer's part of a room.
type roomPeer struct {
	name   string
	held   int64
	served uint64  // the turn in which it came, was given something or gave something back last
	waits  []*seat // in the order in which they came
}

// before reports whether a peer that waits is served before another one that does.
func (p *roomPeer) before(q *roomPeer) bool {
	return cmp.Or(cmp.Compare(p.held, q.held), cmp.Compare(p.served, q.served), cmp.Compare(p.waits[0].turn, q.waits[0].turn)) < 0
}

// seat is a part of a room that a peer holds, or waits for.
type seat struct {
	of    *roomPeer
	bytes int64
	turn  uint64
	has   bool          // it holds its bytes
	from  queued        // where; of a sendRoom
	got   chan struct{} // closed by sharedRoom when it does
}

// ask adds a seat, which waits until serve returns it.
func (r *room) ask(peer string, bytes int64) *seat {
	of := r.peers[peer]
	if of == nil {
		if r.peers == nil {
			r.peers = map[string]*roomPeer{}
		}
		of = &roomPeer{name: peer, served: r.turns + 1}
		r.peers[peer] = of
	}
	r.turns++
	s := &seat{of: of, bytes: bytes, turn: r.turns}
	of.waits = append(of.waits, s)
	return s
}

// serve returns the seats that have their bytes now.
func (r *room) serve() (got []*seat) {
	for {
		var next *roomPeer
		for _, p := range r.peers {
			if len(p.waits) > 0 && (next == nil || p.before(next)) {
				next = p
			}
		}
		if next == nil {
			return got
		}
		s, left := next.waits[0], r.most-r.used
		if next.held > 0 {
			left -= r.spare
		}
		if s.bytes > left {
			return got
		}
		r.take(next, s)
		got = append(got, s)
	}
}

// take assigns the first seat of a peer its bytes.
func (r *room) take(p *roomPeer, s *seat) {
	p.waits = p.waits[1:]
	r.move(p, s.bytes)
	s.has = true
}

// move changes what a peer holds.
func (r *room) move(p *roomPeer, bytes int64) {
	p.held += bytes
	r.used += bytes
	r.turns++
	p.served = r.turns
}

// forget removes a peer that holds nothing and does not wait.
func (r *room) forget(p *roomPeer) {
	if p.held == 0 && len(p.waits) == 0 {
		delete(r.peers, p.name)
	}
}

// leave removes a seat, whether it has its bytes or waits. serve is to be called after it.
func (r *room) leave(s *seat) {
	p := s.of
	if s.has {
		s.has = false
		r.move(p, -s.bytes)
	} else {
		for i, other := range p.waits {
			if other == s {
				p.waits = append(p.waits[:i:i], p.waits[i+1:]...)
				break
			}
		}
	}
	r.forget(p)
}

// give returns bytes that a peer holds. serve is to be called after it.
func (r *room) give(peer string, bytes int64) {
	if bytes == 0 {
		return
	}
	p := r.peers[peer]
	r.move(p, -bytes)
	r.forget(p)
}

// wanted reports whether any peer waits.
func (r *room) wanted() bool {
	for _, p := range r.peers {
		if len(p.waits) > 0 {
			return true
		}
	}
	return false
}

// sharedRoom is a room that goroutines wait for.
type sharedRoom struct {
	mu      sync.Mutex
	room    room   // guarded by mu
	refused uint64 // requests that waited in vain; guarded by mu
}

func newSharedRoom(most, longest int64) *sharedRoom {
	return &sharedRoom{room: room{most: max(most, 2*longest), spare: longest}}
}

// enter waits so long for bytes, or until ctx ends. The error is errNoRoom.
func (r *sharedRoom) enter(ctx context.Context, most time.Duration, peer string, bytes int64) (*seat, error) {
	r.mu.Lock()
	s := r.room.ask(peer, bytes)
	r.serveLocked()
	if s.has {
		r.mu.Unlock()
		return s, nil
	}
	s.got = make(chan struct{})
	r.mu.Unlock()
	limit := time.NewTimer(most)
	defer limit.Stop()
	select {
	case <-s.got:
		return s, nil
	case <-limit.C:
	case <-ctx.Done():
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if s.has {
		return s, nil
	}
	if ctx.Err() == nil { // else it is its caller that is gone, and slow messages need not make room for it
		r.refused++
	}
	r.room.leave(s)
	r.serveLocked() // those behind may be smaller
	return nil, fault.Annotate(errNoRoom, "a message of %d bytes", bytes)
}

// leave gives back the bytes of a seat.
func (r *sharedRoom) leave(s *seat) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.room.leave(s)
	r.serveLocked()
}

func (r *sharedRoom) serveLocked() {
	for _, s := range r.room.serve() {
		if s.got != nil {
			close(s.got)
		}
	}
}

// wanted reports whether others wait.
func (r *sharedRoom) wanted() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.room.wanted()
}

// refusals counts those that waited in vain.
func (r *sharedRoom) refusals() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.refused
}

// used is the bytes that peers hold.
func (r *sharedRoom) used() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.room.used
}
