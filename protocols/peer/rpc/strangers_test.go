package rpc

import (
	"errors"
	"net"
	"os"
	"testing"
	"time"
)

// TestStrangersLeaveFilesForRows: a program without a certificate opens connection after connection and says nothing. Each had a file descriptor for ten seconds, until the server had none for a segment. The
// oldest ones are closed, none beyond the bound is kept, and a peer with a certificate is served meanwhile.
func TestStrangersLeaveFilesForRows(t *testing.T) {
	const more = 40
	a := newTestAuthority(t)
	addr, _ := serve(t, newMemory(), Settings{TLS: a.files(t, "127.0.0.1")})
	var conns []net.Conn
	for range strangersMax + more {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		conns = append(conns, c)
	}
	p := dial(t, addr, DialSettings{TLS: a.files(t, "gw")})
	st, err := p.OpenStream(t.Context(), "t")
	if err != nil {
		t.Fatalf("a peer beside them: %v", err)
	}
	defer st.Close()
	// The server closes a handshake that lasts ten seconds: earlier ones are closed for the bound.
	closed, ended := 0, make(chan bool, len(conns))
	for _, c := range conns {
		go func() {
			_ = c.SetReadDeadline(time.Now().Add(8 * time.Second))
			_, err := c.Read(make([]byte, 1))
			ended <- !errors.Is(err, os.ErrDeadlineExceeded)
		}()
	}
	for range more {
		if <-ended {
			closed++
		}
	}
	if closed != more {
		t.Errorf("%d connections are closed, %d are more than there may be", closed, more)
	}
}
