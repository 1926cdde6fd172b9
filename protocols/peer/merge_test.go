package peer

import (
	"bytes"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/value"

	"github.com/spillwaydb/spillway/protocols/point"
)

// sample is a row of the naive merge: the best at one time.
type sample struct {
	layer int
	rank  point.Stamp // 0: of a source without ranks
	value float64
	hist  []byte
}

func (a sample) beats(b sample) bool {
	stale := func(s sample) bool {
		if s.hist != nil {
			return point.IsStaleHistogram(s.hist)
		}
		return point.IsStale(s.value)
	}
	switch {
	case stale(a) != stale(b):
		return stale(b)
	case a.rank != b.rank:
		return a.rank > b.rank
	case a.layer != b.layer:
		return a.layer > b.layer
	case (a.hist != nil) != (b.hist != nil):
		return a.hist != nil
	case a.hist != nil:
		return bytes.Compare(a.hist, b.hist) > 0
	}
	return math.Float64bits(a.value) > math.Float64bits(b.value)
}

// rank appends the rank of a row.
func (s *Series) rank(x sample) {
	if x.hist != nil {
		s.HistRanks = append(s.HistRanks, x.rank)
	} else {
		s.Ranks = append(s.Ranks, x.rank)
	}
}

// TestMergeIsTheBestRowOfEachTime against the naive merge: runs that follow each other, alternate, lie inside each other
// and have the same times, of floats, histograms and stale markers; with ranks and without.
func TestMergeIsTheBestRowOfEachTime(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	hist := func(count uint64) []byte {
		h := &histogram.Histogram{Schema: 1, Count: count, Sum: 4, ZeroThreshold: 1e-128, ZeroCount: count}
		if rng.IntN(8) == 0 {
			h.Sum = math.Float64frombits(value.StaleNaN)
		}
		return point.AppendHistogram(nil, h)
	}
	for round := range 2000 {
		ranked := round%2 == 0
		m := Merger{Ranks: ranked}
		best := map[point.Nanos]sample{}
		var runs []Source
		for range 2 + rng.IntN(4) {
			s, layer := &Series{Labels: "l"}, rng.IntN(2)
			at := int64(rng.IntN(60)) - 30
			for range rng.IntN(40) {
				x := sample{layer: layer, value: float64(rng.IntN(3))}
				switch rng.IntN(6) {
				case 0:
					x.hist = hist(uint64(rng.IntN(3)))
				case 1:
					x.value = math.Float64frombits(value.StaleNaN)
				}
				if ranked {
					x.rank = point.Stamp(1 + rng.IntN(3))
				}
				if x.hist != nil {
					s.Hists = append(s.Hists, Hist{Time: at, H: x.hist})
				} else {
					s.Times, s.Values = append(s.Times, at), append(s.Values, x.value)
				}
				if ranked {
					s.rank(x)
				}
				if old, ok := best[at]; !ok || x.beats(old) {
					best[at] = x
				}
				if at += 1 + int64(rng.IntN(3)); rng.IntN(10) == 0 {
					at += 20
				}
			}
			runs = append(runs, Source{s, layer})
		}
		want := &Series{Labels: "l"}
		for _, at := range slices.Sorted(maps.Keys(best)) {
			if x := best[at]; x.hist != nil {
				want.Hists = append(want.Hists, Hist{Time: at, H: x.hist})
			} else {
				want.Times, want.Values = append(want.Times, at), append(want.Values, x.value)
			}
			if ranked {
				want.rank(best[at])
			}
		}
		text := func(s *Series) string {
			bits := make([]uint64, len(s.Values))
			for i, v := range s.Values {
				bits[i] = math.Float64bits(v)
			}
			return fmt.Sprint(s.Labels, s.Times, bits, s.Hists, s.Ranks, s.HistRanks)
		}
		before := ""
		for _, r := range runs {
			before += text(r.Series)
		}
		if got := m.Merge(runs); text(got) != text(want) {
			t.Fatalf("round %d: got\n%v\nwant\n%v\nof\n%s", round, text(got), text(want), before)
		}
		after := ""
		for _, r := range runs {
			after += text(r.Series)
		}
		if before != after {
			t.Fatalf("round %d: merging changed the runs", round)
		}
	}
}

// TestSeriesWrittenTogetherShareTheirTimes: their columns of times are one in memory.
func TestSeriesWrittenTogetherShareTheirTimes(t *testing.T) {
	var m Merger
	one := func() *Series {
		return m.Merge([]Source{
			{&Series{Labels: "l", Times: []int64{1, 3}, Values: []float64{1, 3}}, 0},
			{&Series{Labels: "l", Times: []int64{2, 4}, Values: []float64{2, 4}}, 0},
		})
	}
	a, b := one(), one()
	if &a.Times[0] != &b.Times[0] || &a.Values[0] == &b.Values[0] {
		t.Error("times are not shared, or values are")
	}
}

// TestWithoutAllRanksLayersDecide: an older server sends none.
func TestWithoutAllRanksLayersDecide(t *testing.T) {
	old := Source{&Series{Times: []int64{1}, Values: []float64{1}}, 1}
	ranked := Source{&Series{Times: []int64{1}, Values: []float64{2}, Ranks: []point.Stamp{9}}, 0}
	higher := Source{&Series{Times: []int64{1}, Values: []float64{3}, Ranks: []point.Stamp{8}}, 1}
	f := func(want float64, sources ...Source) {
		t.Helper()
		var m Merger
		if got := m.Merge(sources).Values; len(got) != 1 || got[0] != want {
			t.Errorf("got %v, want %v", got, want)
		}
	}
	f(1, old, ranked)
	f(1, ranked, old)
	f(2, ranked, higher)
	f(2, higher, ranked)
}
