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

// TestNoStampIsTakenTwice takes stamps of several gateways, out of order and again and again, and holds every answer against all that
// were ever taken.
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
