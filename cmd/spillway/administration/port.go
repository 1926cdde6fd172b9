package administration

import (
	"bytes"
	"container/list"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"github.com/spillwaydb/spillway/gateway/intake"
	"github.com/spillwaydb/spillway/protocols/handshake"
)

// Bounds of the admin port. Clients there are people and scrapers; a slow one must not use what the process needs for others.
const (
	adminHeaderTimeMax = 10 * time.Second
	adminBodyTimeMax   = 10 * time.Second // orders are read whole before they are carried out
	adminIdleTimeMax   = 2 * time.Minute
	adminWriteTimeMax  = 30 * time.Second // for the client to read a piece of the answer; the whole answer may last longer
	adminHeaderMax     = 64 << 10
	adminBodyMax       = 1 << 20
	adminConnsMax      = 256 // beyond it those that ask nothing are closed
)

// PortServer serves pages on the admin port, which get the body of a request whole, to clients that read their answers.
func PortServer(pages http.Handler) *http.Server {
	return BareServer(intake.Patiently(wholeBodies(pages), adminWriteTimeMax))
}

// BareServer is PortServer for a handler that reads no body.
func BareServer(h http.Handler) *http.Server {
	return &http.Server{Handler: h, ReadHeaderTimeout: adminHeaderTimeMax, IdleTimeout: adminIdleTimeMax, MaxHeaderBytes: adminHeaderMax, ConnState: changed}
}

// changed notes that a connection has a request, by which its handshake is over, waits for the next one, or has ended.
func changed(c net.Conn, state http.ConnState) {
	ours, capped := c.(*cappedConn)
	switch state {
	case http.StateActive:
		handshake.End(c)
		if capped {
			ours.asks()
		}
	case http.StateIdle:
		if capped {
			ours.rests()
		}
	case http.StateClosed: // perhaps before its handshake was over
		handshake.End(c)
	}
}

// wholeBodies reads the body of a request, in bounded time, before a page sees it.
func wholeBodies(pages http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength == 0 {
			pages.ServeHTTP(w, r)
			return
		}
		c := http.NewResponseController(w)
		_ = c.SetReadDeadline(time.Now().Add(adminBodyTimeMax))
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, adminBodyMax))
		if err != nil {
			w.Header().Set("Connection", "close")
			http.Error(w, "the body cannot be read: "+err.Error(), http.StatusBadRequest)
			return
		}
		_ = c.SetReadDeadline(time.Time{})
		r.Body = io.NopCloser(bytes.NewReader(body))
		pages.ServeHTTP(w, r)
	})
}

// cappedListener bounds the connections that are open at once. Beyond the bound one without a request is closed, so that silent connections keep no administrator out: of the address
// that has the most of them the one that has been without the longest. Where a request of each is under way, the new connection is closed.
type cappedListener struct {
	net.Listener
	most int

	mu     sync.Mutex
	open   int
	silent list.List // of *cappedConn without a request; the one that waits the longest first
}

// Accept waits for the next connection that there is room for.
func (l *cappedListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		ours, closes := l.enter(c)
		if closes != nil {
			handshake.Interrupt(closes)
		}
		if ours != nil {
			return ours, nil
		}
	}
}

// enter counts a connection in, and gives the one to close, which is c itself where ours is nil; nil: there is room.
func (l *cappedListener) enter(c net.Conn) (ours *cappedConn, closes net.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open >= l.most {
		out := l.surplusLocked(c)
		if out == nil {
			return nil, c
		}
		l.leaveLocked(out)
		closes = out
	}
	l.open++
	ours = &cappedConn{Conn: c, of: l, host: handshake.HostOf(c.RemoteAddr()), counted: true}
	ours.silent = l.silent.PushBack(ours)
	return ours, closes
}

// surplusLocked is the connection to close in favour of c; nil: there is none.
func (l *cappedListener) surplusLocked(c net.Conn) (out *cappedConn) {
	silent := map[netip.Addr]int{handshake.HostOf(c.RemoteAddr()): 1}
	for e := l.silent.Front(); e != nil; e = e.Next() {
		silent[e.Value.(*cappedConn).host]++
	}
	for e := l.silent.Front(); e != nil; e = e.Next() {
		if one := e.Value.(*cappedConn); out == nil || silent[one.host] > silent[out.host] {
			out = one
		}
	}
	return out
}

// leaveLocked counts a connection out, once.
func (l *cappedListener) leaveLocked(c *cappedConn) {
	if c.counted {
		c.counted = false
		l.open--
		l.silent.Remove(c.silent)
	}
}

type cappedConn struct {
	net.Conn
	of   *cappedListener
	host netip.Addr

	counted bool          // guarded by of.mu
	silent  *list.Element // of of.silent, while it has no request; guarded by of.mu
}

// asks is called when a request has come, rests when it is answered.
func (c *cappedConn) asks() {
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	c.of.silent.Remove(c.silent)
}

func (c *cappedConn) rests() {
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	if c.counted {
		c.silent = c.of.silent.PushBack(c)
	}
}

// NetConn gives the connection below.
func (c *cappedConn) NetConn() net.Conn { return c.Conn }

// Close closes the connection, which makes room for another.
func (c *cappedConn) Close() error {
	c.of.mu.Lock()
	c.of.leaveLocked(c)
	c.of.mu.Unlock()
	return c.Conn.Close()
}

// ServePort serves pages on the admin port until the server is closed.
func ServePort(srv *http.Server, l net.Listener) error {
	err := srv.Serve(&cappedListener{Listener: l, most: adminConnsMax})
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}
