package rpc

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spillwaydb/spillway/protocols/fault"
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
			if err := sendFrame(t.Context(), la, &someRoute, rec, nil); err != nil {
				t.Fatal(err)
			}
		}
		if err := sendFrame(t.Context(), la, &someRoute, rec[:100], nil); err != nil {
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

// sendFrame sends one frame once there is room.
func sendFrame(ctx context.Context, l peer.Link, r *peer.Route, rec []byte, done func()) error {
	queued := false
	err := l.Frames(ctx, 1, len(rec), func(queue peer.QueueFrame) error { queued = true; return queue(r, rec, done) })
	if !queued && done != nil {
		done()
	}
	return err
}

// TestFramesThatWaitForRoomAreNotInMemory: a frame of each partition may wait for the room of a link, each was in memory meanwhile, and together they had no bound. They are read when
// there is room, and booked from then on; room that they do not use is free again.
func TestFramesThatWaitForRoomAreNotInMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEar()
		e.keep = true
		_, senders, links, end := hub(t, e, 3)
		defer end()
		for _, l := range links[:2] {
			if err := sendFrame(t.Context(), l, &someRoute, make([]byte, peer.LinkFrameBytesMax), nil); err != nil {
				t.Fatal(err)
			}
		}
		const n, each = 50, 20 << 20
		waits := make(chan error, n)
		read, most := 0, int64(0)
		for range n {
			go func() {
				waits <- links[2].Frames(t.Context(), 2, each, func(queue peer.QueueFrame) error {
					read++
					if err := queue(&someRoute, make([]byte, each/2), nil); err != nil {
						return err
					}
					most = max(most, senders[2].HeldBytes())
					if err := queue(&someRoute, make([]byte, each/2+bodyCost), nil); !fault.Is(err, fault.Throttled) {
						t.Errorf("a frame beyond the room: %v", err)
					}
					return nil
				})
			}()
		}
		synctest.Wait()
		if held := senders[2].HeldBytes(); held != 0 || read > 0 {
			t.Errorf("%d frames are read of %d that wait, and %d bytes are booked", read, n, held)
		}
		for done := 0; done < 2+n; {
			e.mu.Lock()
			bodies := e.bodies
			e.bodies = nil
			e.mu.Unlock()
			if len(bodies) == 0 {
				t.Fatalf("only %d frames came", done)
			}
			for _, b := range bodies {
				b.Done()
			}
			done += len(bodies)
			synctest.Wait()
		}
		for range n {
			if err := <-waits; err != nil {
				t.Error(err)
			}
		}
		if held := senders[2].HeldBytes(); read != n || most < 3*each/2 || held != 0 {
			t.Errorf("%d frames are read, %d bytes were booked, and %d still are", read, most, held)
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

// TestUrgentMessagesThatWaitToBeSentAreBooked: up to 8 MiB of each link were in no account, where the other side reads slowly.
func TestUrgentMessagesThatWaitToBeSentAreBooked(t *testing.T) {
	for _, linkEnds := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			a, b := newEar(), &slowEar{newEar(), make(chan struct{})}
			x, y := linksOf(t, "a", a), linksOf(t, "b", b)
			defer y.Close()
			defer x.Close()
			JoinLinks(x, y)
			la := a.linked(t, 1)
			if err := la.TryFrame(&someRoute, make([]byte, 10), nil); err != nil {
				t.Fatal(err)
			}
			synctest.Wait() // b is busy with it
			sent, before := 0, x.HeldBytes()
			for {
				err := la.Send(&someRoute, &peer.ChainPing{Sent: 1})
				if err != nil {
					if !fault.Is(err, fault.Throttled) {
						t.Error(err)
					}
					break
				}
				if sent++; sent == 100 {
					synctest.Wait()
					if n := x.HeldBytes(); n != before {
						t.Errorf("%d bytes are booked for %d short messages", n-before, sent)
					}
				}
			}
			if n := x.HeldBytes(); n < urgentBytesMax || n > 2*urgentBytesMax {
				t.Errorf("%d bytes are booked where %d wait", n, urgentBytesMax)
			}
			if linkEnds {
				la.Close("the test ends it")
			}
			close(b.may)
			synctest.Wait()
			if n := x.HeldBytes() + y.HeldBytes(); n != 0 {
				t.Errorf("link ends %v: %d bytes stay booked", linkEnds, n)
			}
		})
	}
}

// TestFramesThatWaitToBeSentHaveOneBound: the other sides have room for 80 MiB each, and read nothing. A server held that for each of them; now what all links hold is bounded, each has
// its first bytes, and others are sent in the end.
func TestFramesThatWaitToBeSentHaveOneBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n, each, most = 6, 60, linkFrameWindowMin
		self := peer.LinkHello{Server: "hub", Boot: 1}
		h := newEar()
		from, err := NewLinks(LinkSettings{Self: self, GiveUpAfter: time.Minute, SilenceAfter: time.Minute, RoomBytes: most}, h)
		if err != nil {
			t.Fatal(err)
		}
		from.settings.Self.Capabilities &^= peer.CanAskRoom // the window is there from the beginning
		var ears []*slowEar
		var others []*Links
		for i := range n {
			e := &slowEar{newEar(), make(chan struct{})}
			to := linksGivenUp(t, time.Minute, fmt.Sprint("t", i), e)
			JoinLinks(from, to)
			ears, others = append(ears, e), append(others, to)
		}
		sent := make([]atomic.Int64, n)
		errs := make(chan error, n)
		for i := range n {
			l := h.linked(t, i+1)
			go func() {
				for range each {
					for { // as a partition does
						err := sendFrame(t.Context(), l, &someRoute, make([]byte, 1<<20), nil)
						if err == nil {
							break
						}
						if !fault.Is(err, fault.Throttled) {
							errs <- err
							return
						}
					}
					sent[i].Add(1)
				}
				errs <- nil
			}()
		}
		synctest.Wait()
		if held := from.HeldBytes(); held > most+n*(linkFirstBytes+2<<20) || held < most/3 {
			t.Errorf("%d MiB are held for %d links, of %d", held>>20, n, most>>20)
		}
		for i := range sent {
			if sent[i].Load() == 0 {
				t.Errorf("nothing is queued for server %d", i)
			}
		}
		for _, e := range ears {
			close(e.may)
		}
		for range n {
			if err := <-errs; err != nil {
				t.Error(err)
			}
		}
		synctest.Wait()
		if held := from.HeldBytes(); held != 0 || from.queues.used() != 0 {
			t.Errorf("%d bytes stay booked, and %d of the queues", held, from.queues.used())
		}
		for _, to := range others {
			to.Close()
		}
		from.Close()
	})
}

// pacedEar has done with a frame after a while.
type pacedEar struct {
	*ear
	pace time.Duration
}

func (e *pacedEar) Frame(l peer.Link, r *peer.Route, b peer.Body) {
	<-time.After(e.pace)
	e.ear.Frame(l, r, b)
}

// TestServersThatReadNothingDelayNoOther: three servers read nothing, and long frames for them have all the room for frames that wait to be sent. Frames for another one
// waited for that room although those before them had left: each for five seconds, and was refused.
func TestServersThatReadNothingDelayNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const frozen, senders, each, pace = 3, 16, 10, 10 * time.Millisecond
		h := newEar()
		from, err := NewLinks(LinkSettings{Self: peer.LinkHello{Server: "hub", Boot: 1}, GiveUpAfter: time.Minute, SilenceAfter: time.Minute, RoomBytes: linkFrameWindowMin}, h)
		if err != nil {
			t.Fatal(err)
		}
		from.settings.Self.Capabilities &^= peer.CanAskRoom // as with older builds: the other sides have room for 80 MiB from the beginning
		may := make(chan struct{})
		var others []*Links
		for i := range frozen {
			to := linksGivenUp(t, time.Minute, fmt.Sprint("frozen", i), &slowEar{newEar(), may})
			JoinLinks(from, to)
			others = append(others, to)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var filling sync.WaitGroup
		for i := range frozen {
			l := h.linked(t, i+1)
			if err := sendFrame(ctx, l, &someRoute, make([]byte, 100), nil); err != nil { // its handler does not come back
				t.Fatal(err)
			}
			synctest.Wait()
			filling.Go(func() {
				for ctx.Err() == nil {
					_ = sendFrame(ctx, l, &someRoute, make([]byte, 31<<20), nil)
				}
			})
		}
		synctest.Wait()
		healthy := &pacedEar{newEar(), pace}
		to := linksGivenUp(t, time.Minute, "healthy", healthy)
		JoinLinks(from, to)
		others = append(others, to)
		l := h.linked(t, frozen+1)
		began := time.Now()
		var sending sync.WaitGroup
		for range senders {
			sending.Go(func() {
				for range each {
					if err := sendFrame(t.Context(), l, &someRoute, make([]byte, 200_000), nil); err != nil {
						t.Error(err)
					}
				}
			})
		}
		sending.Wait()
		if took := time.Since(began); took > 2*senders*each*pace {
			t.Errorf("%d frames, which the server needs %v for, took %v", senders*each, senders*each*pace, took)
		}
		cancel()
		filling.Wait()
		close(may)
		time.Sleep(time.Second)
		synctest.Wait()
		if held := from.HeldBytes(); held != 0 || from.queues.used() != 0 || l.(*link).queueRoom.first != 0 {
			t.Errorf("%d bytes stay booked, and %d of the queues", held, from.queues.used())
		}
		for _, to := range others {
			to.Close()
		}
		from.Close()
	})
}

// TestFramesWhoseLinkOrCallerEndsLeaveNoRoomBehind: they wait in all places that there are, for room at the other side, for that here, and in the queue.
func TestFramesWhoseLinkOrCallerEndsLeaveNoRoomBehind(t *testing.T) {
	for _, linkEnds := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			h := newEar()
			from, err := NewLinks(LinkSettings{Self: peer.LinkHello{Server: "hub", Boot: 1}, GiveUpAfter: time.Minute, SilenceAfter: time.Minute, RoomBytes: linkFrameWindowMin}, h)
			if err != nil {
				t.Fatal(err)
			}
			from.settings.Self.Capabilities &^= peer.CanAskRoom
			may := make(chan struct{})
			var others []*Links
			for i := range 3 {
				to := linksGivenUp(t, time.Minute, fmt.Sprint("frozen", i), &slowEar{newEar(), may})
				JoinLinks(from, to)
				others = append(others, to)
			}
			ctx, cancel := context.WithCancel(t.Context())
			var sending sync.WaitGroup
			var links []*link
			var rooms []int64
			for i := range 3 {
				l := h.linked(t, i+1)
				links = append(links, l.(*link))
				rooms = append(rooms, links[i].frameRoom.room)
				for k := range 60 {
					sending.Go(func() {
						err := sendFrame(ctx, l, &someRoute, make([]byte, 100_000*(k+1)), nil)
						if kind := fault.KindOf(err); err != nil && kind != fault.Canceled && kind != fault.Unavailable {
							t.Errorf("link ends %v: %v", linkEnds, err)
						}
					})
				}
			}
			synctest.Wait()
			if from.queues.used() < linkFrameWindowMin/4 || !from.queues.wanted() {
				t.Errorf("no frame waits for room: %d bytes are used", from.queues.used())
			}
			if linkEnds {
				for i := range 3 {
					h.linked(t, i+1).Close("the test ends it")
				}
			}
			cancel()
			sending.Wait()
			close(may)
			synctest.Wait()
			if held := from.HeldBytes(); held != 0 || from.queues.used() != 0 || len(from.queues.room.peers) != 0 {
				t.Errorf("link ends %v: %d bytes stay booked, and %d of the queues by %d servers", linkEnds, held, from.queues.used(), len(from.queues.room.peers))
			}
			for i, l := range links {
				if q := &l.queueRoom; q.first != 0 || len(q.waits) > 0 || len(l.frameRoom.waits) > 0 {
					t.Errorf("link ends %v: %d of the first bytes of link %d are in use, %d frames wait for some, and %d for room at its other side",
						linkEnds, q.first, i, len(q.waits), len(l.frameRoom.waits))
				}
				if linkEnds {
					continue
				}
				at := slices.IndexFunc(others, func(to *Links) bool { return to.settings.Self.Server == l.other.Server })
				other, _ := others[at].Link("hub")
				if owed := other.(*link).frames.owed.Load(); l.frameRoom.out != owed || l.frameRoom.room+owed != rooms[i] {
					t.Errorf("link %d has %d bytes of room at its other side, of %d, and %d are out, of which that one owes %d", i, l.frameRoom.room, rooms[i], l.frameRoom.out, owed)
				}
			}
			for _, to := range others {
				to.Close()
			}
			from.Close()
		})
	}
}
