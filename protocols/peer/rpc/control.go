package rpc

import (
	"net"
	"sync"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/spillwaydb/spillway/protocols/handshake"
	"github.com/spillwaydb/spillway/protocols/pace"
)

// HTTP/2 frames without content cost a server more than their sender: a call that is reset as soon as it begins starts a handler, and SETTINGS and PING demand
// an answer. A hundred thousand a second, of a faulty peer or of any program where the port is not secured, make all other writes last seconds. So a connection
// that sends more of them than our peers ever do is read more slowly: its sender waits, and no other peer does.
const (
	controlPerSecond = 1000
	controlBurst     = 2000            // a gateway that gives up all its calls at once sends callsMax resets
	controlPauseMax  = 2 * time.Second // of one read, so that the keepalive of a connection is answered
)

// Kinds of frames (RFC 9113, 6) that are not counted: rows and answers, calls, and room for more of them.
const (
	frameData         = 0
	frameHeaders      = 1
	frameWindowUpdate = 8
)

const (
	frameHeaderBytes  = 9
	clientPrefaceText = 24 // bytes before a client's first frame
	flagEndStream     = 1
)

// controlFrames finds the frames in the bytes that a client sends. Make one with newControlFrames. It has no clock, lock or I/O.
type controlFrames struct {
	skip int // bytes of the frame's payload, or of the preface, that are still to come
	head [frameHeaderBytes]byte
	have int // bytes of head

	called bool // a call began
}

func newControlFrames() controlFrames { return controlFrames{skip: clientPrefaceText} }

// count reads the next bytes of the connection, and counts the headers of frames that carry nothing which end in them.
func (f *controlFrames) count(b []byte) (n int) {
	for len(b) > 0 {
		if f.skip > 0 {
			skipped := min(f.skip, len(b))
			f.skip -= skipped
			b = b[skipped:]
			continue
		}
		copied := copy(f.head[f.have:], b)
		f.have += copied
		b = b[copied:]
		if f.have < frameHeaderBytes {
			return n
		}
		f.have, f.skip = 0, int(f.head[0])<<16|int(f.head[1])<<8|int(f.head[2])
		switch f.head[3] {
		case frameHeaders:
			f.called = true
		case frameWindowUpdate:
		case frameData:
			if f.skip == 0 && f.head[4]&flagEndStream == 0 {
				n++
			}
		default:
			n++
		}
	}
	return n
}

// pacedCredentials pace the connections of a server. Where they are in the clear a connection is a stranger until its first call.
type pacedCredentials struct {
	credentials.TransportCredentials
	strangers *strangers // nil: connections show certificates
}

func newPacedCredentials(creds credentials.TransportCredentials, s *Settings) pacedCredentials {
	c := pacedCredentials{TransportCredentials: creds}
	if s.TLS.Insecure {
		c.strangers = &strangers{most: s.StrangersMax}
	}
	return c
}

// ServerHandshake implements credentials.TransportCredentials.
func (c pacedCredentials) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	secure, info, err := c.TransportCredentials.ServerHandshake(conn)
	if err != nil {
		return nil, nil, err
	}
	paced := &pacedConn{Conn: secure, frames: newControlFrames(), bucket: pace.New(controlPerSecond, controlBurst), leave: func() {}, closed: make(chan struct{})}
	if c.strangers != nil {
		paced.leave = c.strangers.enter(conn)
	}
	return paced, pacedInfo{info, paced, peerName(info, conn)}, nil
}

// pacedInfo identifies the other side of a connection, and has the connection.
type pacedInfo struct {
	credentials.AuthInfo
	conn net.Conn
	peer string // of all connections of the same process
}

// peerName is the identity in the certificate of a connection, or its host.
func peerName(info credentials.AuthInfo, conn net.Conn) string {
	if t, ok := info.(credentials.TLSInfo); ok && len(t.State.PeerCertificates) > 0 {
		if id, err := IdentityOf(t.State.PeerCertificates[0]); err == nil {
			return id.String()
		}
	}
	return handshake.HostOf(conn.RemoteAddr()).String()
}

// Clone implements credentials.TransportCredentials.
func (c pacedCredentials) Clone() credentials.TransportCredentials {
	return pacedCredentials{c.TransportCredentials.Clone(), c.strangers}
}

// pacedConn is a connection whose reader waits where too many frames that carry nothing came.
type pacedConn struct {
	net.Conn
	frames controlFrames // of the one goroutine that reads
	bucket *pace.Bucket
	leave  func() // it is no stranger any more; may be called again
	once   sync.Once
	closed chan struct{}
}

// Read implements net.Conn.
func (c *pacedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	called := c.frames.called
	control := c.frames.count(b[:n])
	if !called && c.frames.called {
		c.leave()
	}
	if control > 0 {
		if over := control - c.bucket.Take(time.Now(), control); over > 0 {
			c.pause(min(time.Duration(over)*time.Second/controlPerSecond, controlPauseMax))
			c.bucket.Take(time.Now(), over) // they had their time
		}
	}
	return n, err
}

func (c *pacedConn) pause(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-c.closed:
	}
}

// Close implements net.Conn.
func (c *pacedConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	c.leave()
	return c.Conn.Close()
}
