package rpc

import (
	"container/list"
	"net"
	"sync"
)

// strangersMax bounds the connections that have shown no certificate yet. A program that reaches the port can open as many as there are file descriptors, and a server without a descriptor can write
// no segment. Beyond the bound the oldest is closed: a peer shows its certificate within milliseconds.
const strangersMax = 512

// strangers are connections whose handshake has not ended. The zero value has none. Safe for concurrent use.
type strangers struct {
	mu  sync.Mutex
	all list.List // of net.Conn; the oldest first
}

// enter notes a connection until leave is called.
func (s *strangers) enter(conn net.Conn) (leave func()) {
	mine, oldest := s.add(conn)
	if oldest != nil {
		_ = oldest.Close() // its handshake fails
	}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.all.Remove(mine) // nothing, if it was the oldest
	}
}

// add notes a connection, and takes the oldest one out where there are too many; nil: there are not.
func (s *strangers) add(conn net.Conn) (mine *list.Element, oldest net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	mine = s.all.PushBack(conn)
	if s.all.Len() > strangersMax {
		oldest = s.all.Remove(s.all.Front()).(net.Conn)
	}
	return mine, oldest
}
