package deliver

import (
	"context"
	"testing"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
)

// broken is a server whose streams fail when they are closed.
type broken struct {
	peer.Storage
	opening func()
	closed  *int
}

func (b *broken) OpenStream(context.Context, string) (peer.Stream, error) {
	if f := b.opening; f != nil {
		b.opening = nil
		f()
	}
	return brokenStream{closed: b.closed}, nil
}

type brokenStream struct {
	peer.Stream
	closed *int
}

func (s brokenStream) Close() error {
	*s.closed++
	return fault.Errorf(fault.Unavailable, "the connection is cut")
}

// TestRowsAreForwardedThoughAnotherStreamCannotBeClosed: two frames for a server opened a stream at once. The one that was given up failed to close, which
// counted as a failure of the other: its frame had to come again, and its stream stayed open for as long as the process ran.
func TestRowsAreForwardedThoughAnotherStreamCannotBeClosed(t *testing.T) {
	closed, sent := 0, 0
	ss := &streams{}
	ss.mu.open = map[to]*Stream{}
	at, server := to{"s1", "t"}, &broken{closed: &closed}
	send := func() error { return ss.with(t.Context(), at, server, func(*Stream) error { sent++; return nil }) }
	server.opening = func() {
		if err := send(); err != nil {
			t.Errorf("the first: %v", err)
		}
	}
	if err := send(); err != nil {
		t.Errorf("the second: %v", err)
	}
	_ = ss.close()
	if sent != 2 || closed != 2 {
		t.Errorf("%d frames are sent, %d of 2 streams closed", sent, closed)
	}
}
