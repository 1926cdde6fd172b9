package partition

import (
	"math/rand/v2"
	"testing"

	"github.com/spillwaydb/spillway/storage/series"
)

// TestNumberingAgainstMap numbers refs that repeat, in frames of all sizes with the same memory.
func TestNumberingAgainstMap(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	var n numbering
	for _, size := range []int{1, 3, 70, 5000, 2, 100, 100_000, 1, 1, 40} {
		n.reset()
		want := map[series.Ref]int{}
		for range size {
			ref := series.Ref(rng.Uint32N(uint32(size) * 2))
			if rng.IntN(4) == 0 {
				ref = ^ref
			}
			number, ok := want[ref]
			if !ok {
				number = len(want)
				want[ref] = number
			}
			if got := n.number(ref); got != number || n.refs[number] != ref {
				t.Fatalf("size %d: ref %d has number %d, want %d", size, ref, got, number)
			}
		}
	}
	if len(n.slots) > 10_000 {
		t.Errorf("%d slots are kept for frames of a few series", len(n.slots))
	}
}
