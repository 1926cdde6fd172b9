package head

import (
	"testing"

	"github.com/spillwaydb/spillway/protocols/point"
)

// TestReleasedMemoryHoldsNoRows keeps a pointer into a head that is freed, small and large, as a reader would that holds no reference. Under the race
// detector nothing of the rows is left there; without it such a read of a large head ends the process.
func TestReleasedMemoryHoldsNoRows(t *testing.T) {
	if !checked {
		t.Skip("only the pass of the race detector has memory to look at")
	}
	for _, rows := range []int{1, 200, 200_000} {
		h := New(Settings{})
		for i := range rows {
			h.Append(1, []point.DenseID{point.DenseID(i % 500)}, []point.Nanos{point.Nanos(i)}, []float64{1.5})
		}
		if len(h.arena.maps) > 0 || len(h.arena.lent) == 0 {
			t.Fatalf("%d rows: %d mappings, %d pieces on the heap", rows, len(h.arena.maps), len(h.arena.lent))
		}
		lent := h.arena.lent
		h.Free()
		for _, m := range lent {
			for _, v := range m {
				if v != released {
					t.Fatalf("%d rows: %#x is left", rows, v)
				}
			}
		}
	}
}
