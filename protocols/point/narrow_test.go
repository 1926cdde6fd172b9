package point

import (
	"math"
	"testing"
)

func TestNarrow(t *testing.T) {
	f := func(lo, hi Nanos, want bool) {
		t.Helper()
		if got := Narrow(lo, hi); got != want {
			t.Errorf("[%d, %d): %t", lo, hi, got)
		}
	}
	f(0, NarrowMax, true)
	f(0, NarrowMax+1, false)
	f(-NarrowMax, 0, true)
	f(math.MinInt64, math.MaxInt64, false)
}
