package segment

import (
	"fmt"
	"maps"
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

// fleet is a segment with so many series that names and values fill several pages, with one row each.
func fleet(rng *rand.Rand, hosts, metrics int, first point.DenseID) *source {
	s := &source{meta: Meta{Table: "t", Partition: 1, ID: point.SegmentID{Epoch: 1, Seq: 1}, Major: first == 0}}
	for h := range hosts {
		for m := range metrics {
			l := []string{"__name__", fmt.Sprintf("m%02d", m), "host", fmt.Sprintf("h%04d", h)}
			if rng.IntN(3) == 0 {
				l = append(l, "team", fmt.Sprint("t", h%7))
			}
			if rng.IntN(200) == 0 {
				l = append(l, "zone", fmt.Sprint("z", rng.IntN(3)))
			}
			s.defs = append(s.defs, definition{first + point.DenseID(len(s.defs)), point.MakeLabels(l...)})
		}
	}
	for _, d := range s.defs {
		s.add(d.id, rows.Run{Times: []point.Nanos{1}, Values: []float64{1}})
	}
	return s
}

// lookModel answers a Lookup from the definitions.
func lookModel(defs []definition, label string, ms []*labels.Matcher, without *roaring.Bitmap) []string {
	set := map[string]bool{}
	for _, d := range defs {
		if without.Contains(uint32(d.id)) || slices.ContainsFunc(ms, func(m *labels.Matcher) bool { return !m.Matches(d.labels.Get(m.Name)) }) {
			continue
		}
		d.labels.Range(func(name, value string) bool {
			switch label {
			case "":
				set[name] = true
			case name:
				set[value] = true
			}
			return true
		})
	}
	return slices.Sorted(maps.Keys(set))
}

func randomMatchers(rng *rand.Rand) (ms []*labels.Matcher) {
	for range rng.IntN(4) {
		m := [][3]string{
			{"=", "__name__", fmt.Sprintf("m%02d", rng.IntN(25))}, {"=", "host", fmt.Sprintf("h%04d", rng.IntN(1300))}, {"=~", "host", fmt.Sprintf("h.*%d", rng.IntN(10))},
			{"!=", "team", "t3"}, {"=", "team", ""}, {"=~", "zone", "z[01]"}, {"!~", "zone", "z1|none"}, {"=", "none", "x"}, {"=", "none", ""},
		}[rng.IntN(9)]
		kind := map[string]labels.MatchType{"=": labels.MatchEqual, "!=": labels.MatchNotEqual, "=~": labels.MatchRegexp, "!~": labels.MatchNotRegexp}[m[0]]
		ms = append(ms, labels.MustNewMatcher(kind, m[1], m[2]))
	}
	return ms
}

// TestLookUpsGiveWhatTheDefinitionsHave asks random questions of segments of many pages, each twice: the second answer is a kept one, unless a
// small cache dropped it.
func TestLookUpsGiveWhatTheDefinitionsHave(t *testing.T) {
	for _, cacheBytes := range []int64{0, 40 << 10} {
		rng := rand.New(rand.NewPCG(3, 4))
		cache := openCache(t, cacheBytes)
		fs := vfs.NewMem()
		var rs []*Reader
		var ss []*source
		for i, s := range []*source{fleet(rng, 1200, 3, 0), fleet(rng, 10, 20, 0), fleet(rng, 10, 20, 0), fleet(rng, 300, 2, 5000)} {
			path := fmt.Sprint("seg", i)
			rs, ss = append(rs, openSegment(t, fs, path, s.write(t, fs, path), cache)), append(ss, s)
		}
		for range 150 {
			ms, label := randomMatchers(rng), []string{"", "__name__", "host", "team", "zone", "none"}[rng.IntN(6)]
			without := roaring.New()
			if rng.IntN(4) == 0 {
				without.AddRange(uint64(rng.IntN(3000)), uint64(3000+rng.IntN(3000)))
			}
			l := ValuesOf(label, ms, 0)
			if label == "" {
				l = NamesOf(ms)
			}
			for i := range rs {
				want := lookModel(ss[i].defs, label, ms, without)
				for range 2 {
					got, err := rs[i].Look(l, without)
					check(t, err)
					if !slices.Equal(got, want) {
						t.Fatalf("segment %d, label %q of %v: %d are found, want %d: %.200q, want %.200q", i, label, ms, len(got), len(want), got, want)
					}
				}
			}
		}
		if n := cache.Bytes(); cacheBytes > 0 && n > cacheBytes {
			t.Errorf("the cache has %d bytes of %d", n, cacheBytes)
		}
		for _, r := range rs {
			check(t, r.Close())
		}
		cache.forget(cache.common) // is no segment's
		if n := len(cache.mu.answers); n > 0 || cache.mu.bytes != 0 {
			t.Errorf("%d answers of closed segments are kept, %d bytes", n, cache.mu.bytes)
		}
	}
}

// TestSegmentsShareEqualAnswers: narrow partitions with the same hosts hold the list of hosts once.
func TestSegmentsShareEqualAnswers(t *testing.T) {
	cache, fs := openCache(t, 0), vfs.NewMem()
	s := fleet(rand.New(rand.NewPCG(3, 4)), 500, 1, 0)
	var rs []*Reader
	for i := range 4 {
		path := fmt.Sprint("seg", i)
		rs = append(rs, openSegment(t, fs, path, s.write(t, fs, path), cache))
	}
	l := ValuesOf("host", nil, 0)
	var g sync.WaitGroup
	for _, r := range slices.Concat(rs, rs) {
		g.Go(func() {
			if _, err := r.Look(l, roaring.New()); err != nil {
				t.Error(err)
			}
		})
	}
	g.Wait()
	one, err := rs[0].Look(l, roaring.New())
	check(t, err)
	for _, r := range rs {
		if of, err := r.Look(l, roaring.New()); err != nil || &of[0] != &one[0] {
			t.Errorf("a list of its own: %v", err)
		}
	}
	for i, r := range rs {
		if n := len(cache.mu.answers); n != 1 {
			t.Errorf("%d lists while %d segments are open", n, 4-i)
		}
		check(t, r.Close())
	}
	cache.forget(cache.common) // is no segment's
	if cache.mu.bytes != 0 || len(cache.mu.answers) > 0 {
		t.Errorf("%d bytes, %d lists are left", cache.mu.bytes, len(cache.mu.answers))
	}
}

// TestAMatcherGetsNoAnswerOfAnother: names may have any character, and the answer to {"~ho"="st.*"} was kept under the same words as that to {hos=~"t.*"}: who asked the
// second behind the first got no series.
func TestAMatcherGetsNoAnswerOfAnother(t *testing.T) {
	fs, cache := vfs.NewMem(), openCache(t, 0)
	s := &source{meta: Meta{Table: "t", Partition: 1, ID: point.SegmentID{Epoch: 1, Seq: 1}, Major: true}}
	s.defs = []definition{{0, point.MakeLabels("__name__", "m", "hos", "tx")}}
	s.add(0, rows.Run{Times: []point.Nanos{1}, Values: []float64{1}})
	r := openSegment(t, fs, "seg", s.write(t, fs, "seg"), cache)
	for _, c := range []struct {
		m    *labels.Matcher
		want uint64
	}{
		{labels.MustNewMatcher(labels.MatchEqual, "~ho", "st.*"), 0},
		{labels.MustNewMatcher(labels.MatchRegexp, "hos", "t.*"), 1},
		{labels.MustNewMatcher(labels.MatchEqual, "hos", "tx"), 1},
		{labels.MustNewMatcher(labels.MatchEqual, "ho", "stx"), 0},
	} {
		got, err := r.Match([]*labels.Matcher{c.m})
		check(t, err)
		if n := got.GetCardinality(); n != c.want {
			t.Errorf("%v finds %d series, want %d", c.m, n, c.want)
		}
	}
}
