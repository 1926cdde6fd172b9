package rpc

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/spillwaydb/spillway/protocols/peer"
)

// hub is a server to which others are linked.
func hub(t *testing.T, h peer.LinkHandler, others int) (to *Links, senders []*Links, links []peer.Link, end func()) {
	t.Helper()
	to, err := NewLinks(LinkSettings{Self: peer.LinkHello{Server: "hub", Boot: 1}, GiveUpAfter: time.Minute, RoomBytes: linkFrameWindowMin}, h)
	if err != nil {
		t.Fatal(err)
	}
	for i := range others {
		e := newEar()
		s := linksGivenUp(t, time.Minute, fmt.Sprint("s", i), e)
		JoinLinks(s, to)
		senders, links = append(senders, s), append(links, e.linked(t, 1))
	}
	return to, senders, links, func() {
		for _, s := range senders {
			s.Close()
		}
		to.Close()
	}
}

// TestManyLinksHoldNoMoreThanTheirRoom: a server whose disk stood still held 80 MiB of frames for each link, more than the memory of the process. Each link gets some room, a
// server that comes later sends frames of the usual size, and frames that wait are sent when there is room.
func TestManyLinksHoldNoMoreThanTheirRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n, each = 4, 40
		e := newEar()
		e.keep = true
		to, _, links, end := hub(t, e, n+1)
		defer end()
		rec := make([]byte, 1<<20-bodyCost)
		var sent [n]atomic.Int64
		for i, l := range links[:n] {
			go func() {
				for range each {
					if sendFrame(t.Context(), l, &someRoute, rec, nil) != nil {
						return
					}
					sent[i].Add(1)
				}
			}()
		}
		synctest.Wait()
		if held := to.HeldBytes(); held > linkFrameWindowMin+n*linkFirstBytes || held < linkFrameWindowMin/2 {
			t.Errorf("%d MiB are held of %d links, with room for %d", held>>20, n, linkFrameWindowMin>>20)
		}
		for i := range sent {
			if sent[i].Load() < 2 {
				t.Errorf("link %d: %d frames are sent", i, sent[i].Load())
			}
		}
		if err := links[n].TryFrame(&someRoute, rec[:100_000], nil); err != nil {
			t.Errorf("a frame of a server that comes late: %v", err)
		}
		done := 0
		for done < n*each+1 {
			synctest.Wait()
			e.mu.Lock()
			bodies := e.bodies
			e.bodies = nil
			e.mu.Unlock()
			if len(bodies) == 0 {
				t.Fatalf("%d frames of %d have come, and the others wait for ever", done, n*each+1)
			}
			for _, b := range bodies {
				b.Done()
			}
			done += len(bodies)
		}
		if held := to.HeldBytes(); held != 0 {
			t.Errorf("%d bytes stay booked", held)
		}
	})
}

// TestRoomThatALinkDoesNotUseGoesToOthers: one link was given most of the room and is quiet since. Another one's longest frames wait for a second or two.
func TestRoomThatALinkDoesNotUseGoesToOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		to, senders, links, end := hub(t, newEar(), 3)
		defer end()
		for _, l := range links[:2] {
			if err := sendFrame(t.Context(), l, &someRoute, make([]byte, peer.LinkFrameBytesMax), nil); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		if err := sendFrame(ctx, links[2], &someRoute, make([]byte, peer.LinkFrameBytesMax), nil); err != nil {
			t.Error(err)
		}
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if used := usedOf(to.room); used != 0 {
			t.Errorf("%d bytes of room are kept for quiet links", used)
		}
		// A link that ends gives back its room.
		if err := sendFrame(t.Context(), links[0], &someRoute, make([]byte, peer.LinkFrameBytesMax), nil); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		senders[0].Close()
		synctest.Wait()
		if used := usedOf(to.room); used != 0 {
			t.Errorf("%d bytes of room are kept for a link that has ended", used)
		}
	})
}

// TestALinkHasItsFirstBytesAfterALongFrameGaveUp: a frame that is longer than the first bytes waits while others hold the room, and is given up. The
// frames of the usual size behind it had no room until the grant came that nothing needed any more.
func TestALinkHasItsFirstBytesAfterALongFrameGaveUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEar()
		e.keep = true
		_, _, links, end := hub(t, e, 3)
		defer end()
		for _, l := range links[:2] {
			if err := sendFrame(t.Context(), l, &someRoute, make([]byte, peer.LinkFrameBytesMax), nil); err != nil {
				t.Fatal(err)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := sendFrame(ctx, links[2], &someRoute, make([]byte, 20<<20), nil); err == nil {
			t.Fatal("others hold all the room, and a long frame was sent")
		}
		for i := range 10 {
			if err := links[2].TryFrame(&someRoute, make([]byte, 100_000), nil); err != nil {
				t.Errorf("frame %d: %v", i, err)
			}
		}
	})
}

func usedOf(r *linkRoom) int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.room.used
}

// TestShortFramesPassALongOneThatWaits: others hold the room that a long frame waits for, or an earlier one of the same link does and stands still. Short frames of other partitions waited
// behind it, and the acks of their rows.
func TestShortFramesPassALongOneThatWaits(t *testing.T) {
	for _, own := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			e := newEar()
			e.keep = true
			_, _, links, end := hub(t, e, 3)
			defer end()
			first := links[:2]
			if own {
				first = []peer.Link{links[2], links[0]}
			}
			for _, l := range first {
				if err := sendFrame(t.Context(), l, &someRoute, make([]byte, peer.LinkFrameBytesMax), nil); err != nil {
					t.Fatal(err)
				}
			}
			long := make(chan error, 1)
			go func() { long <- sendFrame(t.Context(), links[2], &someRoute, make([]byte, 20<<20), nil) }()
			synctest.Wait()
			for i := range 100 { // more than the first bytes in all
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				if err := sendFrame(ctx, links[2], &someRoute, make([]byte, 100_000), nil); err != nil {
					t.Fatalf("own %v: short frame %d behind a long one: %v", own, i, err)
				}
				cancel()
				synctest.Wait()
				e.mu.Lock()
				last := len(e.bodies) - 1
				short := e.bodies[last]
				e.bodies = e.bodies[:last]
				e.mu.Unlock()
				short.Done()
			}
			e.mu.Lock()
			bodies := e.bodies
			e.mu.Unlock()
			for _, b := range bodies {
				b.Done()
			}
			if err := <-long; err != nil {
				t.Errorf("own %v: the long frame: %v", own, err)
			}
		})
	}
}

// TestALinkWithAnOlderBuildHasItsWindow: one side does not ask for room, so neither does the other, and all of the window is there from the beginning.
func TestALinkWithAnOlderBuildHasItsWindow(t *testing.T) {
	for _, old := range []string{"a", "b"} {
		synctest.Test(t, func(t *testing.T) {
			a, b := newEar(), newEar()
			x, y := linksGivenUp(t, time.Minute, "a", a), linksGivenUp(t, time.Minute, "b", b)
			for _, ls := range []*Links{x, y} {
				if ls.settings.Self.Server == old {
					ls.settings.Self.Capabilities &^= peer.CanAskRoom
				}
			}
			JoinLinks(x, y)
			defer y.Close()
			defer x.Close()
			b.keep = true
			l := a.linked(t, 1)
			for i := range 70 {
				if err := l.TryFrame(&someRoute, make([]byte, 1<<20), nil); err != nil {
					t.Fatalf("frame %d: %v", i, err)
				}
			}
			b.until(t, "all frames", func() bool { return len(b.bodies) == 70 })
		})
	}
}

// TestRoomOfLinksIsSharedWithoutEnd has links send, give up, fall silent and end at random, over wires that are late, and frames be released at random. Links hold no more than there is, and
// all that waits is sent in the end.
func TestRoomOfLinksIsSharedWithoutEnd(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const n = 3
		r := newLinkRoom(1)
		type side struct {
			out        *outRoom
			part       *linkPart
			toward     []func() // messages to the receiver, in their order: frames and asks
			back       []func() // and to the sender
			waiting    []*outWait
			held       []int64 // frames that came
			inUse      atomic.Int64
			owed, kept int64 // released, and not reported
		}
		var all [n]*side
		var gone []*side // that ended with frames that are not released
		fatal := func(ok bool, what string) {
			if !ok {
				t.Fatal(what)
			}
		}
		report := func(s *side) bool {
			owed, kept := s.owed, s.kept
			if owed+kept == 0 {
				return false
			}
			s.owed, s.kept = 0, 0
			s.back = append(s.back, func() {
				fatal(s.out.credit(uint64(owed)) && s.out.kept(uint64(kept)), "more is released than was sent")
			})
			return true
		}
		connect := func(i int) {
			s := &side{}
			all[i] = s
			s.out = &outRoom{asks: true, room: linkFirstBytes, ask: func(give, want uint64) {
				s.toward = append(s.toward, func() {
					if err := s.part.ask(give, want); err != nil {
						t.Fatal(err)
					}
					report(s)
				})
			}}
			s.part = &linkPart{all: r, server: fmt.Sprint(i), window: 80 << 20, inUse: &s.inUse, grant: func(n uint64) {
				s.back = append(s.back, func() { fatal(s.out.granted(n), "room is given that was not asked for") })
			}}
		}
		for i := range all {
			connect(i)
		}
		pop := func(of *[]func()) bool {
			if len(*of) == 0 {
				return false
			}
			f := (*of)[0]
			*of = (*of)[1:]
			f()
			return true
		}
		sendReady := func(s *side) {
			left := s.waiting[:0]
			for _, w := range s.waiting {
				select {
				case <-w.ready:
					s.toward = append(s.toward, func() {
						s.held = append(s.held, w.bytes)
						s.part.came(w.bytes, 1)
						fatal(s.inUse.Add(w.bytes) <= s.part.most(), "a side that keeps to its room is cut off")
					})
				default:
					left = append(left, w)
				}
			}
			s.waiting = left
		}
		release := func(s *side) bool {
			if len(s.held) == 0 {
				return false
			}
			cost := s.held[0]
			s.held = s.held[1:]
			kept := s.part.release(cost)
			if s.owed, s.kept = s.owed+cost-kept, s.kept+kept; s.owed+s.kept >= s.part.step() {
				report(s)
			}
			return true
		}
		check := func() {
			total := int64(0)
			for _, s := range all {
				sendReady(s)
				total += s.inUse.Load()
			}
			for _, s := range gone {
				total += s.inUse.Load()
			}
			if most := r.room.most + n*linkFirstBytes; total > most {
				t.Fatalf("%d bytes are held, %d may be", total, most)
			}
		}
		some := rapid.IntRange(0, n-1)
		sizes := rapid.SampledFrom([]int64{300, 10_000, 500_000, linkFirstBytes, linkFirstBytes + 1, 5 << 20, 20 << 20, linkFrameWindowMin / 2})
		now := time.Now()
		for range rapid.IntRange(1, 150).Draw(t, "steps") {
			i := some.Draw(t, "link")
			s := all[i]
			switch rapid.SampledFrom([]string{"send", "send", "arrive", "arrive", "answer", "answer", "release", "give up", "idle", "end", "release of one that ended"}).Draw(t, "step") {
			case "end":
				s.part.end()
				gone = append(gone, s)
				connect(i)
			case "release of one that ended":
				for _, s := range gone {
					release(s)
				}
			case "send":
				s.waiting = append(s.waiting, s.out.join(sizes.Draw(t, "size")))
			case "arrive":
				pop(&s.toward)
			case "answer":
				pop(&s.back)
			case "release":
				release(s)
			case "give up":
				if k := len(s.waiting); k > 0 {
					if w := s.waiting[k-1]; s.out.leave(w) {
						s.waiting = s.waiting[:k-1]
					}
				}
			case "idle":
				s.out.idle(now.Add(time.Hour))
			}
			check()
		}
		for again := true; again; {
			again = false
			for _, s := range all {
				again = pop(&s.toward) || pop(&s.back) || release(s) || again
				check()
			}
			for _, s := range gone {
				again = release(s) || again
				check()
			}
			if again {
				continue
			}
			for _, s := range all { // an hour later unused room goes back
				again = report(s) || again
				s.out.idle(now.Add(time.Hour))
				again = again || len(s.toward) > 0
			}
		}
		for i, s := range all {
			if len(s.waiting) > 0 {
				t.Fatalf("link %d: %d frames wait for ever, room %+v", i, len(s.waiting), r.room)
			}
		}
		if r.room.used != 0 {
			t.Fatalf("%d bytes of room stay taken", r.room.used)
		}
	})
}
