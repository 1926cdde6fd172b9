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
	"testing/synctest"
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

// piped listens for one connection of a pipe.
type piped chan net.Conn

func (p piped) Accept() (net.Conn, error) {
	if c, ok := <-p; ok {
		return c, nil
	}
	return nil, net.ErrClosed
}

func (p piped) Close() error { return nil }

func (p piped) Addr() net.Addr { return &net.TCPAddr{} }

// ask serves one connection without buffers, and returns the body of the answer to a request on it, of which its reader decides how much is sent. stop ends both.
func ask(t *testing.T, srv *http.Server) (answer io.Reader, stop func()) {
	l, done := make(piped, 1), make(chan error, 1)
	ours, theirs := net.Pipe()
	l <- ours
	go func() { done <- srv.Serve(l) }()
	if _, err := io.WriteString(theirs, "GET / HTTP/1.0\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	r, err := http.ReadResponse(bufio.NewReader(theirs), nil)
	if err != nil {
		t.Fatal(err)
	}
	return r.Body, func() {
		_ = theirs.Close()
		close(l)
		_ = srv.Close()
		<-done
	}
}

// TestAClientThatReadsNoAnswerKeepsNoAdministratorOut: it kept its connection, of which there are 256, for as long as it liked.
func TestAClientThatReadsNoAnswerKeepsNoAdministratorOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended := make(chan error, 1)
		srv := PortServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			for range 10 { // an answer that lasts, and is read
				time.Sleep(adminWriteTimeMax)
				if _, err := w.Write(make([]byte, 64<<10)); err != nil {
					t.Errorf("while the client reads: %v", err)
				}
			}
			for {
				if _, err := w.Write(make([]byte, 64<<10)); err != nil {
					ended <- err
					return
				}
			}
		}))
		answer, stop := ask(t, srv)
		if _, err := io.CopyN(io.Discard, answer, 10*64<<10); err != nil {
			t.Fatal(err)
		}
		if err := <-ended; !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Error(err)
		}
		stop()
	})
}

// TestAClientThatReadsSlowlyGetsAllOfALargeAnswer: 30 seconds held for the whole of a write, and an answer of megabytes is one.
func TestAClientThatReadsSlowlyGetsAllOfALargeAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const pieces, piece = 16, 64 << 10
		srv := PortServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if n, err := w.Write(make([]byte, pieces*piece)); err != nil || n != pieces*piece {
				t.Errorf("%d bytes are written: %v", n, err)
			}
		}))
		answer, stop := ask(t, srv)
		for i := range pieces {
			time.Sleep(adminWriteTimeMax / 2)
			if _, err := io.CopyN(io.Discard, answer, piece); err != nil {
				t.Errorf("piece %d: %v", i+1, err)
				break
			}
		}
		stop()
	})
}

// TestSilentConnectionsKeepNoAdministratorOut: connections that say nothing, or nothing after a request, use up all that the admin port may have. An
// administrator was not let in until they ended.
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
