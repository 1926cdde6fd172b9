package rpc

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spillwaydb/spillway/protocols/peer"
)

// stuckEar is at work for long with its first frame.
type stuckEar struct {
	*ear
	stuck sync.Once
	until chan struct{}
}

func (e *stuckEar) Frame(l peer.Link, r *peer.Route, b peer.Body) {
	e.stuck.Do(func() { <-e.until })
	e.ear.Frame(l, r, b)
}

// TestLinksToAServerThatIsStuckDoNotPileUp: its link is given up after half a minute, and dialled again and again. Each stream that was given
// up meanwhile stayed there, and when the handler went on they became links one after the other, each in place of the one before. The one
// that was not given up seemed to have been silent for as long as it had waited, and ended, too.
func TestLinksToAServerThatIsStuckDoNotPileUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ha, hb := newEar(), &stuckEar{ear: newEar(), until: make(chan struct{})}
		a, b := linksOf(t, "a", ha), linksOf(t, "b", hb)
		JoinLinks(a, b)
		l := ha.linked(t, 1)
		if err := sendFrame(t.Context(), l, &someRoute, make([]byte, 5<<20), nil); err != nil {
			t.Fatal(err)
		}
		// It is whole at b, and of the next one nothing is read.
		var sent sync.WaitGroup
		sent.Go(func() { _ = sendFrame(t.Context(), l, &someRoute, make([]byte, 5<<20), nil) })
		time.Sleep(10 * time.Minute)
		close(hb.until)
		ha.linked(t, 2)
		time.Sleep(time.Minute)
		sent.Wait()
		hb.mu.Lock()
		if n, ended := len(hb.links), len(hb.ended); n != 2 || ended != 1 {
			t.Errorf("there were %d links, and %d ended: %v", n, ended, hb.ended)
		}
		hb.mu.Unlock()
		a.Close()
		b.Close()
		if n := a.HeldBytes() + b.HeldBytes(); n != 0 {
			t.Errorf("%d bytes stay booked", n)
		}
	})
}
