package intake

import (
	"bytes"
	"io"
	"net"
	"strings"
	"time"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// peekBytesMax bounds the bytes read to find the server for a connection. A longer first line goes to net/http.
const (
	peekBytes    = 512
	peekBytesMax = 4 << 10
)

// peek reads the connection's first line and says whether fasthttp is to serve it. The error is the connection's.
// The bytes read are kept in head, which the chosen server reads first: neither sees that a line was read before.
func (c *conn) peek() (fast bool, err error) {
	buf := c.head // of a connection that was parked
	if c.head = nil; cap(buf) == 0 {
		buf = make([]byte, 0, peekBytes)
	}
	for seen := len(buf) > 0; ; seen = false {
		var err error
		if !seen {
			var n int
			n, err = c.Conn.Read(buf[len(buf):cap(buf)])
			buf = buf[:len(buf)+n]
		}
		line, whole := firstLine(buf)
		switch {
		case notHTTP(buf):
			return false, errNotHTTP
		case whole || len(buf) >= peekBytesMax:
			c.head = bytes.TrimLeft(buf, "\r\n") // net/http accepts no empty lines before a request
			return whole && isIntake(line) && !endsWithLF(buf), nil
		case err != nil:
			return false, err
		case len(buf) == cap(buf): // or it would read nothing; grown once, as nearly all first lines are in the first packet and fit into 512 bytes
			buf = append(make([]byte, 0, peekBytesMax), buf...)
		}
	}
}

// errNotHTTP is returned for a connection whose first bytes begin no request. It is answered at once: the end of such a line may never come.
var errNotHTTP = fault.Errorf(fault.Invalid, "not a request of HTTP/1")

// notHTTP reports whether the first line has a control character, other than a line's end and tabs: a carriage return within it, or TLS
// on a port without.
func notHTTP(b []byte) bool {
	b = bytes.TrimLeft(b, "\r\n")
	for i, c := range b {
		switch {
		case c == '\n':
			return false
		case c == '\r' && i+1 < len(b) && b[i+1] != '\n', c < ' ' && c != '\r' && c != '\t':
			return true
		}
	}
	return false
}

// endsWithLF reports whether lines of the header end with a bare line feed, as far as it has come: RFC 9112, 2.2 allows it. net/http reads
// it; fasthttp would wait for the end of the header until its time is over.
func endsWithLF(b []byte) bool {
	b = bytes.TrimLeft(b, "\r\n")
	if end := bytes.Index(b, []byte("\r\n\r\n")); end >= 0 {
		b = b[:end]
	}
	for i, c := range b {
		if c == '\n' && (i == 0 || b[i-1] != '\r') {
			return true
		}
	}
	return false
}

// firstLine cuts the request line off; empty lines before it are allowed by RFC 9112, 2.2.
func firstLine(b []byte) (line []byte, whole bool) {
	b = bytes.TrimLeft(b, "\r\n")
	i := bytes.IndexByte(b, '\n')
	if i < 0 {
		return nil, false
	}
	return bytes.TrimSuffix(b[:i], []byte{'\r'}), true
}

// isIntake reports whether a request line asks for a path with a door in HTTP/1. A wrong guess costs a hand-over at most.
func isIntake(line []byte) bool {
	method, rest, _ := strings.Cut(string(line), " ")
	target, version, _ := strings.Cut(rest, " ")
	if !known(method) || version != "HTTP/1.1" && version != "HTTP/1.0" {
		return false
	}
	path, _ := splitTarget(target)
	return doorAt(path) != nil
}

// splitTarget cuts a request target into the path, still percent-encoded, and the query. An absolute URL is allowed.
func splitTarget(target string) (path, rawQuery string) {
	if !strings.HasPrefix(target, "/") {
		if _, rest, ok := strings.Cut(target, "://"); ok {
			target = ""
			if i := strings.IndexAny(rest, "/?"); i >= 0 {
				target = rest[i:]
			}
		}
	}
	path, rawQuery, _ = strings.Cut(target, "?")
	return path, rawQuery
}

// refuseNotHTTP answers a connection that does not speak HTTP, and closes it.
func refuseNotHTTP(c net.Conn) {
	_ = c.SetWriteDeadline(time.Now().Add(time.Second))
	_, _ = io.WriteString(c, "HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Type: text/plain\r\n\r\nThis is not a request of HTTP/1.\n")
	_ = c.Close()
}

// refuseRaw answers a connection beyond the limit, before anything was read.
func refuseRaw(c net.Conn, retryAfter string) {
	const head = "HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Length: 0\r\nRetry-After: "
	_, _ = c.Write([]byte(head + retryAfter + "\r\n\r\n"))
	_ = c.Close()
}
