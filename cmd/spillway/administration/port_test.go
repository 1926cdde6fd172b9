package administration

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"testing"
	"time"
)

// TestSlowClientsOfTheAdminPortTakeNoMoreThanTheirCap: connections to the admin port were not bounded, nor the time of a body.
func TestSlowClientsOfTheAdminPortTakeNoMoreThanTheirCap(t *testing.T) {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	const most = 8
	l := &cappedListener{Listener: inner, most: most}
	srv := PortServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		_, _ = w.Write(b)
	}))
	done := make(chan error, 1)
	go func() { done <- srv.Serve(l) }()
	defer func() { _ = srv.Close(); <-done }()
	dial := func() net.Conn {
		c, err := net.Dial("tcp", inner.Addr().String())
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
	opened := func(n int64) {
		t.Helper()
		for end := time.Now().Add(30 * time.Second); l.open.Load() != n; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%d connections are open, want %d", l.open.Load(), n)
			}
		}
	}
	opened(most)
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
	opened(0)
}
