package segment

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/RoaringBitmap/roaring/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/prometheus/model/labels"
	"pgregory.net/rapid"

	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/rows"
)

// oddValues are the bits that a codec loses first.
var oddValues = []float64{
	0, math.Copysign(0, -1), math.Inf(1), math.Inf(-1), math.NaN(), math.Float64frombits(point.StaleNaN),
	math.Float64frombits(0xfff8000000000123), math.MaxFloat64, math.SmallestNonzeroFloat64, 1 << 53, -(1 << 53), 1<<53 - 1,
	0.1, 0.1 + 0.2, 1e15, 1e-15, 123456789.012345, 1 << 62, 1 << 63, -(1 << 63),
}

// drawRun draws a run of one of the shapes that the codecs distinguish.
func drawRun(t *rapid.T) rows.Run {
	rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
	n := rapid.SampledFrom([]int{1, 2, 3, 30, 511, 512, 513, 1025, 1600}).Draw(t, "rows")
	shape := rapid.IntRange(0, 7).Draw(t, "shape")
	step := rapid.SampledFrom([]int64{1, 1000, 1e6, 10e9, 1 << 40}).Draw(t, "step")
	jitter := rapid.SampledFrom([]int64{0, 0, 3, 15e6}).Draw(t, "jitter") % step
	at := rapid.SampledFrom([]int64{0, -5e9, 1_700_000_000e9, math.MinInt64, math.MaxInt64 - 1600<<41}).Draw(t, "from")
	r := rows.Run{StampLo: point.Stamp(rng.Uint64() >> 1)}
	r.StampHi = r.StampLo + point.Stamp(rng.IntN(1000))
	v := float64(rng.IntN(100))
	for range n {
		if rng.IntN(50) == 0 {
			at += step * rng.Int64N(5)
		}
		tm := at
		if jitter > 0 {
			tm += rng.Int64N(jitter)
		}
		at += step
		if shape == 7 && rng.IntN(3) > 0 {
			h := make([]byte, rng.IntN(3000))
			for i := range h {
				h[i] = byte(rng.IntN(4))
			}
			r.Hists = append(r.Hists, peer.Hist{Time: tm, H: h})
			continue
		}
		r.Times, r.Values = append(r.Times, tm), append(r.Values, drawValue(rng, shape, &v))
	}
	return r
}

// drawRanks gives a run ranks of its rows: those of one request or of a few, or of a scrape each with jitter, missing ones and late rows; or any.
func drawRanks(t *rapid.T, r *rows.Run) {
	rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed of ranks"), 0))
	shape := rapid.IntRange(0, 4).Draw(t, "ranks")
	at := firstRank
	next := func() point.Stamp {
		switch shape {
		case 0:
			return 7
		case 1:
			at += point.Stamp(rng.IntN(8)/7) << 30
		case 2:
			at += scrapeStep + point.Stamp(rng.IntN(2000))<<gatewayBits
			if rng.IntN(30) == 0 {
				return at - 30*scrapeStep | 5
			}
		case 3:
			return point.Stamp(rng.Uint64())
		case 4:
			at += 1 << 40
			return at | point.Stamp(rng.IntN(2))*900
		}
		return at | 17
	}
	r.StampLo, r.StampHi = math.MaxUint64, 0
	fill := func(n int) (out []point.Stamp) {
		for range n {
			s := next()
			out = append(out, s)
			r.StampLo, r.StampHi = min(r.StampLo, s), max(r.StampHi, s)
		}
		return out
	}
	r.Ranks, r.HistRanks = fill(len(r.Times)), fill(len(r.Hists))
}

func drawValue(rng *rand.Rand, shape int, v *float64) float64 {
	switch shape {
	case 0, 7:
		*v += float64(rng.IntN(7) - 3)
	case 1:
		*v += float64(rng.IntN(1 << 30))
	case 2:
		return math.Round(rng.NormFloat64()*1e4) / 100
	case 3:
		return rng.NormFloat64()
	case 4:
		return oddValues[rng.IntN(len(oddValues))]
	case 5:
		if rng.IntN(40) == 0 {
			return oddValues[rng.IntN(len(oddValues))]
		}
		*v += 0.25
	case 6:
		return math.Float64frombits(rng.Uint64())
	}
	return *v
}

func drawSource(t *rapid.T) *source {
	s := &source{meta: Meta{Table: "t", Partition: 1}, exemplars: map[point.DenseID][]point.ExemplarRow{}}
	n := rapid.IntRange(0, 90).Draw(t, "series")
	ids := rapid.SliceOfNDistinct(rapid.Uint32Range(0, 5000), n, n, rapid.ID[uint32]).Draw(t, "ids")
	for _, id := range ids {
		r := drawRun(t)
		if rapid.Bool().Draw(t, "ranked") {
			drawRanks(t, &r)
		}
		s.add(point.DenseID(id), r)
	}
	slices.Sort(ids)
	for _, id := range ids {
		if id%3 > 0 { // the others are defined in a segment before
			l := point.MakeLabels("__name__", []string{"up", "cpu"}[id%2], "host", string(rune('a'+id%26)), []string{"zone", "rack"}[id%2], "x")
			s.defs = append(s.defs, definition{point.DenseID(id), l})
		}
		if id%11 == 0 {
			s.exemplars[point.DenseID(id)] = []point.ExemplarRow{{Time: int64(id), Value: 1}, {Time: int64(id) + 5, Value: math.Inf(1)}}
		}
	}
	return s
}

func TestSegmentEqualsTheMapOfItsRuns(t *testing.T) {
	c := openCache(t, 1<<20)
	rapid.Check(t, func(t *rapid.T) {
		fs := vfs.NewMem()
		s := drawSource(t)
		info := s.writeRapid(t, fs)
		r, err := Open(fs, "seg", info, c)
		must(t, err)
		defer func() { must(t, r.Close()) }()
		must(t, r.Verify())
		compareReads(t, r, s)
		compareRanks(t, r, s)
		compareMatches(t, r, s)
	})
}

func (s *source) writeRapid(t *rapid.T, fs vfs.FS) Info {
	w, err := Create(fs, "seg", s.meta, Settings{})
	must(t, err)
	for _, d := range s.defs {
		must(t, w.Define(d.id, d.labels))
	}
	for _, id := range s.order {
		r := s.runs[id]
		must(t, w.Add(id, &r))
		must(t, w.AddExemplars(id, s.exemplars[id]))
	}
	info, err := w.Finish()
	must(t, err)
	return info
}

func must(t *rapid.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func compareReads(t *rapid.T, r *Reader, s *source) {
	for range 5 {
		ids := rapid.SliceOfN(rapid.Uint32Range(0, 5000), 0, 10).Draw(t, "strangers")
		var asked []point.DenseID
		for _, id := range ids {
			asked = append(asked, point.DenseID(id))
		}
		for _, id := range s.order {
			if rapid.Bool().Draw(t, "ask") {
				asked = append(asked, id)
			}
		}
		lo, hi := point.Nanos(math.MinInt64), point.Nanos(math.MaxInt64)
		if len(s.order) > 0 && rapid.Bool().Draw(t, "range") {
			run := s.runs[rapid.SampledFrom(s.order).Draw(t, "of")]
			a, b, _ := run.Bounds()
			lo = a + rapid.Int64Range(0, (b-a)/2+1).Draw(t, "lo")
			hi = lo + rapid.Int64Range(0, (b-a)/2+1).Draw(t, "hi")
			hi = max(hi, lo)
		}
		got := map[point.DenseID]rows.Run{}
		var order []point.DenseID
		must(t, r.Read(asked, lo, hi, func(id point.DenseID, run rows.Run) error {
			if _, twice := got[id]; twice {
				t.Fatalf("series %d comes twice", id)
			}
			got[id] = run
			order = append(order, id)
			return nil
		}))
		at := 0
		for _, id := range s.order {
			want := s.runs[id]
			want.Cut(lo, hi)
			if !slices.Contains(asked, id) || want.Len() == 0 {
				if _, ok := got[id]; ok {
					t.Fatalf("series %d was not asked for or has no rows there", id)
				}
				continue
			}
			compareRun(t, id, got[id], want)
			if order[at] != id {
				t.Fatalf("order %v", order)
			}
			at++
		}
		if at != len(got) {
			t.Fatalf("%d series, want %d", len(got), at)
		}
	}
}

func compareRun(t *rapid.T, id point.DenseID, got, want rows.Run) {
	same := func(a, b float64) bool { return math.Float64bits(a) == math.Float64bits(b) }
	if !slices.Equal(got.Times, want.Times) || !slices.EqualFunc(got.Values, want.Values, same) || !slices.EqualFunc(got.Hists, want.Hists, equalHist) {
		t.Fatalf("series %d\n got %v\nwant %v", id, got, want)
	}
	exact := want.Ranks != nil || want.HistRanks != nil // then the bounds are those of the chunks read
	if exact && (got.StampLo < want.StampLo || got.StampHi > want.StampHi) || !exact && (got.StampLo != want.StampLo || got.StampHi != want.StampHi) {
		t.Fatalf("series %d: stamps %d..%d, want %d..%d", id, got.StampLo, got.StampHi, want.StampLo, want.StampHi)
	}
}

// compareRanks reads with ranks: exact ones where the source has them, else the highest.
func compareRanks(t *rapid.T, r *Reader, s *source) {
	seen := 0
	must(t, r.ReadRanked(s.order, math.MinInt64, math.MaxInt64, 0, func(i int, got rows.Run) error {
		want := s.runs[s.order[i]]
		seen++
		if want.Ranks == nil && want.HistRanks == nil {
			want.Rank(false, len(want.Times), want.StampHi)
			want.Rank(true, len(want.Hists), want.StampHi)
		}
		compareRun(t, s.order[i], got, want)
		if !slices.Equal(got.Ranks, want.Ranks) || !slices.Equal(got.HistRanks, want.HistRanks) {
			t.Fatalf("series %d: ranks\n got %v %v\nwant %v %v", s.order[i], got.Ranks, got.HistRanks, want.Ranks, want.HistRanks)
		}
		return nil
	}))
	if seen != len(s.order) {
		t.Fatalf("%d series with ranks, want %d", seen, len(s.order))
	}
}

func compareMatches(t *rapid.T, r *Reader, s *source) {
	for range 10 {
		var ms []*labels.Matcher
		for range rapid.IntRange(0, 3).Draw(t, "matchers") {
			ms = append(ms, labels.MustNewMatcher(
				labels.MatchType(rapid.IntRange(0, 3).Draw(t, "type")),
				rapid.SampledFrom([]string{"__name__", "host", "zone", "none"}).Draw(t, "name"),
				rapid.SampledFrom([]string{"", "up", "a", "x", "c.*", "a|b|up", ".*", ".+"}).Draw(t, "value")))
		}
		want := roaring.New()
		for _, d := range s.defs {
			if !slices.ContainsFunc(ms, func(m *labels.Matcher) bool { return !m.Matches(d.labels.Get(m.Name)) }) {
				want.Add(uint32(d.id))
			}
		}
		got, err := r.Match(ms)
		must(t, err)
		if !got.Equals(want) {
			t.Fatalf("%v: got %v, want %v", ms, got, want)
		}
	}
	some := roaring.New()
	for id := range uint32(300) {
		if rapid.IntRange(0, 2).Draw(t, "asked") > 0 {
			some.Add(id)
		}
	}
	var got []definition
	must(t, r.EachLabels(some, func(id point.DenseID, l point.Labels) error {
		got = append(got, definition{id, l})
		return nil
	}))
	want := slices.DeleteFunc(slices.Clone(s.defs), func(d definition) bool { return !some.Contains(uint32(d.id)) })
	if !slices.Equal(got, want) {
		t.Fatalf("labels of %v: %v, want %v", some, got, want)
	}
	for _, id := range s.order {
		l, ok, err := r.Labels(id)
		must(t, err)
		i := slices.IndexFunc(s.defs, func(d definition) bool { return d.id == id })
		if ok != (i >= 0) || ok && l != s.defs[i].labels {
			t.Fatalf("labels of series %d: %v %v", id, l, ok)
		}
	}
}

func TestLabelNamesAndValues(t *testing.T) {
	fs := vfs.NewMem()
	s := small()
	r := openSegment(t, fs, "seg", s.write(t, fs, "seg"), openCache(t, 0))
	names, err := r.Look(NamesOf(nil), roaring.New())
	check(t, err)
	if !slices.Equal(names, []string{"__name__", "host", "region"}) {
		t.Errorf("names %v", names)
	}
	values, err := r.Look(ValuesOf("host", nil, 0), roaring.New())
	check(t, err)
	if !slices.Equal(values, []string{"inn", "isar", "lech"}) {
		t.Errorf("values %v", values)
	}
	if values, err = r.Look(ValuesOf("none", nil, 0), roaring.New()); err != nil || values != nil {
		t.Errorf("values of an unknown name: %v %v", values, err)
	}
	// Names and values that only excluded series have are excluded.
	with := func(name, value string) *roaring.Bitmap {
		ids, err := r.Match([]*labels.Matcher{labels.MustNewMatcher(labels.MatchEqual, name, value)})
		check(t, err)
		return ids
	}
	if values, err = r.Look(ValuesOf("host", nil, 0), with("host", "isar")); err != nil || !slices.Equal(values, []string{"inn", "lech"}) {
		t.Errorf("values without isar: %v %v", values, err)
	}
	if names, err = r.Look(NamesOf(nil), with("host", "isar")); err != nil || len(names) != 3 {
		t.Errorf("names without isar's: %v %v", names, err)
	}
	if names, err = r.Look(NamesOf(nil), with("region", "eu")); err != nil || len(names) > 0 {
		t.Errorf("names without those of every series: %v %v", names, err)
	}
}

func TestCallbackErrorsComeBackAsTheyAre(t *testing.T) {
	fs := vfs.NewMem()
	s := small()
	r := openSegment(t, fs, "seg", s.write(t, fs, "seg"), openCache(t, 0))
	stop := errors.New("enough")
	f := func(point.DenseID, rows.Run) error { return stop }
	if err := r.Read(s.order, 0, math.MaxInt64, f); err != stop {
		t.Errorf("Read: %v", err)
	}
	if err := r.Scan(f); err != stop {
		t.Errorf("Scan: %v", err)
	}
	if err := r.EachDefinition(func(point.DenseID, point.Labels) error { return stop }); err != stop {
		t.Errorf("EachDefinition: %v", err)
	}
}
