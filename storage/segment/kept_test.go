package segment

import (
	"math"
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

// mixture is series of so many rows each with values of all forms. Every second one has ranks.
func mixture(rng *rand.Rand, series, rowsEach int) *source {
	s := &source{meta: Meta{Table: "t", Partition: 1}}
	for id := range point.DenseID(series) {
		r := rows.Run{StampLo: 5, StampHi: 9}
		v := 0.0
		for k := range rowsEach {
			r.Times = append(r.Times, point.Nanos(10*k)+point.Nanos(rng.IntN(2)*int(id%3)))
			r.Values = append(r.Values, drawValue(rng, int(id%9), &v))
			if id%2 == 0 {
				r.Ranks = append(r.Ranks, 5+point.Stamp(rng.IntN(5)))
			}
		}
		if id%2 == 0 {
			r.StampLo, r.StampHi = slices.Min(r.Ranks), slices.Max(r.Ranks)
		}
		s.add(id, r)
	}
	return s
}

// TestSeriesThatAreKeptOpenHaveTheirRows asks for few series of a segment at a time, by several readers beside each other, so that blocks stay open with
// some of their series, and then with all. Of long chunks all series stay at once.
func TestSeriesThatAreKeptOpenHaveTheirRows(t *testing.T) {
	for _, rowsEach := range []int{1, 10, chunkRowsKept - 1, chunkRowsKept, 700} {
		fs, cache := vfs.NewMem(), openCache(t, 0)
		s := mixture(rand.New(rand.NewPCG(1, uint64(rowsEach))), 150, rowsEach)
		r := openSegment(t, fs, "seg", s.write(t, fs, "seg"), cache)
		var all sync.WaitGroup
		for k := range 3 {
			all.Go(func() {
				rng := rand.New(rand.NewPCG(2, uint64(k)))
				for range 40 {
					s.compareSome(t, r, rng)
				}
			})
		}
		all.Wait()
		blocks, some := 0, 0
		for _, e := range cache.mu.pages {
			if b := e.Value.(*cached).block; b != nil {
				if blocks++; len(b.chunks) < b.all {
					some++
				}
			}
		}
		if blocks == 0 || rowsEach >= chunkRowsKept && some > 0 {
			t.Errorf("%d rows a series: of %d blocks that are kept open %d lack series", rowsEach, blocks, some)
		}
	}
}

// TestABlockIsKeptWithTheSeriesThatWereAskedFor: one of many short series needs a small part of its block's memory, until another one is asked for.
func TestABlockIsKeptWithTheSeriesThatWereAskedFor(t *testing.T) {
	fs, cache := vfs.NewMem(), openCache(t, 0)
	s := mixture(rand.New(rand.NewPCG(1, 2)), 120, 10)
	r := openSegment(t, fs, "seg", s.write(t, fs, "seg"), cache)
	for n, id := range []point.DenseID{7, 7, 70, 8} { // the second and the last find theirs
		check(t, r.Read([]point.DenseID{id}, math.MinInt64, math.MaxInt64, func(point.DenseID, rows.Run) error { return nil }))
		k := pageKey{r, 0, blockPage, 0}
		open, some := cache.page(k)
		plain, all := cache.page(plainKey(k))
		if some != (n < 2) || all != (n >= 2) {
			t.Fatalf("read %d: kept open %v, with values %v", n, some, all)
		}
		if some && (len(open.block.chunks) != 1 || open.block.all != 120 || open.bytes > 1400) {
			t.Errorf("read %d: %d series of %d are kept, in %d bytes", n, len(open.block.chunks), open.block.all, open.bytes)
		}
		if all && len(plain.plain.chunks) != 120 {
			t.Errorf("read %d: %d series of 120 are kept", n, len(plain.plain.chunks))
		}
	}
}

// TestReadsOfPlainBlocksAreThoseOfOpenedOnes compares reads of many series, whose blocks are opened first and plain then, in ranges that cut chunks, and with room that
// is too little and more than that. A walk of a compaction keeps none.
func TestReadsOfPlainBlocksAreThoseOfOpenedOnes(t *testing.T) {
	for _, rowsEach := range []int{1, 10, chunkRowsKept - 1, chunkRowsKept} {
		fs, cache := vfs.NewMem(), openCache(t, 0)
		s := mixture(rand.New(rand.NewPCG(4, uint64(rowsEach))), 150, rowsEach)
		r := openSegment(t, fs, "seg", s.write(t, fs, "seg"), cache)
		kept := func() (n int) {
			for k := range cache.mu.pages {
				if k.page == plainPage {
					n++
				}
			}
			return n
		}
		c, err := r.Cursor()
		check(t, err)
		check(t, c.each(func(point.DenseID, rows.Run) error { return nil }))
		if n := kept(); n > 0 {
			t.Fatalf("%d rows a series: a walk kept %d blocks", rowsEach, n)
		}
		for range 2 {
			check(t, r.Read(s.order, math.MinInt64, math.MaxInt64, func(id point.DenseID, got rows.Run) error {
				s.compareIn(t, id, got, math.MinInt64, math.MaxInt64)
				return nil
			}))
		}
		if n := kept(); n > 0 != (rowsEach < chunkRowsKept) {
			t.Fatalf("%d rows a series: %d blocks are plain", rowsEach, n)
		}
		if only, ok := cache.page(onlyKey(r, 0)); ok != (rowsEach < chunkRowsKept) || ok && only.record == nil {
			t.Fatalf("%d rows a series: the only block of a group and its record are found in one step: %v", rowsEach, ok)
		}
		m := cache.Memory()
		for lo := range point.Nanos(10*rowsEach + 1) {
			for _, hi := range []point.Nanos{lo - 1, lo, lo + 9, lo + 25} {
				m.Reset()
				got := make([]rows.Gathered, len(s.order))
				into := make([]*rows.Gathered, len(s.order))
				for i := range got {
					into[i] = &got[i]
				}
				ok, err := r.ReadBehind(m, s.order, nil, lo, hi, int(lo%3), into)
				if err != nil || !ok {
					t.Fatal(ok, err)
				}
				var merger rows.Merger
				for i, id := range s.order {
					s.compareIn(t, id, merger.Gather(&got[i]), lo, hi)
				}
				check(t, r.ReadInto(m, s.order, nil, lo, hi, int(lo%3), func(i int, run rows.Run) error {
					s.compareIn(t, s.order[i], run, lo, hi)
					return nil
				}))
			}
		}
		m.Close()
	}
}

// TestRowsThatDoNotFollowAreRefused: of two segments with rows of one time neither may win by its place.
func TestRowsThatDoNotFollowAreRefused(t *testing.T) {
	fs, cache := vfs.NewMem(), openCache(t, 0)
	s := mixture(rand.New(rand.NewPCG(5, 5)), 40, 10)
	r := openSegment(t, fs, "seg", s.write(t, fs, "seg"), cache)
	m := cache.Memory()
	defer m.Close()
	for range 2 { // opened, then plain
		got := make([]rows.Gathered, len(s.order))
		into := make([]*rows.Gathered, len(s.order))
		for i := range got {
			into[i] = &got[i]
		}
		for n, want := range []bool{true, true, false} {
			lo := []point.Nanos{0, 45, 75}[n]
			hi := []point.Nanos{44, 89, 95}[n]
			if ok, err := r.ReadBehind(m, s.order, nil, lo, hi, 0, into); err != nil || ok != want {
				t.Fatalf("rows of %d to %d: %v, %v", lo, hi, ok, err)
			}
		}
	}
}

// compareIn fails unless got is what the series has in [lo, hi], with bounds of its stamps.
func (s *source) compareIn(t *testing.T, id point.DenseID, got rows.Run, lo, hi point.Nanos) {
	t.Helper()
	want := s.runs[id]
	want.Cut(lo, hi)
	if !slices.Equal(got.Times, want.Times) || !slices.EqualFunc(got.Values, want.Values, func(a, b float64) bool { return math.Float64bits(a) == math.Float64bits(b) }) {
		t.Fatalf("series %d in [%d, %d]: %v, want %v", id, lo, hi, got, want)
	}
	if len(want.Times) > 0 && (got.StampLo > want.StampLo || got.StampHi < want.StampHi) {
		t.Fatalf("series %d: stamps %d to %d, want %d to %d", id, got.StampLo, got.StampHi, want.StampLo, want.StampHi)
	}
}

// compareSome reads a few series, with ranks or without.
func (s *source) compareSome(t *testing.T, r *Reader, rng *rand.Rand) {
	ids := []point.DenseID{}
	for range 1 + rng.IntN(5) {
		ids = append(ids, s.order[rng.IntN(len(s.order))])
	}
	slices.Sort(ids)
	ids = slices.Compact(ids)
	seen := 0
	ranked := rng.IntN(3) == 0
	compare := func(id point.DenseID, got rows.Run) error {
		want := s.runs[id]
		seen++
		if !slices.Equal(got.Times, want.Times) || !slices.EqualFunc(got.Values, want.Values, func(a, b float64) bool { return math.Float64bits(a) == math.Float64bits(b) }) {
			t.Errorf("series %d of %d rows: %v, want %v", id, len(want.Times), got, want)
		}
		if ranked && want.Ranks == nil {
			want.Rank(false, len(want.Times), want.StampHi)
		}
		if ranked && !slices.Equal(got.Ranks, want.Ranks) {
			t.Errorf("series %d of %d rows: ranks %v, want %v", id, len(want.Times), got.Ranks, want.Ranks)
		}
		return nil
	}
	var err error
	if ranked {
		err = r.ReadRanked(ids, math.MinInt64, math.MaxInt64, 0, func(i int, run rows.Run) error { return compare(ids[i], run) })
	} else {
		err = r.Read(ids, math.MinInt64, math.MaxInt64, compare)
	}
	if err != nil || seen != len(ids) {
		t.Errorf("%d of %d series, %v", seen, len(ids), err)
	}
}

// TestWhatSelectorsFindOutlastsDefinitions: a query of one metric needs the definitions of all, which do not all stay; the query after it must not need them again.
func TestWhatSelectorsFindOutlastsDefinitions(t *testing.T) {
	fs, cache := vfs.NewMem(), openCache(t, 512<<10)
	of := NewSelector([]*labels.Matcher{labels.MustNewMatcher(labels.MatchEqual, "__name__", "m07")})
	var rs []*Reader
	for i := range 6 {
		s := fleet(rand.New(rand.NewPCG(uint64(i), 7)), 60, 30, 0)
		path := "s" + string(rune('0'+i))
		r := openSegment(t, fs, path, s.write(t, fs, path), cache)
		rs = append(rs, r)
		if f, err := r.Find(of); err != nil || len(f.IDs) != 60 {
			t.Fatal(f, err)
		}
		every := roaring.New()
		every.AddRange(0, uint64(len(s.defs)))
		check(t, r.EachLabels(every, func(point.DenseID, point.Labels) error { return nil }))
	}
	definitions := 0
	for _, e := range cache.mu.pages {
		if e.Value.(*cached).defs != nil {
			definitions++
		}
	}
	if want := 6 * 1800 / 256; definitions > want/2 {
		t.Fatalf("%d pages of definitions are kept, of %d: the cache is too large for this test", definitions, want)
	}
	for i, r := range rs {
		if _, ok := cache.page(pageKey{reader: r, group: foundGroup, at: cache.hash(of.key)}); !ok {
			t.Errorf("what the selector found in segment %d is gone", i)
		}
	}
}
