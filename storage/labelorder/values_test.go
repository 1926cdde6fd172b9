package labelorder

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// TestTheFirstValuesAreKept adds values in no order, some twice, and looks at how many are held meanwhile.
func TestTheFirstValuesAreKept(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var all []string
	for i := range 20_000 {
		all = append(all, fmt.Sprintf("%05d", i))
	}
	for _, limit := range []int{0, 1, 10, 3000, 20_000, 30_000} {
		v := Values{Limit: limit}
		for range 2 {
			for _, i := range r.Perm(len(all)) {
				v.Add(all[i])
				if most := limit + max(limit, valuesSpare); limit > 0 && v.Len() > most {
					t.Fatalf("limit %d: %d values are held", limit, v.Len())
				}
			}
		}
		want := all
		if limit > 0 {
			want = all[:min(limit, len(all))]
		}
		if !slices.Equal(v.Sorted(), want) {
			t.Errorf("limit %d: others than the first", limit)
		}
	}
	if none := (&Values{Limit: 3}).Sorted(); len(none) > 0 {
		t.Errorf("%v of none", none)
	}
}
