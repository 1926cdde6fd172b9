package segment

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/RoaringBitmap/roaring/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/prometheus/model/labels"

	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/rows"
)

// everySeries reads the labels of all series of a segment.
func everySeries(t *testing.T, r *Reader) (all []point.Labels) {
	t.Helper()
	ids, err := r.all()
	if err != nil {
		t.Fatal(err)
	}
	if err := r.EachLabels(ids, func(_ point.DenseID, l point.Labels) error { all = append(all, l); return nil }); err != nil {
		t.Fatal(err)
	}
	return all
}

// TestSegmentsWithTheSameSeriesShareTheirLabels: eight segments of one set of series, as those of narrow partitions, in another order each. What the Cache holds grows by
// the pages alone from the second on, and is empty when all readers are closed.
func TestSegmentsWithTheSameSeriesShareTheirLabels(t *testing.T) {
	fs, cache := vfs.NewMem(), openCache(t, 64<<20)
	var first int64
	var readers []*Reader
	for i := range 8 {
		s := fleet(rand.New(rand.NewPCG(7, 7)), 100, 30, 0)
		rng := rand.New(rand.NewPCG(uint64(i), 1))
		rng.Shuffle(len(s.defs), func(a, b int) { s.defs[a].labels, s.defs[b].labels = s.defs[b].labels, s.defs[a].labels })
		path := fmt.Sprint("s", i)
		r := openSegment(t, fs, path, s.write(t, fs, path), cache)
		readers = append(readers, r)
		before := cache.mu.bytes
		for range 2 {
			got := everySeries(t, r)
			if !slices.EqualFunc(got, s.defs, func(l point.Labels, d definition) bool { return l == d.labels }) {
				t.Fatalf("segment %d: %d series are not those that were written", i, len(got))
			}
		}
		if grown := cache.mu.bytes - before; i == 0 {
			first = grown
		} else if grown > first/4 {
			t.Errorf("segment %d takes %d bytes, the first took %d", i, grown, first)
		}
	}
	for _, r := range readers {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}
	if n := len(cache.labels.of); n > 0 || cache.mu.bytes != 0 {
		t.Errorf("%d labels and %d bytes are left", n, cache.mu.bytes)
	}
}

// TestSharedLabelsOfASmallCache: readers beside each other, and a Cache that holds few of their pages: all answers are right, and it counts the pages that it holds.
func TestSharedLabelsOfASmallCache(t *testing.T) {
	fs, cache := vfs.NewMem(), openCache(t, 256<<10)
	var wg sync.WaitGroup
	for i := range 6 {
		s := fleet(rand.New(rand.NewPCG(uint64(i%2), 7)), 60, 30, 0)
		path := fmt.Sprint("s", i)
		r := openSegment(t, fs, path, s.write(t, fs, path), cache)
		for k := range 2 {
			wg.Go(func() {
				rng := rand.New(rand.NewPCG(uint64(i), uint64(k)))
				for range 30 {
					some := roaring.New()
					for range rng.IntN(300) {
						some.Add(uint32(rng.IntN(len(s.defs))))
					}
					if err := r.EachLabels(some, func(id point.DenseID, l point.Labels) error {
						if l != s.defs[id].labels {
							return fmt.Errorf("series %d is %s, want %s", id, l, s.defs[id].labels)
						}
						return nil
					}); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
	}
	wg.Wait()
	held, counted := int64(0), map[*sharedLabels]bool{}
	cache.mu.Lock()
	defer cache.mu.Unlock()
	for _, e := range cache.mu.pages {
		p := e.Value.(*cached)
		held += p.bytes
		if p.defs == nil {
			continue
		}
		for _, l := range p.defs.labels {
			if !counted[l] {
				counted[l] = true
				held += sharedLabelsBytes + int64(len(l.labels))
			}
		}
	}
	if held != cache.mu.bytes || held > cache.pagesMax {
		t.Errorf("the cache counts %d bytes of at most %d, and holds %d", cache.mu.bytes, cache.pagesMax, held)
	}
}

// TestPagesOfDefinitionsWithGaps: ids of files of other tools have gaps, within a page and between pages.
func TestPagesOfDefinitionsWithGaps(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 3))
	for range 20 {
		fs, cache := vfs.NewMem(), openCache(t, 1<<20)
		s := &source{meta: Meta{Table: "t", Partition: 1, ID: point.SegmentID{Epoch: 1, Seq: 1}, Major: true}}
		want := map[point.DenseID]point.Labels{}
		id := point.DenseID(rng.IntN(3))
		for range 700 {
			l := point.MakeLabels("__name__", "m", "i", fmt.Sprint(id))
			s.defs, want[id] = append(s.defs, definition{id, l}), l
			s.add(id, rows.Run{Times: []point.Nanos{1}, Values: []float64{1}})
			if id++; rng.IntN(40) == 0 {
				id += point.DenseID(rng.IntN(600))
			}
		}
		r := openSegment(t, fs, "s", s.write(t, fs, "s"), cache)
		for range 3 {
			some := roaring.New()
			for range 400 {
				some.Add(uint32(rng.IntN(int(id))))
			}
			var got, expect []point.DenseID
			for it := some.Iterator(); it.HasNext(); {
				if i := point.DenseID(it.Next()); want[i] != "" {
					expect = append(expect, i)
				}
			}
			err := r.EachLabels(some, func(i point.DenseID, l point.Labels) error {
				if got = append(got, i); l != want[i] {
					return fmt.Errorf("series %d is %s, want %s", i, l, want[i])
				}
				return nil
			})
			if err != nil || !slices.Equal(got, expect) {
				t.Fatalf("%v: read %d series, want %d", err, len(got), len(expect))
			}
		}
	}
}

// TestASetIsThatOfItsMatcher: answers of the Cache are those of the same name, operator and value, also where names have the characters of operators.
func TestASetIsThatOfItsMatcher(t *testing.T) {
	fs, cache := vfs.NewMem(), openCache(t, 1<<20)
	s := &source{meta: Meta{Table: "t", Partition: 1, ID: point.SegmentID{Epoch: 1, Seq: 1}, Major: true}}
	for i, l := range []point.Labels{point.MakeLabels("__name__", "m", "a", "=b"), point.MakeLabels("__name__", "m", "a=", "b"), point.MakeLabels("__name__", "m", "a", "b"), point.MakeLabels("1a", "b", "__name__", "m")} {
		s.defs = append(s.defs, definition{point.DenseID(i), l})
		s.add(point.DenseID(i), rows.Run{Times: []point.Nanos{1}, Values: []float64{1}})
	}
	r := openSegment(t, fs, "s", s.write(t, fs, "s"), cache)
	ask := func(want string, ms ...*labels.Matcher) {
		t.Helper()
		for range 2 {
			set, err := r.Match(ms)
			if err != nil {
				t.Fatal(err)
			}
			if got := set.String(); got != want {
				t.Errorf("%v: series %s, want %s", ms, got, want)
			}
			set.Clear() // it belongs to the caller
		}
	}
	eq := func(name, value string) *labels.Matcher { return labels.MustNewMatcher(labels.MatchEqual, name, value) }
	ask("{0}", eq("a", "=b"))
	ask("{1}", eq("a=", "b"))
	ask("{2}", eq("a", "b"))
	ask("{3}", eq("1a", "b"))
	ask("{}", eq("a", "b"), eq("1a", "b"))
	ask("{0,2}", labels.MustNewMatcher(labels.MatchRegexp, "a", ".*b"))
	ask("{0,1,3}", labels.MustNewMatcher(labels.MatchNotEqual, "a", "b"))
	ask("{1,3}", labels.MustNewMatcher(labels.MatchNotRegexp, "a", ".+"))
}
