package handshake

import (
	"crypto/tls"
	"net"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// Conn is a connection below TLS. Its handshake waits for a turn before it computes, and gives the turn back when it reads on or ends.
//
//	ClientHello is read ─▶ turn ─▶ signature, answer ─▶ Read gives the turn back ─▶ bytes came: turn ─▶ … ─▶ End
type Conn struct {
	net.Conn
	gate   *Gate
	from   sender
	closed chan struct{}

	turns int // that the handshake had; owned by its goroutine

	ended   atomic.Bool // the handshake
	turn    atomic.Bool // it has one
	closing sync.Once
}

// Conn has the handshake of a connection wait for its turns, if its server's configuration is Gated. The port is a name of our own. Its goroutine calls End after the handshake, also after one that failed.
func (g *Gate) Conn(c net.Conn, port string) *Conn {
	return &Conn{Conn: c, gate: g, from: senderOf(port, c.RemoteAddr()), closed: make(chan struct{})}
}

// Read reads what the client sends.
func (c *Conn) Read(p []byte) (int, error) {
	if c.ended.Load() {
		return c.Conn.Read(p)
	}
	c.leave()
	n, err := c.Conn.Read(p)
	if n > 0 && c.turns > 0 {
		if err := c.enter(); err != nil {
			return 0, err
		}
	}
	return n, err
}

// Close closes the connection. A handshake that waits for a turn ends; one that computes keeps its turn until its own goroutine notices, and calls End.
func (c *Conn) Close() error {
	c.closing.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

// End is called by the goroutine of the handshake when that is over, by whatever end: the connection waits for no turn from then on.
func (c *Conn) End() {
	c.ended.Store(true)
	c.leave()
}

// SyscallConn gives the file descriptor, for options of the socket.
func (c *Conn) SyscallConn() (syscall.RawConn, error) {
	if s, ok := c.Conn.(syscall.Conn); ok {
		return s.SyscallConn()
	}
	return nil, fault.Errorf(fault.Invalid, "a connection without a file descriptor")
}

// turnsAhead is how many turns a handshake has before it stands in the line of its sender again. An honest one has one for each piece that its socket gives, three or
// four; a client that sends single bytes could have as many as it liked, each before all new handshakes.
const turnsAhead = 8

func (c *Conn) enter() error {
	err := c.gate.enter(&waiter{from: c.from, begun: c.turns > 0 && c.turns < turnsAhead}, c.closed)
	if err == nil {
		c.turns++
		c.turn.Store(true)
	}
	return err
}

func (c *Conn) leave() {
	if c.turn.CompareAndSwap(true, false) {
		c.gate.leave()
	}
}

// Interrupt closes the connection below c, or c itself where no Conn lies below it. The client is sent no alert of TLS: nothing waits for it to read one.
func Interrupt(c net.Conn) {
	if ours, ok := below(c); ok {
		c = ours
	}
	_ = c.Close()
}

// End ends the handshake of the Conn that lies below others. Other connections stay as they are.
func End(c net.Conn) {
	if ours, ok := below(c); ok {
		ours.End()
	}
}

// below finds the Conn below others, which give theirs by NetConn as *tls.Conn does.
func below(c net.Conn) (*Conn, bool) {
	for {
		if ours, ok := c.(*Conn); ok {
			return ours, true
		}
		outer, ok := c.(interface{ NetConn() net.Conn })
		if !ok {
			return nil, false
		}
		c = outer.NetConn()
	}
}

// Gated is a server's configuration with which handshakes of Conns wait for their turns. A handshake has its first turn when its ClientHello has come whole: one
// that comes in pieces has none until then, and one that never ends has none at all.
func Gated(c *tls.Config) *tls.Config {
	c = c.Clone()
	choose := c.GetConfigForClient
	c.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		if ours, ok := hello.Conn.(*Conn); ok {
			if err := ours.enter(); err != nil {
				return nil, err
			}
		}
		if choose == nil {
			return nil, nil
		}
		return choose(hello)
	}
	return c
}

// Listener speaks TLS on the connections of another listener. The port is a name of our own: a flood of one port does not delay the clients of another.
func (g *Gate) Listener(ln net.Listener, port string, c *tls.Config) net.Listener {
	return tls.NewListener(&listener{ln, g, port}, Gated(c))
}

type listener struct {
	net.Listener
	gate *Gate
	port string
}

// Accept waits for the next connection.
func (l *listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return l.gate.Conn(c, l.port), nil
}
