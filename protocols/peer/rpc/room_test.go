package rpc

import (
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"
)

// TestAPeerWithManyMessagesLeavesRoomForThoseOfOthers: a gateway whose thousand streams each sent a long insert, slowly, had all the room, and a copy of a partition, or another gateway, waited behind them all.
func TestAPeerWithManyMessagesLeavesRoomForThoseOfOthers(t *testing.T) {
	r := room{most: 66, spare: 33}
	var first []*seat
	for range 1000 {
		first = append(first, r.ask("greedy", 33))
	}
	if got := r.serve(); len(got) != 1 {
		t.Fatalf("a peer alone has %d of the longest messages, want one beside the spare room", len(got))
	}
	honest := r.ask("honest", 33)
	if got := r.serve(); len(got) != 1 || got[0] != honest {
		t.Fatalf("a peer that holds nothing waits behind one that holds half: %v", got)
	}
	again := r.ask("honest", 33)
	third := r.ask("third", 20)
	r.leave(first[0])
	if got := r.serve(); len(got) != 1 || got[0] != third {
		t.Errorf("of two peers that hold nothing, the one that was not served yet is not the next: %v", got)
	}
	r.leave(honest)
	r.leave(third)
	if got := r.serve(); len(got) != 2 || !again.has {
		t.Errorf("the long messages of two peers are not both there: %v", got)
	}
}

// TestAMessageOfAPeerThatSendsManyGetsItsTurn: beside a peer that is slow there was room for one long message. b and c send one at a time, so
// that each is forgotten when that is done and comes again as one that was never served: the two alternated, and the messages of a waited
// until they were refused.
func TestAMessageOfAPeerThatSendsManyGetsItsTurn(t *testing.T) {
	r := room{most: 66, spare: 33}
	r.ask("slow", 33)
	r.serve()
	for range 4 {
		r.ask("a", 33)
	}
	turn := r.serve()[0]
	r.ask("b", 33)
	r.ask("c", 33)
	order := ""
	for range 6 {
		name := turn.of.name
		order += name
		r.leave(turn)
		if name != "a" {
			r.ask(name, 33)
		}
		got := r.serve()
		if len(got) != 1 {
			t.Fatalf("%d of the longest messages have room after %s", len(got), order)
		}
		turn = got[0]
	}
	if order != "abcabc" {
		t.Errorf("the turn went %s", order)
	}
}

// TestEachPeerWaitsForOneMessageOfEachOther at most, while it holds nothing itself, whatever comes and goes.
func TestEachPeerWaitsForOneMessageOfEachOther(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	r := room{most: 20, spare: 10}
	names := []string{"a", "b", "c", "d"}
	var all []*seat
	waits := func(name string) bool {
		p := r.peers[name]
		return p != nil && p.held == 0 && len(p.waits) > 0
	}
	passed, waited := map[[2]string]int{}, 0 // how often one that waits with nothing was passed by another
	for range 100_000 {
		if len(all) == 0 || len(all) < 8 && rng.IntN(2) == 0 {
			all = append(all, r.ask(names[rng.IntN(len(names))], 5+rng.Int64N(6)))
		} else {
			i := rng.IntN(len(all))
			for k := range all { // mostly one that holds something: those that wait go on to
				if j := (i + k) % len(all); all[j].has && rng.IntN(8) > 0 {
					i = j
					break
				}
			}
			r.leave(all[i])
			all = append(all[:i], all[i+1:]...)
		}
		served := map[string]bool{}
		for _, s := range r.serve() {
			served[s.of.name] = true
			for _, name := range names {
				if passed[[2]string{name, s.of.name}]++; waits(name) && passed[[2]string{name, s.of.name}] > 1 {
					t.Fatalf("%s waits with nothing, and %s passes it for the second time", name, s.of.name)
				}
			}
		}
		for _, name := range names {
			if waits(name) {
				waited++
			}
			if served[name] || !waits(name) {
				for _, other := range names {
					delete(passed, [2]string{name, other})
				}
			}
		}
	}
	if waited < 10_000 {
		t.Errorf("peers with nothing waited in %d steps: the test shows nothing", waited)
	}
}

// TestRoomIsNeverLost: whatever comes and goes, a room is used as far as it can be, and empty at the end.
func TestRoomIsNeverLost(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := room{most: 20, spare: 10}
		var all []*seat
		check := func() {
			used := int64(0)
			for _, s := range all {
				if s.has {
					used += s.bytes
				}
			}
			if used != r.used || used > r.most {
				t.Fatalf("%d bytes are used, counted are %d of %d", used, r.used, r.most)
			}
			if used == 0 && r.wanted() {
				t.Fatal("a message waits for an empty room")
			}
			for _, p := range r.peers {
				if p.held == 0 && len(p.waits) > 0 && r.used+10 <= r.most {
					t.Fatalf("%q holds nothing and waits, with %d bytes used", p.name, r.used)
				}
			}
		}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			if len(all) == 0 || rapid.Bool().Draw(t, "comes") {
				all = append(all, r.ask(rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "peer"), rapid.Int64Range(1, 10).Draw(t, "bytes")))
			} else {
				i := rapid.IntRange(0, len(all)-1).Draw(t, "leaves")
				r.leave(all[i])
				all = append(all[:i], all[i+1:]...)
			}
			r.serve()
			check()
		}
		for _, s := range all {
			r.leave(s)
		}
		if r.used != 0 || len(r.peers) != 0 {
			t.Fatalf("%d bytes of %d peers stay", r.used, len(r.peers))
		}
	})
}
