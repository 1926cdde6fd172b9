package segment

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/RoaringBitmap/roaring/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/prometheus/model/labels"

	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/rows"
)

// longValue is a label's value of n bytes that differs from the others only at its end.
func longValue(n, i int) string {
	end := fmt.Sprintf("%06d", i)
	return strings.Repeat("v", n-len(end)) + end
}

// TestEverySegmentTheWriterMakesCanBeRead writes more values of 64 KiB than a record of label names holds in one part:
// a store accepted them, and answered 500 to queries of their day.
func TestEverySegmentTheWriterMakesCanBeRead(t *testing.T) {
	n := 1100 // 69 MiB: the record was refused from 64 MiB on
	if testing.Short() {
		n = 300 // two parts
	}
	s := &source{meta: Meta{Table: "t", Partition: 1}}
	for i := range n {
		l := point.MakeLabels("__name__", "up", "path", longValue(point.LabelValueMax, i), "zone", "z")
		s.defs = append(s.defs, definition{point.DenseID(i), l})
		s.add(point.DenseID(i), rows.Run{Times: []point.Nanos{int64(i)}, Values: []float64{float64(i)}, StampLo: 1, StampHi: 1})
	}
	fs := vfs.NewMem()
	info := s.write(t, fs, "seg")
	r, err := Open(fs, "seg", info, openCache(t, 1<<20))
	check(t, err)
	defer func() { check(t, r.Close()) }()
	check(t, r.Check())
	check(t, r.Verify())
	for _, i := range []int{0, 1, n / 2, n - 1} {
		set, err := r.Match([]*labels.Matcher{labels.MustNewMatcher(labels.MatchEqual, "path", longValue(point.LabelValueMax, i))})
		check(t, err)
		if got := set.ToArray(); !slices.Equal(got, []uint32{uint32(i)}) {
			t.Errorf("series %d is found as %v", i, got)
		}
	}
	names, err := r.Look(NamesOf(nil), roaring.New())
	check(t, err)
	if want := []string{"__name__", "path", "zone"}; !slices.Equal(names, want) {
		t.Errorf("label names %v, want %v", names, want)
	}
	values, err := r.Look(ValuesOf("path", nil, 0), roaring.New())
	check(t, err)
	if len(values) != n {
		t.Errorf("%d values, want %d", len(values), n)
	}
}

// TestSegmentsHoldWhatTheBoundsAllow draws series at and around every bound of a row's parts.
func TestSegmentsHoldWhatTheBoundsAllow(t *testing.T) {
	seeds := 20
	if testing.Short() {
		seeds = 3
	}
	c := openCache(t, 1<<20)
	for seed := range uint64(seeds) {
		rng := rand.New(rand.NewPCG(seed, 9))
		s := &source{meta: Meta{Table: strings.Repeat("t", rng.IntN(200)), Partition: 1}, exemplars: map[point.DenseID][]point.ExemplarRow{}}
		for i := range 1 + rng.IntN(200) {
			id := point.DenseID(i)
			s.defs = append(s.defs, definition{id, edgeLabels(rng, i)})
			s.add(id, edgeRun(rng))
			if rng.IntN(4) == 0 {
				s.exemplars[id] = edgeExemplars(rng)
			}
		}
		fs := vfs.NewMem()
		info := s.write(t, fs, "seg")
		r, err := Open(fs, "seg", info, c)
		check(t, err)
		if err := r.Check(); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if err := r.Verify(); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		s.compare(t, r, seed)
		check(t, r.Close())
	}
}

// compare reads everything back.
func (s *source) compare(t *testing.T, r *Reader, seed uint64) {
	t.Helper()
	n := 0
	check(t, r.Scan(func(id point.DenseID, got rows.Run) error {
		want := s.runs[id]
		n++
		if !slices.Equal(got.Times, want.Times) || !slices.EqualFunc(got.Values, want.Values, sameBits) ||
			!slices.EqualFunc(got.Hists, want.Hists, func(a, b peer.Hist) bool { return a.Time == b.Time && string(a.H) == string(b.H) }) {
			t.Errorf("seed %d: series %d of %d rows and %d histograms came back as %d and %d, or others", seed, id, len(want.Times), len(want.Hists), len(got.Times), len(got.Hists))
		}
		return nil
	}))
	if n != len(s.order) {
		t.Errorf("seed %d: %d of %d series came back", seed, n, len(s.order))
	}
	i := 0
	check(t, r.EachDefinition(func(id point.DenseID, l point.Labels) error {
		if s.defs[i].id != id || s.defs[i].labels != l {
			t.Errorf("seed %d: series %d has other labels", seed, id)
		}
		i++
		return nil
	}))
}

func sameBits(a, b float64) bool { return math.Float64bits(a) == math.Float64bits(b) }

// edgeLabels are labels with something at a bound: their number, a name, a value, the whole set.
func edgeLabels(rng *rand.Rand, i int) point.Labels {
	pairs := []string{"__name__", "up", "i", fmt.Sprint(i)}
	switch rng.IntN(6) {
	case 0:
		for k := range point.LabelsMax - 2 {
			pairs = append(pairs, fmt.Sprintf("l%03d", k), "v")
		}
	case 1:
		pairs = append(pairs, strings.Repeat("n", point.LabelNameMax), "v")
	case 2:
		pairs = append(pairs, "long", longValue(point.LabelValueMax-rng.IntN(2), i))
	case 3: // a set that is just small enough
		for k := range 3 {
			pairs = append(pairs, fmt.Sprintf("x%d", k), longValue(point.LabelValueMax, i))
		}
		pairs = append(pairs, "y", longValue(point.LabelValueMax-100, i))
	case 4: // values at the length from which page marks are cut
		pairs = append(pairs, "edge", longValue(separatorWhole+rng.IntN(3)-1, i))
	}
	return point.MakeLabels(pairs...)
}

// edgeRun has rows at the ends of time, as many as chunks hold, and histograms of all sizes.
func edgeRun(rng *rand.Rand) rows.Run {
	r := rows.Run{StampLo: point.Stamp(rng.Uint64()), StampHi: math.MaxUint64}
	switch rng.IntN(5) {
	case 0:
		r.Times = []point.Nanos{math.MinInt64, math.MinInt64 + 1, -1, 0, 1, math.MaxInt64 - 1, math.MaxInt64}
	case 1:
		for i := range chunkRowsMax + rng.IntN(3) - 1 {
			r.Times = append(r.Times, math.MaxInt64-2000+int64(i))
		}
	case 2:
		for range 1 + rng.IntN(3000) {
			r.Times = append(r.Times, int64(rng.Uint64()))
		}
		slices.Sort(r.Times)
		r.Times = slices.Compact(r.Times)
	case 3:
		at := int64(math.MinInt64)
		for _, n := range []int{0, 1, histChunkBytes - 1, histChunkBytes, histChunkBytes + 1, point.HistogramBytesMax, 1} {
			r.Hists = append(r.Hists, peer.Hist{Time: at, H: make([]byte, n)})
			at += 1 << 60
		}
	case 4:
		if rng.IntN(8) == 0 {
			r.Hists = []peer.Hist{{Time: math.MaxInt64, H: make([]byte, HistogramBytesMax)}}
		}
		r.Times = []point.Nanos{0}
	}
	for range r.Times {
		r.Values = append(r.Values, oddValues[rng.IntN(len(oddValues))])
	}
	return r
}

func edgeExemplars(rng *rand.Rand) []point.ExemplarRow {
	return []point.ExemplarRow{
		{Time: math.MinInt64, Value: math.NaN()},
		{Time: 0, Labels: point.Labels(point.MakeLabels("__name__", "x", "trace", longValue(1+rng.IntN(point.LabelValueMax-6)+6, 1)))},
		{Time: math.MaxInt64, Value: math.Inf(-1)},
	}
}

// TestNewestExemplarsFit keeps as many of the newest as a segment holds of one series, and the writer agrees.
func TestNewestExemplarsFit(t *testing.T) {
	labels := point.MakeLabels("__name__", "x", "trace", longValue(60_000, 1))
	for _, n := range []int{0, 1, 278, 279, 280, 400} {
		ex := make([]point.ExemplarRow, n)
		for i := range ex {
			ex[i] = point.ExemplarRow{Time: int64(i), Labels: labels}
		}
		kept, left := NewestExemplars(ex)
		if len(kept)+left != n || n > 0 && (len(kept) == 0 || kept[len(kept)-1].Time != int64(n-1)) {
			t.Errorf("of %d: %d kept, %d left", n, len(kept), left)
		}
		if left > 0 && (len(kept)+1)*exemplarBytes(&ex[0]) <= exemplarsMax {
			t.Errorf("of %d: %d left, and one more would fit", n, left)
		}
		s := &source{meta: Meta{Table: "t"}, exemplars: map[point.DenseID][]point.ExemplarRow{0: kept}}
		s.defs = []definition{{0, point.MakeLabels("__name__", "up")}}
		s.add(0, rows.Run{Times: []point.Nanos{1}, Values: []float64{1}, StampLo: 1, StampHi: 1})
		fs := vfs.NewMem()
		r, err := Open(fs, "seg", s.write(t, fs, "seg"), openCache(t, 1<<20))
		check(t, err)
		check(t, r.Verify())
		check(t, r.Close())
	}
}

func TestPackedNamesComeBackFromAllParts(t *testing.T) {
	var lines []labelName
	for i := range 5 {
		l := labelName{name: fmt.Sprintf("name%d", i), number: uint32(i), values: 7 * i}
		for k := range 1 + 3*i {
			l.firsts = append(l.firsts, fmt.Sprintf("%0*d", 10+i, k))
		}
		lines = append(lines, l)
	}
	pk, d := newPacker(), newDecoder()
	defer d.Close()
	for _, size := range []int{1, 2, 20, 35, 100, 1 << 20} {
		parts := packNames(lines, size)
		var got []labelName
		for _, part := range parts {
			var err error
			if got, _, err = parseNames(got, packRecord(part, pk), d); err != nil {
				t.Fatalf("parts of %d bytes: %v", size, err)
			}
		}
		if fmt.Sprint(got) != fmt.Sprint(lines) {
			t.Errorf("parts of %d bytes: %d of them\n%v\nwant\n%v", size, len(parts), got, lines)
		}
	}
}

func TestSeparatorsStandBetweenPages(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for range 2000 {
		long := strings.Repeat("a", rng.IntN(200))
		a, b := long+fmt.Sprint(rng.IntN(1000)), long+fmt.Sprint(rng.IntN(1000))
		if a == b {
			continue
		}
		last, first := min(a, b), max(a, b)
		if sep := separator(last, first); sep <= last || sep > first {
			t.Fatalf("between %q and %q stands %q", last, first, sep)
		}
	}
}
