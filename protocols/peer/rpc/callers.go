package rpc

import (
	"sync"

	"github.com/spillwaydb/spillway/protocols/budget"
	"github.com/spillwaydb/spillway/protocols/fault"
)

// callers counts the calls of each peer, and those whose request is not being read at the moment: for each of these gRPC may hold serverStreamWindow. A peer
// may have as many calls as two connections can carry, however many it opens: two, since a new one may be there before the end of the old one is known. Safe
// for concurrent use.
type callers struct {
	unreadMax int         // constant: where more are not read, peers that have more than their part of them get no further call
	held      budget.Held // of those that are not read

	mu     sync.Mutex
	unread int                // of all
	peers  map[string]*caller // that have calls
}

// caller is a peer that calls.
type caller struct{ calls, unread int }

const (
	// callerMax bounds the calls of a peer.
	callerMax = 2 * streamsMax
	// unreadLeast is the minimum of unreadMax.
	unreadLeast = 512
)

func newCallers(s *Settings) callers {
	return callers{unreadMax: max(int(s.InsertBytesMax/serverStreamWindow), unreadLeast)}
}

// enter counts a call, which leave ends; one that is always read to its end is never refused. The error is Throttled.
func (c *callers) enter(peer string, always bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	of := c.peers[peer]
	switch {
	case of == nil:
		if c.peers == nil {
			c.peers = map[string]*caller{}
		}
		of = &caller{}
		c.peers[peer] = of
	case always:
	case of.calls >= callerMax:
		return fault.Errorf(fault.Throttled, "%d calls of this peer are under way, the most there may be; try again later", of.calls)
	case c.unread >= c.unreadMax && of.unread*len(c.peers) >= c.unreadMax:
		return fault.Errorf(fault.Throttled, "%d calls of this peer wait to be read, and %d of all, the most there may be; try again later", of.unread, c.unread)
	}
	of.calls++
	return nil
}

func (c *callers) leave(peer string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	of := c.peers[peer]
	if of.calls--; of.calls == 0 {
		delete(c.peers, peer)
	}
}

// notRead counts a call of a peer that has entered as one that is not read, or no longer.
func (c *callers) notRead(peer string, more bool) {
	n := 1
	if !more {
		n = -1
	}
	c.held.Add(int64(n) * serverStreamWindow)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unread += n
	c.peers[peer].unread += n
}

// unreadCall notes whether what gRPC may hold of a call is counted.
type unreadCall struct {
	mu    sync.Mutex
	held  bool
	ended bool // the handler has returned
}

// reads counts the call as one that is read, or not.
func (a *arrivingStream) reads(reads bool) {
	a.unread.mu.Lock()
	defer a.unread.mu.Unlock()
	a.readsLocked(reads)
}

func (a *arrivingStream) readsLocked(reads bool) {
	u := &a.unread
	if u.held != reads || u.ended {
		return
	}
	u.held = !reads
	a.s.callers.notRead(a.peer, u.held)
}

// end stops counting the call, even if another goroutine still reads it.
func (a *arrivingStream) end() {
	a.unread.mu.Lock()
	a.readsLocked(true)
	a.unread.ended = true
	a.unread.mu.Unlock()
	a.s.callers.leave(a.peer)
}

// UnreadBytes is the memory that gRPC may hold of calls that are not read at the moment.
func (s *Server) UnreadBytes() int64 { return s.callers.held.Load() }

// OnUnreadGrowth registers f, which is called with the coming value of UnreadBytes each time before it grows.
func (s *Server) OnUnreadGrowth(f func(to int64)) { s.callers.held.OnGrowth(f) }
