package server

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/series"
)

// TestNumbersAreThoseOfAMap: for series of any numbers, over many turns, also when turns begin anew.
func TestNumbersAreThoseOfAMap(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	var n numbers
	for turn := range 200 {
		if turn == 100 {
			n.turn = math.MaxUint32 - 50
			n.slots = nil
			n.n = 0
		}
		want := map[series.Ref]point.DenseID{}
		among := 1 + random.IntN(1<<random.IntN(31))
		for range random.IntN(3000) {
			ref := series.Ref(random.IntN(among))
			if random.IntN(10) == 0 {
				ref = series.Ref(random.Uint32())
			}
			number, had := want[ref]
			if !had {
				number = point.DenseID(len(want))
				want[ref] = number
			}
			if got, known := n.of(ref); got != number || known != had {
				t.Fatalf("turn %d: series %d has number %d (known: %v), want %d (%v)", turn, ref, got, known, number, had)
			}
		}
		n.reset()
	}
}

// BenchmarkNumbers numbers the series of a frame, by a map and by numbers.
func BenchmarkNumbers(b *testing.B) {
	refs := make([]series.Ref, 667)
	for i, at := range rand.New(rand.NewPCG(1, 1)).Perm(10_000)[:len(refs)] {
		refs[i] = series.Ref(at)
	}
	b.Run("map", func(b *testing.B) {
		m := map[series.Ref]point.DenseID{}
		for b.Loop() {
			for _, r := range refs {
				if _, ok := m[r]; !ok {
					m[r] = point.DenseID(len(m))
				}
			}
			clear(m)
		}
	})
	b.Run("numbers", func(b *testing.B) {
		var n numbers
		for b.Loop() {
			for _, r := range refs {
				n.of(r)
			}
			n.reset()
		}
	})
}
