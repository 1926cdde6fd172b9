package memory_test

import (
	"testing"

	"github.com/spillwaydb/spillway/protocols/memory"
)

func TestTouchLeavesZeros(t *testing.T) {
	for _, n := range []int{0, 1, 511, 512, 513, 5000} {
		s := memory.Touch(make([]*uint64, n))
		if len(s) != n {
			t.Fatalf("%d of %d", len(s), n)
		}
		for i, p := range s {
			if p != nil {
				t.Fatalf("%d of %d is %p", i, n, p)
			}
		}
	}
}
