package point_test

import (
	"bytes"
	"encoding/hex"
	"flag"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/prometheus/prometheus/model/histogram"
	"pgregory.net/rapid"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// goldenHistograms are the histograms with bytes in testdata: histograms that are stored today must stay readable.
func goldenHistograms() map[string][]byte {
	return map[string][]byte{
		"latency": point.AppendHistogram(nil, &histogram.Histogram{
			CounterResetHint: histogram.NotCounterReset, Schema: 3, ZeroThreshold: 2.938735877055719e-39, ZeroCount: 2,
			Count: 25, Sum: 18.4,
			PositiveSpans: []histogram.Span{{Offset: -3, Length: 2}, {Offset: 4, Length: 3}}, PositiveBuckets: []int64{3, 1, -2, 5, -3},
			NegativeSpans: []histogram.Span{{Offset: 0, Length: 1}}, NegativeBuckets: []int64{3},
		}),
		"gauge_float": point.AppendFloatHistogram(nil, &histogram.FloatHistogram{
			CounterResetHint: histogram.GaugeType, Schema: -4, ZeroThreshold: 1e-128, ZeroCount: 0.5, Count: 7.25, Sum: math.Copysign(0, -1),
			PositiveSpans: []histogram.Span{{Offset: 12, Length: 2}}, PositiveBuckets: []float64{6, 0.75},
		}),
		"custom_buckets": point.AppendHistogram(nil, &histogram.Histogram{
			Schema: histogram.CustomBucketsSchema, Count: 15, Sum: 3.2,
			PositiveSpans: []histogram.Span{{Offset: 0, Length: 2}, {Offset: 1, Length: 1}}, PositiveBuckets: []int64{5, 1, -2},
			CustomValues: []float64{0.005, 0.1, 1, 10},
		}),
		"custom_buckets_float": point.AppendFloatHistogram(nil, &histogram.FloatHistogram{
			CounterResetHint: histogram.CounterReset, Schema: histogram.CustomBucketsSchema, Count: 2.5, Sum: 1,
			PositiveSpans: []histogram.Span{{Offset: 1, Length: 1}}, PositiveBuckets: []float64{2.5}, CustomValues: []float64{-1, 1},
		}),
		"stale": point.AppendHistogram(nil, &histogram.Histogram{Sum: math.Float64frombits(point.StaleNaN)}),
	}
}

func TestHistogramBytesNeverChange(t *testing.T) {
	for name, b := range goldenHistograms() {
		path := filepath.Join("testdata", "histogram_"+name+".hex")
		if *update {
			if err := os.WriteFile(path, []byte(hex.EncodeToString(b)+"\n"), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		want, err := hex.DecodeString(string(bytes.TrimSpace(text)))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(b, want) {
			t.Errorf("%s is now\n%x, was\n%x", name, b, want)
		}
		if again := recode(t, want); !bytes.Equal(again, want) {
			t.Errorf("%s comes back as\n%x, was\n%x", name, again, want)
		}
	}
}

// recode decodes and encodes; the encoding is canonical, so the result must be the input.
func recode(t testing.TB, b []byte) []byte {
	t.Helper()
	h, fh, err := point.DecodeHistogram(b)
	if err != nil {
		t.Fatalf("%x: %v", b, err)
	}
	if (h == nil) == (fh == nil) {
		t.Fatalf("not exactly one of two results: %v, %v", h, fh)
	}
	if h != nil {
		return point.AppendHistogram(nil, h)
	}
	return point.AppendFloatHistogram(nil, fh)
}

func TestHistogramCutAnywhereIsCorrupt(t *testing.T) {
	for name, b := range goldenHistograms() {
		for n := range b {
			if _, _, err := point.DecodeHistogram(b[:n:n]); !fault.Is(err, fault.Corrupt) {
				t.Errorf("%s cut to %d of %d bytes: %v, want corrupt", name, n, len(b), err)
			}
		}
		if _, _, err := point.DecodeHistogram(append(b, 0)); !fault.Is(err, fault.Corrupt) {
			t.Errorf("%s with a byte too many: %v, want corrupt", name, err)
		}
	}
}

func TestHistogramRefusesWhatIsInconsistent(t *testing.T) {
	valid := func() *histogram.Histogram {
		return &histogram.Histogram{Schema: 1, Count: 4, Sum: 1, PositiveSpans: []histogram.Span{{Offset: 0, Length: 2}}, PositiveBuckets: []int64{1, 2}}
	}
	bad := func(name string, change func(*histogram.Histogram)) {
		t.Helper()
		h := valid()
		change(h)
		if _, _, err := point.DecodeHistogram(point.AppendHistogram(nil, h)); !fault.Is(err, fault.Corrupt) {
			t.Errorf("%s: %v, want corrupt", name, err)
		}
	}
	if _, _, err := point.DecodeHistogram(point.AppendHistogram(nil, valid())); err != nil {
		t.Fatal(err)
	}
	bad("more buckets than spans", func(h *histogram.Histogram) { h.PositiveBuckets = append(h.PositiveBuckets, 0) })
	bad("more spans than buckets", func(h *histogram.Histogram) { h.PositiveSpans[0].Length = math.MaxUint32 })
	bad("count differs from buckets", func(h *histogram.Histogram) { h.Count++ })
	bad("negative bucket", func(h *histogram.Histogram) { h.PositiveBuckets[1] = -2 })
	bad("unknown schema", func(h *histogram.Histogram) { h.Schema = 9 })
	bad("bounds on an exponential schema", func(h *histogram.Histogram) { h.CustomValues = []float64{1} })
	bad("bounds out of order", func(h *histogram.Histogram) {
		h.Schema, h.CustomValues = histogram.CustomBucketsSchema, []float64{2, 1}
	})
}

func TestHistogramRefusesOtherSpellings(t *testing.T) {
	b := point.AppendHistogram(nil, &histogram.Histogram{Sum: 1})
	long := append(append(append([]byte{}, b[:10]...), 0x80, 0x00), b[11:]...) // schema 0 in two bytes
	if _, _, err := point.DecodeHistogram(long); !fault.Is(err, fault.Corrupt) {
		t.Errorf("a number with a needless byte: %v, want corrupt", err)
	}
	for i, v := range map[int]byte{0: 2, 1: 0x80} {
		c := bytes.Clone(b)
		c[i] = v
		if _, _, err := point.DecodeHistogram(c); !fault.Is(err, fault.Corrupt) {
			t.Errorf("byte %d = %#x: %v, want corrupt", i, v, err)
		}
	}
}

func TestStaleHistogramIsKnownWithoutDecoding(t *testing.T) {
	for name, b := range goldenHistograms() {
		if got := point.IsStaleHistogram(b); got != (name == "stale") {
			t.Errorf("IsStaleHistogram(%s) = %v", name, got)
		}
	}
	h, _, err := point.DecodeHistogram(goldenHistograms()["stale"])
	if err != nil || math.Float64bits(h.Sum) != point.StaleNaN {
		t.Errorf("stale marker comes back as %v, %v", h, err)
	}
	if point.IsStaleHistogram(nil) {
		t.Error("no bytes are no stale marker")
	}
}

func TestUnknownHintBecomesUnknownCounterReset(t *testing.T) {
	h, _, err := point.DecodeHistogram(point.AppendHistogram(nil, &histogram.Histogram{CounterResetHint: 9}))
	if err != nil || h.CounterResetHint != histogram.UnknownCounterReset {
		t.Errorf("%v, %v", h, err)
	}
}

// drawSpans draws spans and the number of buckets they need.
func drawSpans(t *rapid.T, label string) (spans []histogram.Span, n int) {
	for i := range rapid.IntRange(0, 4).Draw(t, label) {
		offset := rapid.Int32Range(0, 100).Draw(t, "offset")
		if i == 0 {
			offset -= 50
		}
		length := rapid.Uint32Range(0, 6).Draw(t, "length")
		spans = append(spans, histogram.Span{Offset: offset, Length: length})
		n += int(length)
	}
	return spans, n
}

func TestHistogramRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := &histogram.Histogram{
			CounterResetHint: histogram.CounterResetHint(rapid.IntRange(0, 3).Draw(t, "hint")),
			Schema:           rapid.Int32Range(-4, 8).Draw(t, "schema"),
			ZeroThreshold:    rapid.Float64Range(0, math.MaxFloat64).Draw(t, "threshold"),
			ZeroCount:        rapid.Uint64Range(0, 1<<40).Draw(t, "zeros"),
			Sum:              math.Float64frombits(rapid.Uint64().Draw(t, "sum")),
		}
		h.Count = h.ZeroCount
		buckets := func(n int) (deltas []int64) {
			last := int64(0)
			for range n {
				c := rapid.Int64Range(0, 1<<40).Draw(t, "bucket")
				deltas, last = append(deltas, c-last), c
				h.Count += uint64(c)
			}
			return deltas
		}
		var n int
		h.PositiveSpans, n = drawSpans(t, "positive")
		h.PositiveBuckets = buckets(n)
		h.NegativeSpans, n = drawSpans(t, "negative")
		h.NegativeBuckets = buckets(n)

		got, _, err := point.DecodeHistogram(point.AppendHistogram(nil, h))
		if err != nil {
			t.Fatal(err)
		}
		same := math.Float64bits(got.Sum) == math.Float64bits(h.Sum) && math.Float64bits(got.ZeroThreshold) == math.Float64bits(h.ZeroThreshold)
		got.Sum, h.Sum, got.ZeroThreshold, h.ZeroThreshold = 0, 0, 0, 0 // NaN equals nothing
		if !same || !got.Equals(h) || got.CounterResetHint != h.CounterResetHint {
			t.Fatalf("came back as %v, was %v", got, h)
		}
	})
}

func TestFloatHistogramRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := &histogram.FloatHistogram{
			CounterResetHint: histogram.CounterResetHint(rapid.IntRange(0, 3).Draw(t, "hint")),
			Sum:              math.Float64frombits(rapid.Uint64().Draw(t, "sum")),
			Count:            rapid.Float64Range(0, 1e300).Draw(t, "count"),
		}
		var n int
		if rapid.Bool().Draw(t, "custom") {
			h.Schema = histogram.CustomBucketsSchema
			h.PositiveSpans, n = []histogram.Span{{Offset: 1, Length: 2}}, 2
			h.CustomValues = []float64{-0.5, 0.25, 3}
		} else {
			h.Schema = rapid.Int32Range(-4, 8).Draw(t, "schema")
			h.ZeroCount = rapid.Float64Range(0, 1e300).Draw(t, "zeros")
			h.PositiveSpans, n = drawSpans(t, "positive")
		}
		for range n {
			h.PositiveBuckets = append(h.PositiveBuckets, rapid.Float64Range(0, 1e300).Draw(t, "bucket"))
		}
		_, got, err := point.DecodeHistogram(point.AppendFloatHistogram(nil, h))
		if err != nil {
			t.Fatal(err)
		}
		same := math.Float64bits(got.Sum) == math.Float64bits(h.Sum)
		got.Sum, h.Sum = 0, 0
		if !same || !got.Equals(h) || got.CounterResetHint != h.CounterResetHint {
			t.Fatalf("came back as %v, was %v", got, h)
		}
	})
}

func FuzzDecodeHistogram(f *testing.F) {
	for _, b := range goldenHistograms() {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		h, fh, err := point.DecodeHistogram(b)
		if err != nil {
			if !fault.Is(err, fault.Corrupt) {
				t.Fatalf("%v is not corrupt", err)
			}
			return
		}
		again := recode(t, b)
		if h != nil && h.ZeroThreshold == 0 || fh != nil && fh.ZeroThreshold == 0 { // perhaps the one that replaces what no histogram may have
			b, again = again, recode(t, again)
		}
		if !bytes.Equal(again, b) {
			t.Fatalf("%x comes back as %x", b, again)
		}
	})
}

func BenchmarkHistogram(b *testing.B) {
	h := &histogram.Histogram{Schema: 3, ZeroThreshold: 2.938735877055719e-39, Sum: 18.4, PositiveSpans: []histogram.Span{{Offset: -30, Length: 40}}}
	for i := range 40 {
		h.PositiveBuckets = append(h.PositiveBuckets, int64(i%5-1))
	}
	h.PositiveBuckets[0] = 40
	c := int64(0)
	for _, d := range h.PositiveBuckets {
		c += d
		h.Count += uint64(c)
	}
	buf := point.AppendHistogram(nil, h)
	b.Run("append/40 buckets", func(b *testing.B) {
		b.ReportAllocs()
		b.ReportMetric(float64(len(buf)), "B/histogram")
		for b.Loop() {
			buf = point.AppendHistogram(buf[:0], h)
		}
	})
	b.Run("decode/40 buckets", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, _, err := point.DecodeHistogram(buf); err != nil {
				b.Fatal(err)
			}
		}
	})
}
