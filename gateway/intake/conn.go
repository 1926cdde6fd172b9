package intake

import (
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// server is the server that reads from a connection; the values of the metric label server.
type server int32

const (
	serverPeek server = iota
	serverFast
	serverPlain
	servers
)

var serverNames = [servers]string{"peek", "fasthttp", "nethttp"}

// conn is an accepted connection. Reads return the peeked bytes first.
type conn struct {
	net.Conn
	front *Front

	// Owned by the reading goroutine.
	head   []byte
	see    int       // bytes of head of the request that is served: its server sees them before the connection counts as idle
	late   bool      // the rest of the request did not come in time: behind head Read returns a timeout
	large  bool      // a server reads a large body
	parks  bool      // Close keeps the connection: it waits for its next request elsewhere
	idleBy time.Time // when a parked connection is closed
	ended  bool      // the sender will send nothing more
	linger bool      // Close waits for the unread rest of a body
	read   int64
	wrote  int   // since the time for writes was set anew
	most   int64 // as many bytes may be read, of a body in chunks; 0: any number

	by        atomic.Int32 // server
	idleSince atomic.Int64 // unix nanoseconds; 0: a request is being served

	closing  sync.Once
	closeErr error
}

// Read returns the peeked bytes, then the connection's.
func (c *conn) Read(p []byte) (int, error) {
	switch idle := c.idleSince.Load() != 0 && c.by.Load() == int32(serverFast); {
	case c.see > 0:
		n := copy(p, c.head[:c.see])
		c.behead(n)
		c.see -= n
		return n, nil
	case idle && !c.late:
		return c.readIdle(p)
	case len(c.head) > 0:
		n := copy(p, c.head)
		c.behead(n)
		return n, nil
	case c.late:
		return 0, os.ErrDeadlineExceeded
	}
	return c.readConn(p)
}

func (c *conn) behead(n int) {
	if c.head = c.head[n:]; len(c.head) == 0 {
		c.head = nil
	}
}

func (c *conn) readConn(p []byte) (int, error) {
	if c.most > 0 {
		if c.read >= c.most {
			return 0, errChunkOverhead
		}
		p = p[:min(int64(len(p)), c.most-c.read)]
	}
	n, err := c.Conn.Read(p)
	c.read += int64(n)
	if err == io.EOF {
		c.ended = true
	}
	return n, err
}

// Write gives a client of fasthttp, which sets one time for the whole of an answer, that time for each patientBytes of it. Those of net/http have it by patientWriter.
func (c *conn) Write(p []byte) (n int, err error) {
	if server(c.by.Load()) != serverFast {
		return c.Conn.Write(p)
	}
	for n < len(p) {
		if c.wrote >= patientBytes {
			c.wrote = 0
			if err := c.SetWriteDeadline(time.Now().Add(writeTimeMax)); err != nil {
				return n, err
			}
		}
		wrote, err := c.Conn.Write(p[n:min(n+patientBytes-c.wrote, len(p))])
		c.wrote += wrote
		if n += wrote; err != nil {
			return n, err
		}
	}
	return n, nil
}

// Of a body in chunks so many bytes may come beside its content: lengths, extensions, trailers. Else its bound does not limit the bytes that are read.
const (
	chunkOverheadLeast = 64 << 10
	chunkOverheadShare = 16 // bytes for each of content: chunks of one byte need six
)

var errChunkOverhead = fault.Errorf(fault.Invalid, "the chunks of the body have more extensions than content")

// allow lets a body in chunks of so many bytes come, beginning with the byte start of the connection.
func (c *conn) allow(start, content int64) {
	c.most = start + chunkOverheadLeast + content*chunkOverheadShare
}

// Bounds for a refused body that its sender is still sending. Closing at once would reset the connection, and the sender
// would see that instead of the answer.
const (
	lingerTimeMax  = time.Second
	lingerBytesMax = 64 << 20
)

// Close closes the connection once; later calls give the first one's error. A connection that parks stays open: its server is done with it.
func (c *conn) Close() error {
	if c.parks {
		return nil
	}
	c.closing.Do(func() {
		if c.linger && c.CloseWrite() == nil && c.Conn.SetReadDeadline(time.Now().Add(lingerTimeMax)) == nil {
			_, _ = io.CopyN(io.Discard, c.Conn, lingerBytesMax)
		}
		c.closeErr = c.Conn.Close()
		c.front.forget(c)
	})
	return c.closeErr
}

// CloseWrite signals the end of our data to the other side, and leaves it time to read.
func (c *conn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return net.ErrClosed
}

func (c *conn) moveTo(s server) {
	old := server(c.by.Swap(int32(s)))
	c.front.metrics.conns.WithLabelValues(serverNames[old]).Dec()
	c.front.metrics.conns.WithLabelValues(serverNames[s]).Inc()
}

// handedConn is a connection that fasthttp handed over: reads return the bytes that fasthttp had read first.
type handedConn struct {
	*conn
	rest io.Reader
}

func (h *handedConn) Read(p []byte) (int, error) { return h.rest.Read(p) }

// listener gives a server connections that were accepted elsewhere.
type listener struct {
	conns  chan net.Conn
	addr   net.Addr
	closed chan struct{}
	once   sync.Once
}

func newListener(addr net.Addr) *listener {
	return &listener{conns: make(chan net.Conn), addr: addr, closed: make(chan struct{})}
}

// push hands c over, or closes it when the server is gone.
func (l *listener) push(c net.Conn) {
	select {
	case l.conns <- c:
	case <-l.closed:
		_ = c.Close()
	}
}

// Accept waits for the next connection.
func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Close ends Accept and push.
func (l *listener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

// Addr is where the connections come from.
func (l *listener) Addr() net.Addr { return l.addr }
