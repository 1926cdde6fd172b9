package series

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/spillwaydb/spillway/protocols/point"
)

// oddLabels are label sets that differ late, early, by length alone, by zero bytes and by the size of their lengths.
func oddLabels(t *rapid.T) point.Labels {
	text := rapid.OneOf(
		rapid.SampledFrom([]string{"a", "a\x00", "a\x00\x00", "abcdefg", "abcdefg\x00", "abcdefgh", "abcdefgabcdefg", strings.Repeat("x", 127),
			strings.Repeat("x", 128), strings.Repeat("x", 300), strings.Repeat("x", 299) + "y", "\xc3\xbf"}),
		rapid.StringMatching(`[ab]{1,20}`))
	var pairs []string
	for range rapid.IntRange(0, 4).Draw(t, "labels") {
		pairs = append(pairs, text.Draw(t, "name"), text.Draw(t, "value"))
	}
	seen := map[string]bool{}
	var once []string
	for i := 0; i < len(pairs); i += 2 {
		if !seen[pairs[i]] {
			once = append(once, pairs[i], pairs[i+1])
		}
		seen[pairs[i]] = true
	}
	return point.MakeLabels(append(once, "__name__", text.Draw(t, "metric"))...)
}

func TestSortByLabelsIsTheOrderOfLabels(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		all := rapid.SliceOfN(rapid.Custom(oddLabels), 0, 60).Draw(t, "all")
		xs := make([]uint32, len(all))
		for i := range xs {
			xs[i] = uint32(i)
		}
		SortByLabels(xs, func(x uint32) point.Labels { return all[x] })
		seen := map[uint32]bool{}
		for i, x := range xs {
			if i > 0 && all[xs[i-1]].Compare(all[x]) > 0 {
				t.Fatalf("%v comes after %v", all[x], all[xs[i-1]])
			}
			seen[x] = true
		}
		if len(seen) != len(all) {
			t.Fatalf("%d of %d are left", len(seen), len(all))
		}
	})
}

func TestMergeIsInOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		list := func(name string) []int {
			l := rapid.SliceOfN(rapid.IntRange(0, 50), 0, 40).Draw(t, name)
			slices.Sort(l)
			return l
		}
		a, b := list("a"), list("b")
		want := slices.Sorted(slices.Values(append(slices.Clone(a), b...)))
		if got := Merge(a, b, func(a, b int) int { return a - b }); !slices.Equal(got, want) {
			t.Fatalf("%v and %v give %v", a, b, got)
		}
	})
}

// TestSortRefsWhileSeriesComeAndGo sorts subsets while refs are freed and given to other series.
func TestSortRefsWhileSeriesComeAndGo(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	x := New()
	refs := make([]Ref, 30_000)
	fresh := func() Ref {
		return x.Intern(point.MakeLabels("__name__", fmt.Sprint("m", rng.IntN(20)), "host", fmt.Sprint(rng.Uint32())))
	}
	for i := range refs {
		refs[i] = fresh()
	}
	for round := range 12 {
		for range 5000 {
			i := rng.IntN(len(refs))
			x.Release(refs[i])
			refs[i] = fresh()
		}
		x.Sweep()
		ids := make([]uint32, 0, len(refs))
		for _, i := range rng.Perm(len(refs))[:1+rng.IntN(len(refs)-1)] {
			ids = append(ids, uint32(i))
		}
		want := slices.Clone(ids)
		label := func(i uint32) point.Labels { return x.Labels(refs[i]) }
		slices.SortFunc(want, func(a, b uint32) int { return label(a).Compare(label(b)) })
		SortRefs(x, ids, func(i uint32) Ref { return refs[i] })
		if !slices.EqualFunc(ids, want, func(a, b uint32) bool { return label(a) == label(b) }) {
			t.Fatalf("round %d: %d series are not in label order", round, len(ids))
		}
		if n := len(x.ranks.sorted); n > 3*len(refs) {
			t.Fatalf("%d places of %d series", n, len(refs))
		}
	}
	if len(x.ranks.sorted) == 0 {
		t.Fatal("no place was learnt")
	}
}
