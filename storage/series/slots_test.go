package series

import (
	"math/rand/v2"
	"testing"
)

// TestSlotsAgainstMap has refs come and go under few hashes, and looks after each step whether every one is found by
// walking from its home.
func TestSlotsAgainstMap(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	var s slots
	in := map[Ref]uint64{}
	for step := range 20_000 {
		ref := Ref(rng.Uint32N(200))
		if h, ok := in[ref]; ok {
			s.remove(h, ref)
			delete(in, ref)
		} else {
			h := rng.Uint64N(64) | rng.Uint64N(4)<<40
			s.put(h, ref)
			in[ref] = h
		}
		if s.used != len(in) {
			t.Fatalf("step %d: %d slots in use for %d refs", step, s.used, len(in))
		}
		if step%64 != 0 {
			continue
		}
		for ref, h := range in {
			i := h & s.mask()
			for s.list[i] != slotOf(h, ref) {
				if s.list[i] == 0 {
					t.Fatalf("step %d: ref %d with home %d is not found", step, ref, h&s.mask())
				}
				i = (i + 1) & s.mask()
			}
		}
	}
}
