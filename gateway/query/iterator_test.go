package query_test

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"pgregory.net/rapid"

	"github.com/spillwaydb/spillway/gateway/query"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
)

func stale() float64 { return math.Float64frombits(point.StaleNaN) }

func hist(count uint64, sum float64) []byte {
	return point.AppendHistogram(nil, &histogram.Histogram{Count: count, ZeroCount: count, Sum: sum, ZeroThreshold: 1})
}

func floatHist(count, sum float64) []byte {
	return point.AppendFloatHistogram(nil, &histogram.FloatHistogram{Count: count, ZeroCount: count, Sum: sum, ZeroThreshold: 1})
}

// read renders the sample an iterator stands on.
func read(it chunkenc.Iterator, typ chunkenc.ValueType) string {
	switch typ {
	case chunkenc.ValFloat:
		t, v := it.At()
		if point.IsStale(v) {
			return fmt.Sprintf("%d:stale", t)
		}
		return fmt.Sprintf("%d:%v", t, v)
	case chunkenc.ValHistogram:
		t, h := it.AtHistogram(nil)
		return fmt.Sprintf("%d:h%d", t, h.Count)
	case chunkenc.ValFloatHistogram:
		t, h := it.AtFloatHistogram(nil)
		return fmt.Sprintf("%d:f%v", t, h.Count)
	}
	return "end"
}

func readAll(it chunkenc.Iterator) (out []string) {
	for typ := it.Next(); typ != chunkenc.ValNone; typ = it.Next() {
		out = append(out, read(it, typ))
	}
	return out
}

func TestRowsOfOneMillisecondCollapse(t *testing.T) {
	type row struct {
		ns point.Nanos
		v  any // float64, or []byte of a histogram
	}
	f := func(rows []row, want ...string) {
		t.Helper()
		s := &peer.Series{}
		for _, r := range rows {
			if h, ok := r.v.([]byte); ok {
				s.Hists = append(s.Hists, peer.Hist{Time: r.ns, H: h})
				continue
			}
			s.Times, s.Values = append(s.Times, r.ns), append(s.Values, r.v.(float64))
		}
		if got := readAll(query.SeriesOver(s).Iterator(nil)); !slices.Equal(got, want) {
			t.Errorf("%v: got %v, want %v", rows, got, want)
		}
	}
	f(nil)
	f([]row{{0, 1.}}, "0:1")
	f([]row{{0, 1.}, {999_999, 2.}, {1_000_000, 3.}}, "0:2", "1:3")
	f([]row{{-1, 1.}, {0, 2.}}, "-1:1", "0:2")
	f([]row{{-1_000_000, 1.}, {-1, 2.}, {0, 3.}}, "-1:2", "0:3")
	f([]row{{5, 1.}, {6, stale()}}, "0:1")
	f([]row{{5, stale()}, {6, 1.}, {7, stale()}}, "0:1")
	f([]row{{5, stale()}, {6, stale()}}, "0:stale")
	f([]row{{5, 1.}, {1_500_000, stale()}, {1_600_000, stale()}, {2_000_000, 4.}}, "0:1", "1:stale", "2:4")
	f([]row{{5, hist(3, 1)}, {6, 1.}, {2_000_000, floatHist(2.5, 1)}}, "0:1", "2:f2.5")
	f([]row{{5, 1.}, {6, hist(3, 1)}}, "0:h3")
	f([]row{{5, hist(3, 1)}, {6, stale()}}, "0:h3")
	f([]row{{5, 1.}, {6, hist(0, stale())}}, "0:1")
	f([]row{{5, stale()}, {6, hist(0, stale())}, {7, hist(9, 1)}, {1_000_000, 5.}}, "0:h9", "1:5")
	f([]row{{math.MinInt64, 1.}, {math.MaxInt64, 2.}}, "-9223372036855:1", "9223372036854:2")
}

// TestIteratorAgainstModel walks random series with random mixtures of Next and Seek, beside a list of the samples
// worked out one by one.
func TestIteratorAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s, samples := drawSeries(t)
		series := query.SeriesOver(s)
		it := series.Iterator(nil)
		at := -1
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			switch rapid.IntRange(0, 9).Draw(t, "op") {
			case 0:
				it, at = series.Iterator(it), -1
				continue
			case 1, 2, 3, 4:
				ms := rapid.Int64Range(-6, 40).Draw(t, "seek")
				at = max(at, 0)
				for at < len(samples) && samples[at].ms < ms {
					at++
				}
				check(t, samples, at, read(it, it.Seek(ms)))
			default:
				at = min(at+1, len(samples))
				check(t, samples, at, read(it, it.Next()))
			}
		}
		if it.Err() != nil {
			t.Fatal(it.Err())
		}
	})
}

type sample struct {
	ms   int64
	text string
}

func check(t *rapid.T, samples []sample, at int, got string) {
	t.Helper()
	want := "end"
	if at < len(samples) {
		want = samples[at].text
	}
	if got != want {
		t.Fatalf("at %d: got %s, want %s; samples %v", at, got, want, samples)
	}
}

// drawSeries makes rows, of which some share a millisecond, and the samples they become.
func drawSeries(t *rapid.T) (*peer.Series, []sample) {
	s := &peer.Series{}
	times := rapid.SliceOfNDistinct(rapid.Int64Range(-12, 80), 0, 40, rapid.ID).Draw(t, "times")
	slices.Sort(times)
	hists := rapid.Bool().Draw(t, "hists")
	var out []sample
	for i, tick := range times {
		ns := tick * 500_000 // two to a millisecond
		kind := rapid.IntRange(0, 3).Draw(t, "kind")
		if !hists {
			kind %= 2
		}
		var text string
		ms := int64(math.Floor(float64(tick) / 2))
		switch kind {
		case 0:
			s.Times, s.Values = append(s.Times, ns), append(s.Values, float64(i))
			text = fmt.Sprintf("%d:%d", ms, i)
		case 1:
			s.Times, s.Values = append(s.Times, ns), append(s.Values, stale())
			text = fmt.Sprintf("%d:stale", ms)
		case 2:
			s.Hists = append(s.Hists, peer.Hist{Time: ns, H: hist(uint64(i), 0)})
			text = fmt.Sprintf("%d:h%d", ms, i)
		case 3:
			s.Hists = append(s.Hists, peer.Hist{Time: ns, H: floatHist(float64(i), 0)})
			text = fmt.Sprintf("%d:f%d", ms, i)
		}
		switch n := len(out); {
		case n == 0 || out[n-1].ms != ms:
			out = append(out, sample{ms, text})
		case kind != 1 || out[n-1].text == text:
			out[n-1].text = text
		}
	}
	return s, out
}

func TestHistogramsAreTheCallersToKeep(t *testing.T) {
	s := &peer.Series{Hists: []peer.Hist{{Time: 0, H: hist(3, 1)}, {Time: 1e6, H: floatHist(4, 2)}}}
	it := query.SeriesOver(s).Iterator(nil)
	it.Next()
	_, h := it.AtHistogram(nil)
	h.Count = 99
	h.ZeroCount = 99
	if _, again := it.AtHistogram(nil); again == h {
		t.Error("the same histogram was handed out twice")
	}
	reused := &histogram.FloatHistogram{}
	if _, fh := it.AtFloatHistogram(reused); fh != reused {
		t.Error("the float form of an integer histogram took new memory")
	}
	it.Next()
	_, fh := it.AtFloatHistogram(nil)
	fh.Count = 99
	if _, again := it.AtFloatHistogram(nil); again == fh {
		t.Error("the same float histogram was handed out twice")
	}
}

func TestCorruptHistogramEndsTheSeries(t *testing.T) {
	s := &peer.Series{Hists: []peer.Hist{{Time: 0, H: hist(3, 1)}, {Time: 1e6, H: []byte{1, 2, 3}}, {Time: 2e6, H: hist(3, 1)}}}
	it := query.SeriesOver(s).Iterator(nil)
	if got := readAll(it); !slices.Equal(got, []string{"0:h3"}) || !fault.Is(it.Err(), fault.Corrupt) {
		t.Errorf("%v, error %v", got, it.Err())
	}
	if typ := it.Seek(1); typ != chunkenc.ValNone || it.Err() == nil {
		t.Errorf("a seek found %v behind it, error %v", typ, it.Err())
	}
}

func long(n int) *peer.Series {
	s := &peer.Series{Labels: point.MakeLabels("__name__", "long", "host", "h1")}
	for i := range n {
		s.Times = append(s.Times, int64(i)*15e9)
		s.Values = append(s.Values, float64(i))
	}
	return s
}

func TestWalkingTakesNoMemory(t *testing.T) {
	series := query.SeriesOver(long(1000))
	it := series.Iterator(nil)
	n := testing.AllocsPerRun(100, func() {
		it = series.Iterator(it)
		for it.Next() != chunkenc.ValNone {
		}
		it = series.Iterator(it)
		for ms := int64(0); it.Seek(ms) != chunkenc.ValNone; ms += 60_000 {
		}
	})
	if n != 0 {
		t.Errorf("%v allocations for walking 1000 rows twice", n)
	}
}

func BenchmarkIterator(b *testing.B) {
	series := query.SeriesOver(long(4320))
	it := series.Iterator(nil)
	for _, bench := range []struct {
		name string
		walk func()
	}{
		{"next", func() {
			for it.Next() != chunkenc.ValNone {
				it.At()
			}
		}},
		{"seek_near", func() {
			for ms := int64(0); it.Seek(ms) != chunkenc.ValNone; ms += 60_000 {
			}
		}},
		{"seek_far", func() {
			for ms := int64(0); it.Seek(ms) != chunkenc.ValNone; ms += 3_600_000 {
			}
		}},
	} {
		b.Run(bench.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				it = series.Iterator(it)
				bench.walk()
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/4320, "ns/row")
		})
	}
}
