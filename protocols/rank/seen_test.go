package rank_test

import (
	"math/rand/v2"
	"testing"

	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/protocols/rank"
)

func TestAStampIsTakenOnce(t *testing.T) {
	var s rank.Seen
	a, b := rank.At(noon)|1, rank.At(noon+1e9)|1
	for i, x := range []struct {
		stamp point.Stamp
		want  bool
	}{{b, true}, {a, true}, {a, false}, {b, false}, {a | 2, true}, {a | 2, false}, {a + rank.Step, true}} {
		if got := s.Take(x.stamp); got != x.want {
			t.Errorf("%d: taken %v", i, got)
		}
	}
}

// TestNoStampIsTakenTwice offers stamps of several gateways, out of order and again and again, and holds every answer against all that
// were ever accepted.
func TestNoStampIsTakenTwice(t *testing.T) {
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 3))
		var s rank.Seen
		taken := map[point.Stamp]bool{}
		refused := 0
		var sent []point.Stamp
		for i := range 5000 {
			stamp := rank.At(noon+int64(i)*1e6) | point.Stamp(rng.IntN(5))
			if n := len(sent); n > 0 && rng.IntN(3) == 0 {
				stamp = sent[max(0, n-1-rng.IntN(1+rng.IntN(1600)))]
			} else if rng.IntN(4) == 0 {
				stamp -= point.Stamp(rng.IntN(20)) * rank.Step // overtaken on its way
			}
			sent = append(sent, stamp)
			if rng.IntN(2000) == 0 {
				s.Rest()
			}
			ok := s.Take(stamp)
			if ok && taken[stamp] {
				t.Fatalf("seed %d: stamp %d of %d was taken twice", seed, stamp, i)
			}
			if !ok && !taken[stamp] {
				refused++
			}
			taken[stamp] = taken[stamp] || ok
		}
		if refused > 100 {
			t.Errorf("seed %d: %d inserts that came once were sent back", seed, refused)
		}
	}
}

// TestAnInsertThatWasGivenUpIsLate: half a second after a newer one. One whose gateway still waits is given a stamp above that.
func TestAnInsertThatWasGivenUpIsLate(t *testing.T) {
	var s rank.Seen
	late := func(ms int64, now int64) bool {
		_, late := s.Late(rank.At(noon+ms*1e6)|3, noon+now*1e6)
		return late
	}
	if late(-1e9, 0) {
		t.Error("a stamp is late where none was taken")
	}
	s.Take(rank.At(noon+2e9) | 1)
	for ms, want := range map[int64]bool{2000: false, 1501: false, 1499: true, -5000: true, 3000: false} {
		if got := late(ms, 2000); got != want {
			t.Errorf("a stamp of %d ms is late: %v, want %v", ms, got, want)
		}
	}
	s.Rest()
	if newest, late := s.Late(rank.At(noon), noon+2e9); !late || newest != rank.At(noon+2e9)|1 {
		t.Errorf("after a rest: late %v, above %d", late, newest)
	}
	if s.Take(rank.At(noon+1000e6) | 2); !late(1400, 2000) {
		t.Error("the newest stamp went back")
	}
	if late(-3600_000, -3600_000) { // the servers' clocks were set back
		t.Error("a stamp of the servers' time is late")
	}
	if s = (rank.Seen{}); late(0, 2000) {
		t.Error("a stamp is late where none was taken")
	}
	if s.Observe(rank.At(noon + 2e9)); !late(0, 2000) { // rows that were staged meanwhile
		t.Error("a stamp of 2 s before is not late")
	}
	s = rank.Seen{}
	if s.Take(rank.At(1000)); late(-1e15, -1e15) {
		t.Error("a stamp at the beginning of time is late")
	}
}

func BenchmarkSeen(b *testing.B) {
	var s rank.Seen
	for i := range b.N {
		s.Take(rank.At(noon+int64(i)*1e6) | 7)
	}
}

func BenchmarkSeenOvertaken(b *testing.B) {
	var s rank.Seen
	for i := range b.N {
		s.Take(rank.At(noon+int64(i^1)*1e6) | 7)
	}
}
