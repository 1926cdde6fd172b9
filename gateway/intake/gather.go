package intake

import (
	"bytes"
	"errors"
	"net"
	"strconv"
	"time"
)

// A connection costs most while a server reads its request: the server's buffers, and a stack as deep as the decoding of a body needs. So the first bytes of a
// request are gathered before a server sees the connection. And a connection that is silent between two requests is parked: it leaves its server, and waits on
// a goroutine of its own with a small stack. Requests too large to gather go to a server at once while at most largeBodiesMax do so, since most refusals follow
// from the header alone; of any further one gatherBytesMax bytes must come first.
//
//	accepted ──▶ peek ──▶ gather ──▶ fasthttp ──▶ closed
//	              ▲  ▲                  │ nothing, or no whole request, for parkAfter
//	              │  └──── resume ◀─────┘
//	              └ first line, its server
const (
	gatherBytesMax = 4 << 10
	// parkAfter is how long a connection stays with its server between two requests. A busy sender's next request comes sooner, so that it is not parked;
	// for others the price of parking is small beside the pause.
	parkAfter = 250 * time.Millisecond
	// While more than idleMax connections wait with fasthttp, each further one is parked after 1 ms instead of parkAfter.
	idleMax = 1000
	// largeBodiesMax requests are read by servers before gatherBytesMax of them have come: 18 KiB each.
	largeBodiesMax = 1000
)

// arrival is how much of a request has come.
type arrival uint8

const (
	inHeader arrival = iota
	inBody
	inLarge // a body that is not gathered whole, or has no length
	inWhole // or a server should see it at once: it is refused, or answered with 100 Continue
)

// arrived says how much of the request at the beginning of b has come; end is the length of a whole one, or of b where a server refuses it.
func arrived(b []byte) (now arrival, end int) {
	blank := len(b)
	b = bytes.TrimLeft(b, "\r\n")
	blank -= len(b)
	header := bytes.Index(b, []byte("\r\n\r\n"))
	if header < 0 {
		return inHeader, 0
	}
	length, lengths, chunked := int64(0), 0, false
	for line := range bytes.Lines(b[:header+len("\r\n")]) {
		name, value, _ := bytes.Cut(line, []byte{':'})
		is := func(header string) bool { return len(name) == len(header) && bytes.EqualFold(name, []byte(header)) }
		switch {
		case is("Content-Length"):
			n, err := strconv.ParseInt(string(bytes.TrimSpace(value)), 10, 64)
			if lengths++; err != nil || n < 0 || lengths > 1 {
				return inWhole, blank + len(b)
			}
			length = n
		case is("Transfer-Encoding"):
			if chunked = bytes.EqualFold(bytes.TrimSpace(value), []byte("chunked")); !chunked {
				return inWhole, blank + len(b)
			}
		case is("Expect"):
			return inWhole, blank + len(b)
		}
	}
	begin := header + len("\r\n\r\n")
	if chunked {
		line, _ := firstLine(b)
		n, whole := chunksEnd(b[begin:])
		switch {
		case lengths > 0 || bytes.HasSuffix(line, []byte("/1.0")):
			return inWhole, blank + len(b)
		case whole:
			return inWhole, blank + begin + n
		}
		return inLarge, 0
	}
	switch {
	case int64(len(b)-begin) >= length:
		return inWhole, blank + begin + int(length)
	case length > int64(gatherBytesMax-begin):
		return inLarge, 0
	}
	return inBody, 0
}

// chunksEnd returns the length of a body in chunks that has come whole. It calls one whole that a server refuses, too.
func chunksEnd(b []byte) (n int, whole bool) {
	all := len(b)
	for {
		line, rest, ok := bytes.Cut(b, []byte("\r\n"))
		if !ok {
			return 0, false
		}
		size, _, _ := bytes.Cut(line, []byte{';'})
		n, err := strconv.ParseUint(string(bytes.TrimSpace(size)), 16, 63)
		switch {
		case err != nil:
			return all, true
		case n == 0 && bytes.HasPrefix(rest, []byte("\r\n")):
			return all - len(rest) + len("\r\n"), true
		case n == 0:
			end := bytes.Index(rest, []byte("\r\n\r\n")) // behind trailers
			return all - len(rest) + end + len("\r\n\r\n"), end >= 0
		case n+2 > uint64(len(rest)):
			return 0, false
		}
		b = rest[n+2:]
	}
}

// ready reports whether a server should see a request of which b has come, and how much of b it should see now: behind a whole request may be the beginning of
// the next one. now is how much of the request has come.
func (c *conn) ready(b []byte) (now arrival, see int, ready bool) {
	switch now, see = arrived(b); {
	case now == inWhole:
		return now, see, true
	case len(b) >= gatherBytesMax:
		return now, len(b), true
	case now == inLarge && c.front.largeBodies.Add(1) <= largeBodiesMax:
		c.large = true
		return now, len(b), true
	case now == inLarge:
		c.front.largeBodies.Add(-1)
	}
	return now, 0, false
}

// smaller ends the reading of a large body.
func (c *conn) smaller() {
	if c.large {
		c.large = false
		c.front.largeBodies.Add(-1)
	}
}

// gather reads on until a server should see a request. A header may last for header, a body for body; one that is late then is given to its server, which answers
// it.
func (c *conn) gather(header, body time.Duration) {
	by := time.Now().Add(header)
	for was := inHeader; ; {
		now, see, ready := c.ready(c.head)
		if ready {
			c.see = see
			return
		}
		if now != was {
			was, by = now, time.Now().Add(body)
		}
		if err := c.readMore(by); err != nil {
			c.late = isTimeout(err)
			return // any other error comes again
		}
	}
}

// readMore reads into head until a moment.
func (c *conn) readMore(by time.Time) error {
	if err := c.Conn.SetReadDeadline(by); err != nil {
		return err
	}
	if len(c.head) == cap(c.head) {
		c.head = append(make([]byte, 0, min(max(2*cap(c.head), peekBytes), gatherBytesMax)), c.head...)
	}
	n, err := c.Conn.Read(c.head[len(c.head):cap(c.head)])
	c.head = c.head[:len(c.head)+n]
	if n > 0 {
		err = nil // it comes again
	}
	return err
}

func isTimeout(err error) bool {
	var e net.Error
	return errors.As(err, &e) && e.Timeout()
}

// errParked ends fasthttp's reading of a connection between two requests; Close keeps the connection then.
var errParked = errors.New("the connection is parked")

// readIdle reads the beginning of the next request of a connection, or parks it.
func (c *conn) readIdle(p []byte) (int, error) {
	since := time.Unix(0, c.idleSince.Load())
	by := since.Add(parkAfter)
	if c.front.idle.Add(1) > idleMax {
		by = time.Now().Add(time.Millisecond)
	}
	defer c.front.idle.Add(-1)
	if err := c.Conn.SetReadDeadline(by); err != nil {
		return 0, err
	}
	n, err := 0, error(nil)
	if len(c.head) == 0 {
		if n, err = c.readConn(p); n > 0 {
			if _, see, ready := c.ready(p[:n]); ready {
				c.idleSince.Store(0)
				c.head = append(c.head, p[see:n]...)
				return see, nil
			}
			c.head = append(make([]byte, 0, max(peekBytes, 2*n)), p[:n]...)
			err = c.readMore(by)
		}
	}
	if len(c.head) > 0 {
		c.idleSince.Store(0)
	}
	for ; err == nil; err = c.readMore(by) {
		if _, see, ready := c.ready(c.head); ready {
			c.see = see
			break
		}
	}
	if isTimeout(err) && !c.front.draining.Load() {
		c.idleSince.Store(0)
		c.parks, c.idleBy = true, since.Add(c.front.settings.IdleTimeMax)
		return 0, errParked
	}
	if len(c.head) > 0 {
		return c.Read(p)
	}
	return n, err
}

// resume waits for the next request of a parked connection, and has it served.
func (f *Front) resume(c *conn) {
	if len(c.head) == 0 {
		c.moveTo(serverPeek)
		if err := c.readMore(c.idleBy); err != nil {
			_ = c.Close()
			return
		}
	}
	_ = c.Conn.SetReadDeadline(time.Now().Add(f.settings.PeekTimeMax))
	f.receive(c)
}
