package rpc

import (
	"cmp"
	"container/list"
	"net"
	"net/netip"
	"sync"

	"github.com/spillwaydb/spillway/protocols/handshake"
)

// StrangersMax bounds the connections that have shown no certificate yet, or, where peers speak in the clear, have made no call. A program that reaches the port can open as many as there are file descriptors, and a server without a descriptor can write
// no segment. Beyond the bound one is closed: of the host that has the most of them the oldest. A peer shows its certificate within milliseconds, but under load a flood opens 512 others
// meanwhile.
const StrangersMax = 512

// strangers are connections whose handshake has not ended. The zero value has none. Safe for concurrent use.
type strangers struct {
	most int // Settings.StrangersMax; 0: StrangersMax. Constant

	mu    sync.Mutex
	n     int
	hosts map[netip.Addr]*list.List // of *stranger; the oldest first; none is empty
}

type stranger struct {
	conn net.Conn
	host netip.Addr
	at   *list.Element // nil: it left
}

// enter notes a connection until leave is called.
func (s *strangers) enter(conn net.Conn) (leave func()) {
	mine, surplus := s.add(conn)
	if surplus != nil {
		_ = surplus.Close() // its handshake fails
	}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.removeLocked(mine)
	}
}

// add notes a connection, and removes one where there are too many; nil: there are not.
func (s *strangers) add(conn net.Conn) (mine *stranger, surplus net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	mine = &stranger{conn: conn, host: handshake.HostOf(conn.RemoteAddr())}
	if s.hosts == nil {
		s.hosts = map[netip.Addr]*list.List{}
	}
	of := s.hosts[mine.host]
	if of == nil {
		of = &list.List{}
		s.hosts[mine.host] = of
	}
	mine.at = of.PushBack(mine)
	if s.n++; s.n <= cmp.Or(s.most, StrangersMax) {
		return mine, nil
	}
	most := of
	for _, other := range s.hosts {
		if other.Len() > most.Len() {
			most = other
		}
	}
	out := most.Front().Value.(*stranger)
	s.removeLocked(out)
	return mine, out.conn
}

// removeLocked removes a connection, once.
func (s *strangers) removeLocked(one *stranger) {
	if one.at == nil {
		return
	}
	of := s.hosts[one.host]
	of.Remove(one.at)
	one.at = nil
	s.n--
	if of.Len() == 0 {
		delete(s.hosts, one.host)
	}
}
