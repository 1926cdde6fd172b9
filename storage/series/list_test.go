package series

import (
	"fmt"
	"slices"
	"testing"

	"github.com/RoaringBitmap/roaring/v2"

	"github.com/spillwaydb/spillway/protocols/point"
)

// TestALimitedListOfValuesTakesTheMemoryOfAFew asks for ten of many values, among few of the series, of which the labels are read, and among most. It was refused where memory was
// short, for values that it had not gathered.
func TestALimitedListOfValuesTakesTheMemoryOfAFew(t *testing.T) {
	x := New()
	var all []point.Labels
	for i := range 20_000 {
		all = append(all, point.MakeLabels("__name__", "m", "n", fmt.Sprintf("%05d", (i*7919)%20_000)))
	}
	refs := x.InternAll(all, nil)
	for _, series := range []int{5000, 19_000} {
		within, want := roaring.New(), []string(nil)
		for i, ref := range refs[:series] {
			within.Add(uint32(ref))
			want = append(want, all[i].Get("n"))
		}
		slices.Sort(want)
		booked, most := int64(0), int64(0)
		got, err := x.LabelValuesChecked("n", within, 10, func(n int64) error {
			booked += n
			most = max(most, booked)
			return nil
		})
		if err != nil || !slices.Equal(got, want[:10]) || most > 2100*seenBytes {
			t.Errorf("among %d: %d bytes were booked for %d values, %v", series, most, len(got), err)
		}
	}
}
