package rpc

import (
	"sync"
	"sync/atomic"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// linkRoom is the memory of a process for received frames of all its links, beyond the first bytes of each. It is shared as the room of messages is (room): of the
// servers that wait the one that holds least is next.
//
//	link of s2 ── first bytes ──┐
//	link of s3 ── first bytes ──┼─ extra of s2 │ extra of s3 │ free     most, for all
//	link of s4 ── first bytes ──┘
//
// A link keeps what it was given, so that nothing is asked for while its traffic stays as it is, until another waits: then its frames that are released give their room to
// that one. The other side gives back unused room (outRoom.idle).
type linkRoom struct {
	mu   sync.Mutex
	room room                // guarded by mu
	of   map[*seat]*linkPart // guarded by mu: that wait
}

// linkPart is the part of a link.
type linkPart struct {
	// Constant.
	all    *linkRoom
	server string
	window int64 // the most
	grant  func(n uint64)
	inUse  *atomic.Int64 // of frames that came and are not released: falls under all.mu alone, so that end sees what release will give back

	extra atomic.Int64 // given beyond the first bytes; written under all.mu
	long  atomic.Int64 // of inUse, in frames that are longer than the first bytes

	// Guarded by all.mu.
	want  int64 // asked for, and not given
	waits bool  // it has a seat; else the window has no room
	ended bool
}

// most is the room of the link's frames.
func (p *linkPart) most() int64 { return linkFirstBytes + p.extra.Load() }

func newLinkRoom(most int64) *linkRoom {
	const longest = linkFrameWindowMin / 2
	return &linkRoom{room: room{most: max(most, 2*longest), spare: longest}, of: map[*seat]*linkPart{}}
}

// given is the room that a link is granted.
type given struct {
	to *linkPart
	n  int64
}

func grantAll(all []given) {
	for _, g := range all {
		g.to.grant(uint64(g.n))
	}
}

// ask returns room that the other side gives back, and gives it as much as it asks for, at once or later. The error is Corrupt.
func (p *linkPart) ask(give, want uint64) error {
	r := p.all
	r.mu.Lock()
	if give > uint64(p.extra.Load()) {
		r.mu.Unlock()
		return fault.Errorf(fault.Corrupt, "a link's other side gives back %d bytes of room, more than it had", give)
	}
	if want > linkFrameWindowMin/2 || want > 0 && p.want > 0 {
		r.mu.Unlock()
		return fault.Errorf(fault.Corrupt, "a link's other side asks for %d bytes of room, longer than any frame, or for the second time", want)
	}
	p.giveLocked(int64(give))
	p.want += int64(want)
	p.enterLocked()
	got := r.serveLocked()
	r.mu.Unlock()
	grantAll(got)
	return nil
}

// came counts a frame of which the first part came, or not any more.
func (p *linkPart) came(cost, sign int64) {
	if cost > linkFirstBytes {
		p.long.Add(sign * cost)
	}
}

// release gives back the room of a frame: to the link, or, as far as it returns, to others that wait. What long frames that are not released need is not given away, so
// that the first bytes come back for short ones meanwhile.
// Without anything that waits it costs one lock, also where there are many servers.
func (p *linkPart) release(cost int64) (kept int64) {
	r := p.all
	r.mu.Lock()
	p.inUse.Add(-cost)
	p.came(cost, -1)
	if p.extra.Load() == 0 || !p.ended && p.want == 0 && len(r.of) == 0 {
		r.mu.Unlock()
		return 0
	}
	kept = p.giveLocked(min(cost, max(p.extra.Load()-p.long.Load(), 0)))
	p.enterLocked()
	got := r.serveLocked()
	r.mu.Unlock()
	grantAll(got)
	return kept
}

// end gives back the room beside that of frames that are not released.
func (p *linkPart) end() {
	r := p.all
	r.mu.Lock()
	p.ended, p.want = true, 0
	for s, of := range r.of {
		if of == p {
			r.room.leave(s)
			delete(r.of, s)
		}
	}
	p.giveLocked(max(p.extra.Load()-p.inUse.Load(), 0))
	got := r.serveLocked()
	r.mu.Unlock()
	grantAll(got)
}

// giveLocked returns n bytes to the room, or as many as the link was given.
func (p *linkPart) giveLocked(n int64) (back int64) {
	back = min(n, p.extra.Load())
	p.extra.Add(-back)
	p.all.room.give(p.server, back)
	return back
}

// enterLocked has the link wait for the room that it asks for, once its window can hold it.
func (p *linkPart) enterLocked() {
	if p.want == 0 || p.waits || p.ended || p.most()+p.want > p.window {
		return
	}
	p.waits = true
	p.all.of[p.all.room.ask(p.server, p.want)] = p
}

func (r *linkRoom) serveLocked() (all []given) {
	for _, s := range r.room.serve() {
		p := r.of[s]
		delete(r.of, s)
		p.extra.Add(s.bytes)
		all = append(all, given{p, s.bytes})
		p.want, p.waits = 0, false
	}
	return all
}

// step is how much of a link's room is returned at once.
func (p *linkPart) step() int64 { return p.most() / creditShare }
