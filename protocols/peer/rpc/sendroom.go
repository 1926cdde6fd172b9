package rpc

import "sync"

// sendRoom is the memory for frames that wait to be sent, which all links share. It has no clock, lock or goroutine; sharedSendRoom has.
//
//	most ─┬─ shared: a link holds no more of it than it leaves free for others
//	      └─ lane:   one frame of a link that holds nothing, whatever its length, by turns
//
// Room that a link holds cannot be withdrawn while its other side reads slowly. So a link that asks for more gets at most half of the free
// room: k links that come one after the other leave a 2^k-th of the shared part free, and once they have sent all beyond their share, a
// (k+1)th, as much as each of them holds. Half of the free room is always there for a frame of one more link. (These are the dynamic
// thresholds of switches with shared memory, Choudhury and Hahne 1998, with a factor of 1.) The price: a link that is alone has half of the
// shared part.
//
// A frame that waits is in the end sent: a link's frames keep their order, so those of its link before it leave, the link then holds
// nothing, and it is in line for the lane. The lane becomes free as the other side reads or the link ends, which needs no room here. Frames
// that fit the shared part pass those that wait for the lane.
//
// Invariant: used is the sum over the links, lane the part of it in the lane; used − lane is at most most − longest, and lane at
// most longest.
type sendRoom struct {
	room          // what links hold and wait for; its serve is for another rule
	longest int64 // constant: of a frame
	lane    int64
}

func newSendRoom(most, longest int64) sendRoom {
	return sendRoom{room: room{most: max(most, 2*longest)}, longest: longest}
}

// place is where a link's next frame has room now.
func (r *sendRoom) place(p *roomPeer, bytes int64) queued {
	switch {
	case p.held+bytes <= r.most-r.longest-(r.used-r.lane)-bytes:
		return fromAll
	case r.lane == 0 && p.held == 0 && bytes <= r.longest:
		return fromLane
	}
	return nowhere
}

// serve returns the seats that have their bytes now. Of several links the one that holds least is first, then the one that was served the
// longest ago.
func (r *sendRoom) serve() (got []*seat) {
	for {
		var next *roomPeer
		var place queued
		for _, p := range r.peers {
			if len(p.waits) == 0 || next != nil && !p.before(next) {
				continue
			}
			if at := r.place(p, p.waits[0].bytes); at != nowhere {
				next, place = p, at
			}
		}
		if next == nil {
			return got
		}
		s := next.waits[0]
		r.take(next, s)
		if s.from = place; place == fromLane {
			r.lane = s.bytes
		}
		got = append(got, s)
	}
}

// leave removes a seat, whether it has its bytes or waits. serve is to be called after it.
func (r *sendRoom) leave(s *seat) {
	if s.has && s.from == fromLane {
		r.lane -= s.bytes
	}
	r.room.leave(s)
}

// give returns bytes that a link holds. serve is to be called after it.
func (r *sendRoom) give(server string, from queued, bytes int64) {
	if from == fromLane {
		r.lane -= bytes
	}
	r.room.give(server, bytes)
}

// sharedSendRoom is a sendRoom that goroutines wait for.
type sharedSendRoom struct {
	mu   sync.Mutex
	room sendRoom // guarded by mu
}

func newSharedSendRoom(most, longest int64) *sharedSendRoom {
	return &sharedSendRoom{room: newSendRoom(most, longest)}
}

// join has a link wait for bytes, which it has when got is closed. settle or leave ends that.
func (r *sharedSendRoom) join(server string, bytes int64) *seat {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.room.ask(server, bytes)
	s.got = make(chan struct{})
	r.serveLocked()
	return s
}

// settle ends a wait, and returns where it has its bytes, or nowhere.
func (r *sharedSendRoom) settle(s *seat) queued {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s.has {
		return s.from
	}
	r.room.leave(s)
	r.serveLocked() // those behind may be shorter
	return nowhere
}

// try has a link hold bytes if it need not wait for them.
func (r *sharedSendRoom) try(server string, bytes int64) queued {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.room.ask(server, bytes)
	r.serveLocked()
	if !s.has {
		r.room.leave(s)
	}
	return s.from
}

// give returns bytes that a link holds.
func (r *sharedSendRoom) give(server string, from queued, bytes int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.room.give(server, from, bytes)
	r.serveLocked()
}

// leave gives back the bytes of a seat.
func (r *sharedSendRoom) leave(s *seat) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.room.leave(s)
	r.serveLocked()
}

func (r *sharedSendRoom) serveLocked() {
	for _, s := range r.room.serve() {
		if s.got != nil {
			close(s.got)
		}
	}
}

// wanted reports whether frames wait.
func (r *sharedSendRoom) wanted() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.room.wanted()
}

// used is the bytes that links hold.
func (r *sharedSendRoom) used() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.room.used
}
