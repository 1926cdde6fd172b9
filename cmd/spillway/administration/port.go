package administration

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// Bounds of the admin port. Clients there are people and scrapers; a slow one must not use what the process needs for others.
const (
	adminHeaderTimeMax = 10 * time.Second
	adminBodyTimeMax   = 10 * time.Second // orders are read whole before they are carried out
	adminIdleTimeMax   = 2 * time.Minute
	adminHeaderMax     = 64 << 10
	adminBodyMax       = 1 << 20
	adminConnsMax      = 256 // more are closed at once
)

// PortServer serves pages on the admin port.
func PortServer(pages http.Handler) *http.Server {
	return &http.Server{Handler: wholeBodies(pages), ReadHeaderTimeout: adminHeaderTimeMax, IdleTimeout: adminIdleTimeMax, MaxHeaderBytes: adminHeaderMax}
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

// cappedListener closes connections beyond a number that are open at once.
type cappedListener struct {
	net.Listener
	most int64
	open atomic.Int64
}

// Accept waits for the next connection that there is room for.
func (l *cappedListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if l.open.Add(1) <= l.most {
			return &cappedConn{Conn: c, of: l}, nil
		}
		l.open.Add(-1)
		_ = c.Close()
	}
}

type cappedConn struct {
	net.Conn
	of   *cappedListener
	once sync.Once
}

// Close closes the connection, which makes room for another.
func (c *cappedConn) Close() error {
	c.once.Do(func() { c.of.open.Add(-1) })
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
