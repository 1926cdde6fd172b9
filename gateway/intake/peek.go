package intake

import (
	"bytes"
	"net"
	"strings"
)

// peekBytesMax bounds the bytes read to find the server for a connection. A longer first line goes to net/http.
const (
	peekBytes    = 512
	peekBytesMax = 4 << 10
)

// peek reads the connection's first line and says whether fasthttp is to serve it. The error is the connection's.
func (c *conn) peek() (fast bool, err error) {
	buf := make([]byte, 0, peekBytes)
	for {
		n, err := c.Conn.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		line, whole := firstLine(buf)
		switch {
		case whole || len(buf) == peekBytesMax:
			c.head = buf
			return whole && isIntake(line), nil
		case err != nil:
			return false, err
		case len(buf) == cap(buf):
			buf = append(make([]byte, 0, peekBytesMax), buf...)
		}
	}
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

// isIntake reports whether a request line asks for a path of ours in HTTP/1. A wrong guess costs a hand-over at most.
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

// refuseRaw answers a connection that there is no room for, before anything was read from it.
func refuseRaw(c net.Conn, retryAfter string) {
	const head = "HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Length: 0\r\nRetry-After: "
	_, _ = c.Write([]byte(head + retryAfter + "\r\n\r\n"))
	_ = c.Close()
}
