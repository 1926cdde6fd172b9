package rpc

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"
)

// TestALinkLeavesAsMuchRoomAsItHolds: links that hold their room for ever come one after the other, and each queues frames of a size as long
// as it gets any. So many bytes each has, in shared memory and in the lane, and another link's frame of the last size has room beside them.
func TestALinkLeavesAsMuchRoomAsItHolds(t *testing.T) {
	const most, longest = 64, 32
	for _, c := range []struct {
		sizes []int64 // of frames, by link
		holds []int64
		lane  int64
		fits  int64 // the longest frame of one more link that does not wait
	}{
		{[]int64{1}, []int64{16}, 0, 32}, // for which the lane is free
		{[]int64{31}, []int64{31}, 31, 16},
		{[]int64{31, 31}, []int64{31, 0}, 31, 16}, // the second waits for the lane, and no other does
		{[]int64{31, 31, 31}, []int64{31, 0, 0}, 31, 16},
		{[]int64{31, 2, 2}, []int64{31, 16, 8}, 31, 4},
		{[]int64{1, 1, 1}, []int64{16, 8, 4}, 0, 32},
		{[]int64{31, 1, 1, 1}, []int64{31, 16, 8, 4}, 31, 2},
		{[]int64{16, 16}, []int64{16, 16}, 16, 8},
	} {
		r := newSendRoom(most, longest)
		for i, size := range c.sizes {
			for {
				s := r.ask(fmt.Sprint(i), size)
				if r.serve(); !s.has {
					break // it goes on waiting
				}
			}
		}
		for i, want := range c.holds {
			if got := r.peers[fmt.Sprint(i)].held; got != want {
				t.Errorf("%v: link %d holds %d, want %d", c.sizes, i, got, want)
			}
		}
		fits := int64(0)
		for b := int64(1); b <= longest; b++ {
			s := r.ask("another", b)
			if r.serve(); s.has {
				fits = b
			}
			r.leave(s)
		}
		if fits != c.fits || r.lane != c.lane {
			t.Errorf("%v: a frame of %d of another link has room, want %d; the lane has %d, want %d", c.sizes, fits, c.fits, r.lane, c.lane)
		}
	}
}

// TestTheLaneGoesRound: links wait with the longest frame each, again and again. Each has its turn.
func TestTheLaneGoesRound(t *testing.T) {
	r := newSendRoom(64, 32)
	order := ""
	for range 3 {
		for _, server := range []string{"a", "b", "c"} {
			r.ask(server, 32)
		}
	}
	for turn := r.serve(); len(turn) > 0; turn = r.serve() {
		if len(turn) > 1 {
			t.Fatalf("%d of the longest frames have room at once", len(turn))
		}
		order += turn[0].of.name
		r.give(turn[0].of.name, turn[0].from, 32)
	}
	if order != "abcabcabc" {
		t.Errorf("the lane went %s", order)
	}
}

// TestALinkThatWaitsWithManyFramesGetsItsTurn: a was served, and has more frames that wait. b and c have one frame at a time, so that each
// of them is forgotten when it is sent and comes again as one that was never served: the two alternated, and a waited for ever.
func TestALinkThatWaitsWithManyFramesGetsItsTurn(t *testing.T) {
	r := newSendRoom(64, 32)
	for range 4 {
		r.ask("a", 32)
	}
	turn := r.serve()[0]
	r.ask("b", 32)
	r.ask("c", 32)
	order := ""
	for range 6 {
		name := turn.of.name
		order += name
		r.give(name, turn.from, 32)
		got := r.serve()
		if len(got) != 1 {
			t.Fatalf("%d of the longest frames have room after %s", len(got), order)
		}
		turn = got[0]
		if name != "a" {
			r.ask(name, 32)
		}
	}
	if order != "abcabc" {
		t.Errorf("the lane went %s", order)
	}
}

// TestAFrameThatWaitsIsSentInTheEnd, whatever others do meanwhile, once links send their frames; and the bounds hold.
func TestAFrameThatWaitsIsSentInTheEnd(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := newSendRoom(64, 32)
		var held []*seat
		waiting := map[*seat]bool{}
		serve := func() {
			for _, s := range r.serve() {
				delete(waiting, s)
				held = append(held, s)
			}
			if r.lane < 0 || r.lane > r.longest || r.used-r.lane > r.most-r.longest {
				t.Fatalf("%d bytes are held, %d of them in the lane", r.used, r.lane)
			}
		}
		servers := rapid.SampledFrom([]string{"a", "b", "c", "d"})
		ask := func() *seat {
			s := r.ask(servers.Draw(t, "server"), rapid.SampledFrom([]int64{1, 2, 5, 16, 17, 32}).Draw(t, "bytes"))
			waiting[s] = true
			serve()
			return s
		}
		send := func(i int) {
			s := held[i]
			held = append(held[:i], held[i+1:]...)
			r.give(s.of.name, s.from, s.bytes)
			serve()
		}
		for range rapid.IntRange(0, 60).Draw(t, "steps") {
			switch rapid.SampledFrom([]string{"ask", "ask", "send", "give up"}).Draw(t, "step") {
			case "ask":
				ask()
			case "send":
				if len(held) > 0 {
					send(rapid.IntRange(0, len(held)-1).Draw(t, "which"))
				}
			case "give up":
				for s := range waiting {
					delete(waiting, s)
					r.leave(s)
					serve()
					break
				}
			}
		}
		// One frame is looked at. Others come without end, and each is sent after some while.
		late := ask()
		for n := 0; waiting[late]; n++ {
			if n > 1000 {
				t.Fatalf("a frame of %d waits for ever behind %d others: %+v", late.bytes, len(waiting), r.room)
			}
			ask()
			if len(held) > 0 {
				send(0)
			}
		}
		for len(held) > 0 {
			send(0)
		}
		if r.used != 0 || r.lane != 0 || len(waiting) != 0 || len(r.peers) != 0 {
			t.Fatalf("%d bytes stay held, %d in the lane, and %d frames wait", r.used, r.lane, len(waiting))
		}
	})
}
