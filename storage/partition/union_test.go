package partition

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// booking counts what a union books.
type booking struct{ now, peak int64 }

func (b *booking) grow(n int64) error {
	b.now += n
	b.peak = max(b.peak, b.now)
	return nil
}

// TestAFewValuesOfThousandsOfSegmentsNeedTheMemoryOfAFew: a look-up with a limit booked the list of each segment outside the index, and kept all of them, so that it was refused for
// memory where a table had many cold partitions.
func TestAFewValuesOfThousandsOfSegmentsNeedTheMemoryOfAFew(t *testing.T) {
	const segments, values, limit = 5000, 100, 10
	u, b := union{compare: strings.Compare, limit: limit}, booking{}
	for i := range segments {
		list := make([]string, values)
		for k := range list {
			list[k] = fmt.Sprintf("v%06d", (segments-i)*values+k)
		}
		if err := u.add(list, b.grow); err != nil {
			t.Fatal(err)
		}
	}
	got, err := u.sorted(b.grow)
	if err != nil || len(got) != limit || got[0] != fmt.Sprintf("v%06d", values) {
		t.Errorf("%v, %v", got, err)
	}
	if each := bytesOf(slices.Repeat([]string{"v000000"}, values)); b.peak > 3*each || b.now != bytesOf(got) {
		t.Errorf("at most %d bytes were booked for lists of %d each; %d are left for the answer of %d", b.peak, each, b.now, bytesOf(got))
	}
}

// TestAValueOfAListKeepsNotAllOfIt: where each of many segments had one value that no other had, a look-up without a limit kept the values of all lists, which are parts of one string
// each, and had given back their bytes.
func TestAValueOfAListKeepsNotAllOfIt(t *testing.T) {
	const segments, values, width = 200, 500, 56
	u, b := union{compare: strings.Compare}, booking{}
	heap := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := heap()
	for s := range segments {
		var text strings.Builder
		for i := range values {
			fmt.Fprintf(&text, "value-%050d", i)
		}
		fmt.Fprintf(&text, "values%050d", s)
		list := make([]string, 0, values+1)
		for rest := text.String(); rest != ""; rest = rest[width:] {
			list = append(list, rest[:width])
		}
		if err := u.add(list, b.grow); err != nil {
			t.Fatal(err)
		}
	}
	got, err := u.sorted(b.grow)
	if used := heap() - before; err != nil || len(got) != values+segments || used > 2*b.now {
		t.Errorf("%d values keep %d bytes, and %d are booked: %v", len(got), used, b.now, err)
	}
	runtime.KeepAlive(got)
}

// TestAUnionBooksWhatItHas, of random lists of which some come again.
func TestAUnionBooksWhatItHas(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 7))
		u, b := union{compare: strings.Compare, limit: rng.IntN(3) * rng.IntN(30)}, booking{}
		all, before := map[string]bool{}, [][]string{}
		for range rng.IntN(60) {
			list := map[string]bool{}
			for range rng.IntN(40) {
				list[fmt.Sprint(rng.IntN(300))] = true
			}
			next := slices.Sorted(maps.Keys(list))
			if len(before) > 0 && rng.IntN(3) == 0 {
				next = before[rng.IntN(len(before))]
			}
			before = append(before, next)
			for _, v := range next {
				all[v] = true
			}
			if err := u.add(next, b.grow); err != nil {
				t.Fatal(err)
			}
		}
		want := slices.Sorted(maps.Keys(all))
		if u.limit > 0 && len(want) > u.limit {
			want = want[:u.limit]
		}
		got, err := u.sorted(b.grow)
		if err != nil || !slices.Equal(got, want) {
			t.Fatalf("seed %d: %v, want the first %d of %v: %v", seed, got, u.limit, want, err)
		}
		if b.now != bytesOf(got) {
			t.Errorf("seed %d: %d bytes stay booked for %d values", seed, b.now, len(got))
		}
		for i, list := range before {
			if !slices.IsSorted(list) {
				t.Fatalf("seed %d: list %d, which others share, was changed", seed, i)
			}
		}
	}
}
