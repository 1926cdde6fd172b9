package rows_test

import (
	"math"
	"testing"

	"pgregory.net/rapid"

	"github.com/spillwaydb/spillway/protocols/point"
)

// TestCutKeepsWhatLiesWithin compares Cut and Bounds with a check of every row.
func TestCutKeepsWhatLiesWithin(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		all := anyRows.Draw(t, "rows")
		lo, hi := anyTime.Draw(t, "lo"), anyTime.Draw(t, "hi")
		var want []row
		first, last := int64(math.MaxInt64), int64(math.MinInt64)
		for _, r := range all {
			if r.time >= lo && r.time <= hi {
				want = append(want, r)
				first, last = min(first, r.time), max(last, r.time)
			}
		}
		r := run(7, all...)
		r.Cut(lo, hi)
		if !same(flat(r), want) || r.Len() != len(want) {
			t.Fatalf("[%d, %d]: %v, want %v", lo, hi, flat(r), want)
		}
		l, h, ok := r.Bounds()
		if ok != (len(want) > 0) || ok && (l != first || h != last) {
			t.Fatalf("bounds %d, %d, %v, want %d, %d", l, h, ok, first, last)
		}
		if stamp := point.Stamp(7); len(want) == 0 && r.StampHi != 0 || len(want) > 0 && (r.StampLo != stamp || r.StampHi != stamp) {
			t.Fatalf("%d rows with stamps [%d, %d]", r.Len(), r.StampLo, r.StampHi)
		}
	})
}

func TestResetKeepsMemoryAndLetsHistogramsGo(t *testing.T) {
	r := run(7, row{time: 1, value: 1}, row{time: 2, hist: smallHist})
	hists := r.Hists
	r.Reset()
	if r.Len() != 0 || r.StampLo != 0 || r.StampHi != 0 {
		t.Errorf("after Reset: %+v", r)
	}
	if cap(r.Times) == 0 || cap(r.Values) == 0 || cap(r.Hists) == 0 {
		t.Error("the columns' memory is gone")
	}
	if hists[0].H != nil {
		t.Error("a histogram is kept alive")
	}
}
