package remotewrite_test

import (
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/prometheus/prompb"
	writev2 "github.com/prometheus/prometheus/prompb/io/prometheus/write/v2"
	"pgregory.net/rapid"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/protocols/remotewrite"
)

// Generators: mostly usual requests, with everything that senders should not write mixed in.

func ints64(t *rapid.T, name string) int64 {
	return rapid.OneOf(
		rapid.Int64Range(1_600_000_000_000, 1_900_000_000_000),
		rapid.SampledFrom([]int64{0, 1, -1, 9223372036854, 9223372036855, -9223372036854, -9223372036855, math.MaxInt64, math.MinInt64}),
	).Draw(t, name)
}

func floats(t *rapid.T, name string) float64 {
	return rapid.OneOf(
		rapid.Float64(),
		rapid.SampledFrom([]float64{0, 1, math.Inf(1), math.Float64frombits(point.StaleNaN), math.Float64frombits(0x7ff8000000000001), math.Copysign(0, -1)}),
	).Draw(t, name)
}

func words(t *rapid.T, name string) string {
	return rapid.SampledFrom([]string{
		"", "__name__", "job", "instance", "le", "up", "api", "http_requests_total", "rpc_seconds_bucket", "rpc_seconds_sum", "rpc_seconds",
		"10.0.0.1:9090", "naïve.dots and\nlines", "\xff\xfe", strings.Repeat("x", 130), strings.Repeat("y", 1025),
	}).Draw(t, name)
}

func labelPairs(t *rapid.T) []label {
	var ls []label
	if rapid.IntRange(0, 9).Draw(t, "named") > 0 {
		ls = append(ls, label{"__name__", words(t, "metric")})
	}
	for range rapid.IntRange(0, 4).Draw(t, "labels") {
		ls = append(ls, label{words(t, "label"), words(t, "value")})
	}
	return ls
}

// genHistogram draws a histogram, sound more often than not.
func genHistogram(t *rapid.T) prompb.Histogram {
	h := prompb.Histogram{
		Sum: floats(t, "sum"), Timestamp: ints64(t, "time"),
		Schema:        rapid.SampledFrom([]int32{0, 3, 8, 9, 52, 53, -4, -5, -53}).Draw(t, "schema"),
		ZeroThreshold: rapid.SampledFrom([]float64{0, 1e-128}).Draw(t, "threshold"),
		ResetHint:     prompb.Histogram_ResetHint(rapid.SampledFrom([]int32{0, 1, 2, 3, 4, 257, -1}).Draw(t, "hint")),
	}
	n := rapid.IntRange(0, 4).Draw(t, "buckets")
	float := rapid.Bool().Draw(t, "float")
	var count uint64
	prev := int64(0)
	for range n {
		c := rapid.Int64Range(0, 9).Draw(t, "in bucket")
		count += uint64(c)
		h.PositiveDeltas = append(h.PositiveDeltas, c-prev)
		h.PositiveCounts = append(h.PositiveCounts, float64(c))
		prev = c
	}
	if n > 0 {
		h.PositiveSpans = []prompb.BucketSpan{{Offset: rapid.Int32Range(0, 3).Draw(t, "offset"), Length: 1}, {Offset: 2, Length: uint32(n - 1)}}
	}
	if h.Schema == -53 {
		h.ZeroThreshold = 0
		for i := range rapid.IntRange(0, 12).Draw(t, "bounds") {
			h.CustomValues = append(h.CustomValues, float64(i))
		}
	}
	if rapid.IntRange(0, 5).Draw(t, "broken") == 0 {
		count++
		h.NegativeSpans = append(h.NegativeSpans, prompb.BucketSpan{Offset: -2, Length: 1})
		h.NegativeDeltas = append(h.NegativeDeltas, 3)
	}
	if float {
		h.Count, h.ZeroCount = &prompb.Histogram_CountFloat{CountFloat: float64(count)}, &prompb.Histogram_ZeroCountFloat{}
		h.PositiveDeltas = nil
	} else {
		h.Count, h.ZeroCount = &prompb.Histogram_CountInt{CountInt: count}, &prompb.Histogram_ZeroCountInt{}
		h.PositiveCounts = nil
	}
	return h
}

// seriesCount is now and then as many as are looked up ahead, and more.
func seriesCount(t *rapid.T) int {
	if rapid.IntRange(0, 19).Draw(t, "long") == 0 {
		return rapid.IntRange(30, 80).Draw(t, "series")
	}
	return rapid.IntRange(0, 4).Draw(t, "series")
}

func genV1(t *rapid.T) *prompb.WriteRequest {
	req := &prompb.WriteRequest{}
	toV1 := func(ls []label) (out []prompb.Label) {
		for _, l := range ls {
			out = append(out, prompb.Label{Name: l.name, Value: l.value})
		}
		return out
	}
	for range seriesCount(t) {
		ts := prompb.TimeSeries{Labels: toV1(labelPairs(t))}
		for range rapid.IntRange(0, 3).Draw(t, "samples") {
			ts.Samples = append(ts.Samples, prompb.Sample{Value: floats(t, "value"), Timestamp: ints64(t, "time")})
		}
		for range rapid.IntRange(0, 2).Draw(t, "histograms") {
			ts.Histograms = append(ts.Histograms, genHistogram(t))
		}
		for range rapid.IntRange(0, 2).Draw(t, "exemplars") {
			ts.Exemplars = append(ts.Exemplars, prompb.Exemplar{Labels: toV1(labelPairs(t)), Value: floats(t, "value"), Timestamp: ints64(t, "time")})
		}
		req.Timeseries = append(req.Timeseries, ts)
	}
	for range rapid.IntRange(0, 2).Draw(t, "metadata") {
		req.Metadata = append(req.Metadata, prompb.MetricMetadata{
			Type: prompb.MetricMetadata_MetricType(rapid.Int32Range(-1, 9).Draw(t, "type")), MetricFamilyName: words(t, "family"), Help: words(t, "help"), Unit: words(t, "unit"),
		})
	}
	return req
}

func genV2(t *rapid.T) *writev2.Request {
	table := writev2.NewSymbolTable()
	req := &writev2.Request{}
	refs := func(ls []label) (out []uint32) {
		for _, l := range ls {
			out = append(out, table.Symbolize(l.name), table.Symbolize(l.value))
		}
		switch rapid.IntRange(0, 19).Draw(t, "spoil refs") {
		case 0:
			out = append(out, 1<<20)
		case 1:
			out = append(out, 0, math.MaxUint32)
		}
		return out
	}
	for range seriesCount(t) {
		ts := writev2.TimeSeries{LabelsRefs: refs(labelPairs(t))}
		kind := rapid.SampledFrom([]string{"samples", "samples", "histograms", "histograms", "both", "none"}).Draw(t, "kind")
		if kind == "samples" || kind == "both" {
			for range rapid.IntRange(1, 3).Draw(t, "samples") {
				ts.Samples = append(ts.Samples, writev2.Sample{Value: floats(t, "value"), Timestamp: ints64(t, "time"), StartTimestamp: ints64(t, "start")})
			}
		}
		if kind == "histograms" || kind == "both" {
			for range rapid.IntRange(1, 2).Draw(t, "histograms") {
				ts.Histograms = append(ts.Histograms, toV2(genHistogram(t), ints64(t, "start")))
			}
		}
		for range rapid.IntRange(0, 2).Draw(t, "exemplars") {
			ts.Exemplars = append(ts.Exemplars, writev2.Exemplar{LabelsRefs: refs(labelPairs(t)), Value: floats(t, "value"), Timestamp: ints64(t, "time")})
		}
		ts.Metadata = writev2.Metadata{Type: writev2.Metadata_MetricType(rapid.Int32Range(0, 9).Draw(t, "type")), HelpRef: table.Symbolize(words(t, "help")), UnitRef: table.Symbolize(words(t, "unit"))}
		if rapid.IntRange(0, 19).Draw(t, "spoil metadata") == 0 {
			ts.Metadata.UnitRef = 1 << 20
		}
		req.Timeseries = append(req.Timeseries, ts)
	}
	req.Symbols = table.Symbols()
	return req
}

// toV2 carries a histogram over by its bytes: the messages agree in every field that 1.0 has.
func toV2(h prompb.Histogram, start int64) (out writev2.Histogram) {
	b, err := h.Marshal()
	if err == nil {
		err = out.Unmarshal(b)
	}
	if err != nil {
		panic(err)
	}
	out.StartTimestamp = start
	return out
}

func TestV1MeansWhatPrometheusReads(t *testing.T) {
	dict := point.NewDict(0)
	var dec remotewrite.DecoderV1
	rapid.Check(t, func(t *rapid.T) {
		body, err := genV1(t).Marshal()
		if err != nil {
			t.Fatal(err)
		}
		checkV1(t, &dec, dict, body)
	})
}

func TestV2MeansWhatPrometheusReads(t *testing.T) {
	dict := point.NewDict(0)
	var dec remotewrite.DecoderV2
	rapid.Check(t, func(t *rapid.T) {
		body, err := genV2(t).Marshal()
		if err != nil {
			t.Fatal(err)
		}
		checkV2(t, &dec, dict, body)
	})
}

type fataler interface {
	Helper()
	Fatalf(format string, args ...any)
}

// stricter lists why we refuse a body that Prometheus' decoder reads: DESIGN.md, "Differences".
func stricter(err error) bool {
	for _, reason := range []string{
		"group or unknown wire type", "this is a 2.0 message", "this is a 1.0 message", "the first symbol must be the empty string",
		"protobuf message ends early", // a packed list that runs over its end
	} {
		if strings.Contains(err.Error(), reason) {
			return true
		}
	}
	return false
}

// checkV1 compares the decoder with the reference over a body, twice: with new series and with series in the Dict.
func checkV1(t fataler, dec *remotewrite.DecoderV1, dict *point.Dict, body []byte) {
	t.Helper()
	var req prompb.WriteRequest
	theirs := req.Unmarshal(body)
	want := referenceV1(&req) // once: reducing a histogram's resolution changes the message
	for _, when := range []string{"first", "again"} {
		b := point.GetBatch(dict)
		ours := dec.Decode(body, b)
		if !agree(t, b, theirs, ours) {
			b.Put()
			continue
		}
		if diff := cmp.Diff(want, contentsOf(b)); diff != "" {
			t.Fatalf("%s: reference (-) and decoder (+) differ:\n%s", when, diff)
		}
		b.Put()
	}
}

func checkV2(t fataler, dec *remotewrite.DecoderV2, dict *point.Dict, body []byte) {
	t.Helper()
	var req writev2.Request
	theirs := req.Unmarshal(body)
	want := referenceV2(&req)
	for _, when := range []string{"first", "again"} {
		b := point.GetBatch(dict)
		ours := dec.Decode(body, b)
		if !agree(t, b, theirs, ours) {
			b.Put()
			continue
		}
		if diff := cmp.Diff(want, contentsOf(b)); diff != "" {
			t.Fatalf("%s: reference (-) and decoder (+) differ:\n%s", when, diff)
		}
		b.Put()
	}
}

// agree reports whether both accepted the body; it fails the test if one should not have, or the other should have.
func agree(t fataler, b *point.Batch, theirs, ours error) bool {
	t.Helper()
	switch {
	case ours == nil && theirs != nil:
		t.Fatalf("taken, but Prometheus says %v", theirs)
	case ours != nil && theirs == nil && !stricter(ours):
		t.Fatalf("refused with %v, but Prometheus takes it", ours)
	}
	if ours != nil {
		if fault.KindOf(ours) != fault.Invalid {
			t.Fatalf("kind %v of %v", fault.KindOf(ours), ours)
		}
		if b.Rows() != 0 || len(b.Refused) != 0 || b.RefusedRows != 0 || len(b.Metadata) != 0 || len(b.ItemRows) != 0 {
			t.Fatalf("a refused body left something behind: %+v", contentsOf(b))
		}
	}
	return ours == nil
}

func FuzzDecodeV1(f *testing.F) {
	for _, body := range goldenBodies(f, "v1") {
		f.Add(body)
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		var dec remotewrite.DecoderV1
		checkV1(t, &dec, point.NewDict(0), body)
	})
}

func FuzzDecodeV2(f *testing.F) {
	for _, body := range goldenBodies(f, "v2") {
		f.Add(body)
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		var dec remotewrite.DecoderV2
		checkV2(t, &dec, point.NewDict(0), body)
	})
}
