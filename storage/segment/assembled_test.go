package segment

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/prometheus/model/labels"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

// definitionPages counts the pages of definitions in a cache.
func definitionPages(c *Cache) (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for k := range c.mu.pages {
		if k.group == definitionsGroup {
			n++
		}
	}
	return n
}

// TestTheFirstQueryOfAMetricDecodesNoDefinitions: its series are in each page of definitions, and there are fewer pages of postings. Of a host, whose series are in one page, that is
// read.
func TestTheFirstQueryOfAMetricDecodesNoDefinitions(t *testing.T) {
	fs, cache := vfs.NewMem(), openCache(t, 0)
	s := fleet(rand.New(rand.NewPCG(1, 2)), 100, 100, 0)
	r := openSegment(t, fs, "s", s.write(t, fs, "s"), cache)
	for _, c := range []struct {
		name, value string
		pages       int
	}{{"__name__", "m07", 0}, {"host", "h0001", 1}} {
		of := NewSelector([]*labels.Matcher{labels.MustNewMatcher(labels.MatchEqual, c.name, c.value)})
		got, err := r.Find(of)
		check(t, err)
		if want := foundModel(s.defs, of); len(want) != 100 || !slices.Equal(got.IDs, want) {
			t.Errorf("%s: %d series, want %d", of.key, len(got.IDs), len(want))
		}
		for i, id := range got.IDs {
			if got.Labels(i) != s.defs[id].labels {
				t.Errorf("series %d is %s, want %s", id, got.Labels(i), s.defs[id].labels)
			}
		}
		if n := definitionPages(cache); n != c.pages {
			t.Errorf("%s: %d pages of definitions were decoded, want %d", of.key, n, c.pages)
		}
	}
}

// TestAssembledLabelsAreTheDefinedOnes, of random series with random labels: some are absent, some long, some in many pages of values, and ids have gaps.
func TestAssembledLabelsAreTheDefinedOnes(t *testing.T) {
	for seed := range uint64(10) {
		rng := rand.New(rand.NewPCG(seed, 5))
		fs, cache := vfs.NewMem(), openCache(t, 0)
		s := &source{meta: Meta{Table: "t", Partition: 1, ID: point.SegmentID{Epoch: 1, Seq: 1}, Major: true}}
		id, all := point.DenseID(rng.IntN(3)), map[uint32]point.Labels{}
		for i := range 50 + rng.IntN(1500) {
			pairs := []string{"__name__", fmt.Sprint("m", rng.IntN(5))}
			for _, name := range []string{"a", "b", "ü", strings.Repeat("n", 200)} {
				if rng.IntN(3) > 0 {
					pairs = append(pairs, name, strings.Repeat("v", rng.IntN(300))+fmt.Sprint(rng.IntN(1+i)))
				}
			}
			l := point.MakeLabels(pairs...)
			s.defs, all[uint32(id)] = append(s.defs, definition{id, l}), l
			id += 1 + point.DenseID(rng.IntN(2)*rng.IntN(100))
		}
		r := openSegment(t, fs, "s", s.write(t, fs, "s"), cache)
		names, err := r.names()
		check(t, err)
		for _, ms := range [][]*labels.Matcher{
			nil, {labels.MustNewMatcher(labels.MatchEqual, "__name__", "m1")},
			{labels.MustNewMatcher(labels.MatchEqual, "ü", ""), labels.MustNewMatcher(labels.MatchRegexp, "b", ".+")},
		} {
			ids, err := r.Match(ms)
			check(t, err)
			list := ids.ToArray()
			got, _, err := r.assemble(names, list, ms, math.MaxInt64, math.MaxInt64, nil)
			check(t, err)
			bytes := int64(0)
			for i, id := range list {
				if bytes += int64(len(got[i])); got[i] != all[id] {
					t.Fatalf("seed %d, series %d of %v: %s, want %s", seed, id, ms, got[i], all[id])
				}
			}
			if got, short, err := r.assemble(names, list, ms, bytes-1, math.MaxInt64, nil); got != nil && bytes > 0 || short || err != nil {
				t.Errorf("seed %d: %d series of more bytes than wanted: %v", seed, len(got), err)
			}
		}
	}
}

// TestLabelsAreBookedWhileTheyArePutTogether: a look-up of the first series put up to 65,536 together before it booked any, so that several at once took memory that the
// process did not have.
func TestLabelsAreBookedWhileTheyArePutTogether(t *testing.T) {
	const series = 20_000
	fs, cache := vfs.NewMem(), openCache(t, 0)
	s := &source{meta: Meta{Table: "t", Partition: 1, ID: point.SegmentID{Epoch: 1, Seq: 1}, Major: true}}
	ids, bytes := make([]uint32, series), int64(0)
	for i := range ids {
		l := point.MakeLabels("__name__", "m", "host", fmt.Sprintf("h%06d", i/100), "text", strings.Repeat("x", 100))
		ids[i], bytes = uint32(i), bytes+int64(len(l))
		s.defs = append(s.defs, definition{point.DenseID(i), l})
	}
	r := openSegment(t, fs, "s", s.write(t, fs, "s"), cache)
	names, err := r.names()
	check(t, err)
	booked, peak, steps := int64(0), int64(0), 0
	got, _, err := r.assemble(names, ids, nil, math.MaxInt64, math.MaxInt64, func(n int64) error {
		booked += n
		peak, steps = max(peak, booked), steps+1
		return nil
	})
	check(t, err)
	if peak < bytes || booked != 0 || steps < 5 || len(got) != series {
		t.Errorf("%d series of %d bytes: at most %d were booked in %d steps, %d stay", len(got), bytes, peak, steps, booked)
	}
	full := fault.Errorf(fault.Throttled, "full")
	booked = 0
	if _, _, err = r.assemble(names, ids, nil, math.MaxInt64, math.MaxInt64, func(n int64) error {
		if booked+n > bytes/4 {
			return full
		}
		booked += n
		return nil
	}); !fault.Is(err, fault.Throttled) || booked != 0 {
		t.Errorf("where there is memory for a quarter: %v, and %d bytes stay booked", err, booked)
	}
}

// TestPostingsThatContradictDamageTheFile: a file whose checksums are right, in which a series has two values of a label.
func TestPostingsThatContradictDamageTheFile(t *testing.T) {
	a := assembly{ids: []uint32{3, 9}, sizes: make([]int, 2)}
	a.begin("host", "none")
	for _, v := range []string{"h1", "h2"} {
		a.begin("host", v)
		check(t, eachCommon(cursor{b: []byte{3, 4}}, a.ids, a.add)) // 3 to 6
	}
	if got := a.end(); len(a.labels) != 2 || got[0].Valid() || got[1] != "" {
		t.Errorf("%q of %d labels", got, len(a.labels))
	}
	for _, runs := range [][]byte{{3}, {3, 0}, {0xff}, {0xff, 0xff, 0xff, 0xff, 0xff, 0x7f, 1}} {
		if err := eachCommon(cursor{b: runs}, []uint32{1 << 31}, func(int) {}); !fault.Is(err, fault.Corrupt) {
			t.Errorf("%x: %v", runs, err)
		}
	}
}

// shuffled is a segment of series whose eight labels of three values change from each to the next, so that a posting has as many runs as a label has series. The selector rare
// finds so many of them, each in a page of definitions of its own.
func shuffled(series, few int) *source {
	rng := rand.New(rand.NewPCG(1, 3))
	s := &source{meta: Meta{Table: "t", Partition: 1, ID: point.SegmentID{Epoch: 1, Seq: 1}, Major: true}}
	for i := range series {
		pairs := append(make([]string, 0, 20), point.MetricName, "m")
		for k := range 8 {
			pairs = append(pairs, fmt.Sprint("label", k), fmt.Sprint("v", rng.IntN(3)))
		}
		if i%(series/few) == 0 && i/(series/few) < few {
			pairs = append(pairs, "rare", "yes")
		}
		s.defs = append(s.defs, definition{point.DenseID(i), point.MakeLabels(pairs...)})
	}
	return s
}

var rare = NewSelector([]*labels.Matcher{labels.MustNewMatcher(labels.MatchEqual, "rare", "yes")})

// TestLongPostingsAreNotReadForAFewSeries: their labels were put together from postings that have as many runs as all series, which needed many times as long
// as their definitions.
func TestLongPostingsAreNotReadForAFewSeries(t *testing.T) {
	const few = 20
	fs, cache := vfs.NewMem(), openCache(t, 0)
	s := shuffled(20_000, few)
	r := openSegment(t, fs, "s", s.write(t, fs, "s"), cache)
	got, err := r.Find(rare)
	check(t, err)
	if want := foundModel(s.defs, rare); len(want) != few || !slices.Equal(got.IDs, want) {
		t.Fatalf("found are %v, want %v", got.IDs, want)
	}
	for i, id := range got.IDs {
		if got.Labels(i) != s.defs[id].labels {
			t.Errorf("series %d is %s, want %s", id, got.Labels(i), s.defs[id].labels)
		}
	}
	if n := definitionPages(cache); n != few {
		t.Errorf("%d pages of definitions were decoded, want %d", n, few)
	}
}
