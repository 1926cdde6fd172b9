package rpc

import (
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/spillwaydb/spillway/protocols/peer"
)

// TestFramesOnLinksAreBooked: 84 MiB of each link could be held in no account of the process' memory, and a server has a link to each other one.
func TestFramesOnLinksAreBooked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := newEar(), newEar()
		b.keep = true
		la, lb, end := joined(t, a, b)
		defer end()
		from, to := la.(*link).ls, lb.(*link).ls
		var most atomic.Int64
		to.OnHeldGrowth(func(n int64) { most.Store(max(most.Load(), n)) })
		rec := make([]byte, 1<<20) // in parts
		for range 3 {
			if err := la.Frame(t.Context(), &someRoute, rec, nil); err != nil {
				t.Fatal(err)
			}
		}
		if err := la.Frame(t.Context(), &someRoute, rec[:100], nil); err != nil {
			t.Fatal(err)
		}
		if err := la.Piece(t.Context(), &someRoute, peer.SegmentPiece{}, rec[:100]); err != nil { // released at once
			t.Fatal(err)
		}
		b.until(t, "all frames", func() bool { return len(b.bodies) == 4 && b.pieces == 1 })
		synctest.Wait()
		held := 3*(int64(pooledBytes(1<<20))+bodyCost) + 100 + bodyCost
		if n := to.HeldBytes(); n != held || most.Load() < held || from.HeldBytes() != 0 {
			t.Errorf("the receiver holds %d bytes, %d at most, and the sender %d; want %d and none", n, most.Load(), from.HeldBytes(), held)
		}
		for _, body := range b.bodies {
			body.Done()
		}
		if n := to.HeldBytes(); n != 0 {
			t.Errorf("%d bytes stay booked", n)
		}
	})
}

// TestFramesThatWaitToBeSentAreBooked until the link has sent them, or has ended.
func TestFramesThatWaitToBeSentAreBooked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := newEar(), &slowEar{newEar(), make(chan struct{})}
		x, y := linksOf(t, "a", a), linksOf(t, "b", b)
		defer y.Close()
		defer x.Close()
		JoinLinks(x, y)
		la := a.linked(t, 1)
		rec := make([]byte, 100_000)
		var done atomic.Int64
		for range 10 {
			if err := la.TryFrame(&someRoute, rec, func() { done.Add(1) }); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait() // b is busy with the first frame, and some parts of the next lie in the pipe
		if n := x.HeldBytes(); n < 3*100_000 || n > 10*(100_000+bodyCost) {
			t.Errorf("%d bytes wait", n)
		}
		la.Close("the test ends it")
		close(b.may)
		synctest.Wait()
		if err := la.TryFrame(&someRoute, rec, func() { done.Add(1) }); err == nil {
			t.Error("a link that has ended takes frames")
		}
		if n := x.HeldBytes() + y.HeldBytes(); n != 0 {
			t.Errorf("%d bytes stay booked after the link", n)
		}
	})
}
