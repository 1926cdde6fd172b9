package processes

import (
	"net"
	"strconv"
	"sync/atomic"
	"testing"
)

// TestAClaimedPortIsNeverTakenByAnotherChoice: the process for which a port was chosen listens there later, while ports are chosen for others.
func TestAClaimedPortIsNeverTakenByAnotherChoice(t *testing.T) {
	l, err := listenAnywhere()
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	_, text, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	var ended atomic.Bool
	done := make(chan struct{})
	go func() {
		defer close(done)
		for !ended.Load() {
			if l, err := listenIn(port, 1); err == nil {
				t.Errorf("%s was chosen twice", addr)
				_ = l.Close()
				return
			}
		}
	}()
	for range 2000 {
		l, err := net.Listen("tcp", addr)
		if err != nil {
			t.Error(err)
			break
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}
	ended.Store(true)
	<-done
}
