package runner

import (
	"context"
	"testing"

	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/protocols/peer"
)

// slowLink sends nothing until the test looks.
type slowLink struct {
	peer.Link
	frames [][]byte
	done   []func()
}

func (l *slowLink) Peer() peer.LinkHello { return peer.LinkHello{Server: "b"} }

func (l *slowLink) Frames(_ context.Context, _, _ int, send func(peer.QueueFrame) error) error {
	return send(func(_ *peer.Route, rec []byte, done func()) error {
		l.frames, l.done = append(l.frames, rec), append(l.done, done)
		return nil
	})
}

// Frames of a log are read into the same memory one after the other: a frame that waits on a link must not become the next one.
func TestFramesThatWaitOnALinkStayWhatTheyWere(t *testing.T) {
	l := &slowLink{}
	find := func(string) (peer.Link, bool) { return l, true }
	w := &LinkWire{}
	w.link.Store(&find)
	to := lease.Member{Server: "b", Store: StoreOf([16]byte{})}
	for round := range 3 {
		l.frames, l.done = nil, nil
		rec := make([]byte, 5)
		err := w.Frames(t.Context(), lease.Partition{Table: "t"}, 1, lease.Member{}, to, 10, 50, func(frame func([]byte) error) error {
			for i := range 10 {
				copy(rec, []byte{'f', 'r', 'a', 'm', byte('0' + i)})
				if err := frame(rec); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		for i, f := range l.frames {
			if want := "fram" + string(rune('0'+i)); string(f) != want {
				t.Errorf("round %d: frame %d is sent as %q, want %q", round, i, f, want)
			}
			l.done[i]() // and its memory is used again in the next round
		}
	}
}
