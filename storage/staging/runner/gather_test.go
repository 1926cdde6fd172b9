package runner

import (
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/prometheus/prometheus/model/histogram"

	"github.com/spillwaydb/spillway/protocols/frame"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/staging"
)

// TestRowsOfManyFramesAreThoseOfAMerge: frames that overwrite one another, with floats, histograms and stale markers, are read as they would be as many sources.
func TestRowsOfManyFramesAreThoseOfAMerge(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 3))
	value := func() float64 {
		if random.IntN(4) == 0 {
			return math.Float64frombits(point.StaleNaN)
		}
		return float64(random.IntN(5))
	}
	matched := 0
	x := gathering{q: &Query{Lo: 2, Hi: 17, Match: func(point.Labels) bool { matched++; return true }}, series: map[point.Labels]*gathered{}}
	sources := map[point.Labels][]peer.Source{}
	for range 500 {
		g := frame.Frame{Stamp: point.Stamp(1 + random.IntN(40))}
		for _, n := range random.Perm(5)[:1+random.IntN(3)] {
			id := point.DenseID(len(g.Defs))
			g.Defs = append(g.Defs, point.MakeLabels(point.MetricName, "m", "n", fmt.Sprint(n)))
			of := &peer.Series{Labels: g.Defs[id]}
			for at := range point.Nanos(20) {
				within := at >= 2 && at <= 17
				switch v := value(); random.IntN(8) {
				case 0:
					g.IDs, g.Times, g.Values = append(g.IDs, id), append(g.Times, at), append(g.Values, v)
					if within {
						of.Times, of.Values, of.Ranks = append(of.Times, at), append(of.Values, v), append(of.Ranks, g.Stamp)
					}
				case 1:
					b := point.AppendHistogram(nil, &histogram.Histogram{Sum: v})
					g.Hists = append(g.Hists, frame.HistRow{ID: id, Time: at, H: b})
					if within {
						of.Hists, of.HistRanks = append(of.Hists, peer.Hist{Time: at, H: b}), append(of.HistRanks, g.Stamp)
					}
				}
			}
			if len(of.Times)+len(of.Hists) > 0 {
				sources[of.Labels] = append(sources[of.Labels], peer.Source{Series: of})
			}
		}
		x.add(&g)
	}
	got := x.all()
	if len(got) != 5 || matched > 20 {
		t.Errorf("%d series, matched %d times: a series that has rows is matched once", len(got), matched)
	}
	for i := range got {
		m := peer.Merger{Ranks: true}
		want := m.Merge(sources[got[i].Labels])
		same := slices.Equal(got[i].Times, want.Times) && slices.Equal(got[i].Ranks, want.Ranks) && slices.EqualFunc(got[i].Values, want.Values, func(a, b float64) bool {
			return math.Float64bits(a) == math.Float64bits(b)
		})
		if !same || !reflect.DeepEqual(got[i].Hists, want.Hists) || !slices.Equal(got[i].HistRanks, want.HistRanks) {
			t.Errorf("%v: read %v, want %v", want.Labels, got[i], *want)
		}
	}
}

// BenchmarkReadManyFrames reads series of which each row was acked by itself, for some minutes: so many frames wait.
func BenchmarkReadManyFrames(b *testing.B) {
	h := newHouse(&testing.T{})
	s := h.open(staging.Settings{})
	for n := range 20000 {
		of, g := metricsFrame(n, 0, 1+n%3)
		if err := s.Stage(b.Context(), "t", 1, of, g); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := s.Read(&Query{Table: "t", Lo: math.MinInt64, Hi: math.MaxInt64, Match: func(point.Labels) bool { return true }, Take: func(int64) error { return nil }}); err != nil {
			b.Fatal(err)
		}
	}
}
