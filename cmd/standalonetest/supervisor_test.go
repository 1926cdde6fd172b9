package standalonetest

import (
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/cmd/internal/processtest"
)

// TestSystemdLearnsThatAProcessServes: with the socket of a unit of Type=notify, the process reports what it does while it starts, and that
// it is ready only once it answers.
func TestSystemdLearnsThatAProcessServes(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "notify")
	l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	p := processtest.New(t)
	p.Env = append(p.Env, "NOTIFY_SOCKET="+socket)
	p.Start()
	defer p.Stop()
	if err := l.SetReadDeadline(time.Now().Add(time.Minute)); err != nil { // only so that a failing test ends: the datagram was sent before
		t.Fatal(err)
	}
	var said []string
	buf := make([]byte, 4096)
	for len(said) == 0 || !strings.HasPrefix(said[len(said)-1], "READY=1\n") {
		n, err := l.Read(buf)
		if err != nil {
			t.Fatalf("it reported %q, and then: %v", said, err)
		}
		said = append(said, string(buf[:n]))
	}
	if len(said) != 2 || !strings.HasPrefix(said[0], "STATUS=Starting: ") || !strings.Contains(said[1], "\nSTATUS=") {
		t.Errorf("it reported %q", said)
	}
}
