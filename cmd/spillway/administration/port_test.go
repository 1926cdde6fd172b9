package administration

import (
	"bufio"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/protocols/handshake"
)

// servePort serves a page on an admin port for so many connections, until the test ends.
func servePort(t *testing.T, most int, page http.HandlerFunc) *cappedListener {
	t.Helper()
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := &cappedListener{Listener: inner, most: most}
	srv, done := PortServer(page), make(chan error, 1)
	go func() { done <- srv.Serve(l) }()
	t.Cleanup(func() { _ = srv.Close(); <-done })
	return l
}

// TestSlowClientsOfTheAdminPortTakeNoMoreThanTheirCap: connections to the admin port were not bounded, nor the time of a body.
func TestSlowClientsOfTheAdminPortTakeNoMoreThanTheirCap(t *testing.T) {
	const most = 8
	l := servePort(t, most, func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		_, _ = w.Write(b)
	})
	dial := func() net.Conn {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		_ = c.SetDeadline(time.Now().Add(time.Minute))
		return c
	}
	var held []net.Conn
	for range most {
		c := dial()
		_, _ = io.WriteString(c, "POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nab") // the rest comes later
		held = append(held, c)
	}
	opened := func(n, silent int) {
		t.Helper()
		for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
			l.mu.Lock()
			open, quiet := l.open, l.silent.Len()
			l.mu.Unlock()
			switch {
			case open == n && quiet == silent:
				return
			case time.Now().After(end):
				t.Fatalf("%d connections are open and %d of them silent, want %d and %d", open, quiet, n, silent)
			}
		}
	}
	opened(most, 0)
	if b, err := io.ReadAll(dial()); err == nil && len(b) > 0 {
		t.Errorf("one more is answered %q", b)
	}
	for _, c := range held {
		_, _ = io.WriteString(c, "cde")
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatal(err)
		}
		if b, _ := io.ReadAll(resp.Body); string(b) != "abcde" {
			t.Errorf("the page read %q", b)
		}
		_ = c.Close()
	}
	opened(0, 0)
}

// TestSilentConnectionsKeepNoAdministratorOut: connections that say nothing, or nothing after a request, take all that the admin port may have. An administrator was not let in until they ended.
func TestSilentConnectionsKeepNoAdministratorOut(t *testing.T) {
	const most = 8
	l := servePort(t, most, func(http.ResponseWriter, *http.Request) {})
	for i := range 5 * most {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if i%2 == 0 {
			_ = c.SetDeadline(time.Now().Add(time.Minute))
			_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
			if resp, err := http.ReadResponse(bufio.NewReader(c), nil); err != nil || resp.StatusCode != http.StatusOK {
				t.Fatalf("connection %d: %v", i, err)
			}
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open > most || l.silent.Len() > most {
		t.Errorf("%d connections are open, %d of them silent", l.open, l.silent.Len())
	}
}

// TestAFloodOfTheAdminPortClosesItsOwnConnections: an address that connects again and again keeps the others' connections open, although they have been silent for longer. The oldest was
// closed, of any address.
func TestAFloodOfTheAdminPortClosesItsOwnConnections(t *testing.T) {
	const most = 8
	l := servePort(t, most, func(http.ResponseWriter, *http.Request) {})
	dial := func(from string) net.Conn {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
		c, err := d.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		_ = c.SetDeadline(time.Now().Add(time.Minute))
		return c
	}
	others := []net.Conn{dial("127.0.0.2"), dial("127.0.0.3")}
	var flood []net.Conn
	for range 3 * most {
		flood = append(flood, dial("127.0.0.1"))
	}
	others = append(others, dial("127.0.0.4"))
	for i, c := range flood[:len(flood)-(most-len(others))] {
		if _, err := c.Read(make([]byte, 1)); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("connection %d of the flood: %v", i+1, err)
		}
	}
	for _, c := range others {
		_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
		if resp, err := http.ReadResponse(bufio.NewReader(c), nil); err != nil || resp.StatusCode != http.StatusOK {
			t.Errorf("%s: %v", c.LocalAddr(), err)
		}
	}
}

// TestAnOrderOfMinutesLeavesTheAdminPortOpen: by TLS a request comes behind the handshake, in one segment as well. The page of the first is under way until the
// second is answered, and there is one turn for handshakes: the second connection has it.
func TestAnOrderOfMinutesLeavesTheAdminPortOpen(t *testing.T) {
	certs := httptest.NewUnstartedServer(nil)
	certs.StartTLS()
	certs.Close()
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	first, second := make(chan struct{}), make(chan struct{})
	srv := PortServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/long" {
			close(first)
			<-second
		}
	}))
	done := make(chan error, 1)
	go func() {
		done <- ServePort(srv, handshake.New(handshake.Deps{Processors: 1}).Listener(inner, "admin", &tls.Config{Certificates: certs.TLS.Certificates}))
	}()
	defer func() { _ = srv.Close(); <-done }()
	get := func(path string) error {
		c := &http.Client{Timeout: time.Minute, Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
		r, err := c.Get("https://" + inner.Addr().String() + path)
		if err == nil {
			err = r.Body.Close()
		}
		return err
	}
	long := make(chan error, 1)
	go func() { long <- get("/long") }()
	select {
	case <-first:
	case err := <-long:
		t.Fatalf("the order that lasts: %v", err)
	}
	if err := get("/short"); err != nil {
		t.Errorf("beside an order that lasts: %v", err)
	}
	close(second)
	if err := <-long; err != nil {
		t.Error(err)
	}
}
