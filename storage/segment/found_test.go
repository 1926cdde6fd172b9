package segment

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/rows"
)

// foundModel is what a selector must find among definitions: ids in label order.
func foundModel(defs []definition, of *Selector) (ids []point.DenseID) {
	var some []definition
	for _, d := range defs {
		keep := true
		for _, m := range of.ms {
			keep = keep && m.Matches(d.labels.Get(m.Name))
		}
		if keep {
			some = append(some, d)
		}
	}
	slices.SortFunc(some, func(a, b definition) int { return a.labels.Compare(b.labels) })
	for _, d := range some {
		ids = append(ids, d.id)
	}
	return ids
}

// TestSelectorsFindWhatTheDefinitionsHave asks segments in which the same series have other numbers, each twice: the same series have the same list of labels,
// and their places lead to their rows. A small cache keeps few answers, and gives none of many series.
func TestSelectorsFindWhatTheDefinitionsHave(t *testing.T) {
	for _, cacheBytes := range []int64{0, 256 << 10} {
		cache, fs, rng := openCache(t, cacheBytes), vfs.NewMem(), rand.New(rand.NewPCG(5, 6))
		var rs []*Reader
		var ss []*source
		for i := range 3 {
			s := fleet(rand.New(rand.NewPCG(7, 7)), 40, 20, 0)
			rng.Shuffle(len(s.defs), func(a, b int) { s.defs[a].labels, s.defs[b].labels = s.defs[b].labels, s.defs[a].labels })
			path := fmt.Sprint("s", i)
			rs, ss = append(rs, openSegment(t, fs, path, s.write(t, fs, path), cache)), append(ss, s)
		}
		found, refused := 0, 0
		for range 60 {
			of := NewSelector(randomMatchers(rng))
			var first *Found
			for i, r := range slices.Concat(rs, rs) {
				s := ss[i%len(ss)]
				got, err := r.Find(of)
				check(t, err)
				want := foundModel(s.defs, of)
				if got == nil {
					if refused++; cacheBytes == 0 || len(want) < 64 {
						t.Fatalf("%d series of %v are not given", len(want), of.key)
					}
					continue
				}
				if found++; !slices.Equal(got.IDs, want) {
					t.Fatalf("segment %d, %v: %d series, want %d", i, of.key, len(got.IDs), len(want))
				}
				if first == nil {
					first = got
				}
				if cacheBytes == 0 && !got.Same(first) {
					t.Fatalf("%v: the labels of segment %d are listed once more", of.key, i)
				}
				readFound(t, r, s, got)
			}
		}
		if found == 0 || refused == 0 && cacheBytes > 0 {
			t.Errorf("%d found, %d refused", found, refused)
		}
		for _, r := range rs {
			check(t, r.Close())
		}
		cache.forget(cache.common) // is no segment's
		if n := len(cache.mu.answers); n > 0 || cache.mu.bytes != 0 {
			t.Errorf("%d lists of closed segments are kept, %d bytes", n, cache.mu.bytes)
		}
	}
}

// readFound reads the rows of found series by their places.
func readFound(t *testing.T, r *Reader, s *source, f *Found) {
	t.Helper()
	m := r.cache.Memory()
	defer m.Close()
	seen := 0
	check(t, r.ReadInto(m, f.IDs, f.Places, math.MinInt64, math.MaxInt64, 0, func(i int, run rows.Run) error {
		if seen++; len(run.Times) != 1 || f.Labels(i) != s.defs[f.IDs[i]].labels {
			t.Errorf("series %d: %d rows, labels %v", f.IDs[i], len(run.Times), f.Labels(i))
		}
		return nil
	}))
	if seen != len(f.IDs) {
		t.Errorf("rows of %d of %d series", seen, len(f.IDs))
	}
}
