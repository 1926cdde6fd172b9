package otlp_test

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/prometheus/model/histogram"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	metricspb "go.opentelemetry.io/proto/otlp/metrics/v1"
	resourcepb "go.opentelemetry.io/proto/otlp/resource/v1"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/spillwaydb/spillway/protocols/otlp"
	"github.com/spillwaydb/spillway/protocols/point"
)

// The generator draws small requests in which names, values and bounds often coincide.

func attributes(t *rapid.T) (kvs []*commonpb.KeyValue) {
	for range rapid.IntRange(0, 3).Draw(t, "attributes") {
		kv := &commonpb.KeyValue{Key: rapid.SampledFrom([]string{"a.b", "a_b", "c", "service.name", "job", "le", "trace_id", "", "1x", "__name__", "ü"}).Draw(t, "key")}
		switch rapid.IntRange(0, 5).Draw(t, "type of value") {
		case 0:
			kv.Value = &commonpb.AnyValue{Value: &commonpb.AnyValue_IntValue{IntValue: rapid.Int64().Draw(t, "int")}}
		case 1:
			kv.Value = &commonpb.AnyValue{Value: &commonpb.AnyValue_BoolValue{BoolValue: rapid.Bool().Draw(t, "bool")}}
		case 2:
		default:
			kv.Value = &commonpb.AnyValue{Value: &commonpb.AnyValue_StringValue{StringValue: rapid.SampledFrom([]string{"x", "y", "", strings.Repeat("long", 40)}).Draw(t, "string")}}
		}
		kvs = append(kvs, kv)
	}
	return kvs
}

func resourceAttributes(t *rapid.T) (kvs []*commonpb.KeyValue) {
	for _, key := range []string{"service.name", "service.namespace", "service.instance.id"} {
		if rapid.Bool().Draw(t, key) {
			kvs = append(kvs, &commonpb.KeyValue{Key: key, Value: &commonpb.AnyValue{Value: &commonpb.AnyValue_StringValue{StringValue: rapid.SampledFrom([]string{"x", "y", ""}).Draw(t, "string")}}})
		}
	}
	return kvs
}

func float(t *rapid.T) float64 {
	return rapid.OneOf(rapid.Float64(), rapid.SampledFrom([]float64{0, 1, math.NaN(), math.Inf(1), 2.5})).Draw(t, "float")
}

func nanos(t *rapid.T) uint64 {
	return rapid.SampledFrom([]uint64{1_700_000_000_000_000_000, 1_700_000_000_000_000_001, 0, math.MaxUint64, 1, math.MaxInt64}).Draw(t, "time")
}

func flags(t *rapid.T) uint32 { return rapid.SampledFrom([]uint32{0, 0, 0, 1, 2}).Draw(t, "flags") }

func exemplars(t *rapid.T) (es []*metricspb.Exemplar) {
	for range rapid.IntRange(0, 2).Draw(t, "exemplars") {
		e := &metricspb.Exemplar{TimeUnixNano: nanos(t), FilteredAttributes: attributes(t)}
		switch rapid.IntRange(0, 4).Draw(t, "value of exemplar") {
		case 0:
		case 1:
			e.Value = &metricspb.Exemplar_AsInt{AsInt: rapid.Int64().Draw(t, "int")}
		default:
			e.Value = &metricspb.Exemplar_AsDouble{AsDouble: float(t)}
		}
		e.TraceId = rapid.SampledFrom([][]byte{nil, make([]byte, 16), []byte("0123456789abcdef")}).Draw(t, "trace")
		e.SpanId = rapid.SampledFrom([][]byte{nil, make([]byte, 8), []byte("01234567")}).Draw(t, "span")
		es = append(es, e)
	}
	return es
}

func numbers(t *rapid.T) (ps []*metricspb.NumberDataPoint) {
	for range rapid.IntRange(0, 3).Draw(t, "numbers") {
		p := &metricspb.NumberDataPoint{Attributes: attributes(t), TimeUnixNano: nanos(t), StartTimeUnixNano: nanos(t), Flags: flags(t), Exemplars: exemplars(t)}
		switch rapid.IntRange(0, 4).Draw(t, "type of number") {
		case 0:
		case 1:
			p.Value = &metricspb.NumberDataPoint_AsInt{AsInt: rapid.Int64().Draw(t, "int")}
		default:
			p.Value = &metricspb.NumberDataPoint_AsDouble{AsDouble: float(t)}
		}
		ps = append(ps, p)
	}
	return ps
}

func maybe(t *rapid.T) *float64 {
	if rapid.Bool().Draw(t, "has sum") {
		return proto.Float64(float(t))
	}
	return nil
}

func histograms(t *rapid.T) (ps []*metricspb.HistogramDataPoint) {
	for range rapid.IntRange(0, 2).Draw(t, "histograms") {
		p := &metricspb.HistogramDataPoint{Attributes: attributes(t), TimeUnixNano: nanos(t), Flags: flags(t), Exemplars: exemplars(t),
			Count: rapid.Uint64().Draw(t, "count"), Sum: maybe(t), Min: maybe(t)}
		p.ExplicitBounds = rapid.SampledFrom([][]float64{nil, {0}, {-1, 0.5, 10}, {1, 1}, {2, 1}}).Draw(t, "bounds")
		n := len(p.ExplicitBounds) + rapid.SampledFrom([]int{1, 1, 1, 0, -len(p.ExplicitBounds)}).Draw(t, "counts beyond bounds")
		for range n {
			p.BucketCounts = append(p.BucketCounts, rapid.Uint64().Draw(t, "in bucket"))
		}
		ps = append(ps, p)
	}
	return ps
}

func bucketsOf(t *rapid.T) *metricspb.ExponentialHistogramDataPoint_Buckets {
	if rapid.Bool().Draw(t, "no buckets") {
		return nil
	}
	return &metricspb.ExponentialHistogramDataPoint_Buckets{
		Offset:       rapid.Int32Range(-50, 50).Draw(t, "offset"),
		BucketCounts: rapid.SliceOfN(rapid.SampledFrom([]uint64{0, 0, 0, 1, 2, 300}), 0, 12).Draw(t, "buckets"),
	}
}

func exponentials(t *rapid.T) (ps []*metricspb.ExponentialHistogramDataPoint) {
	for range rapid.IntRange(0, 2).Draw(t, "exponential histograms") {
		p := &metricspb.ExponentialHistogramDataPoint{Attributes: attributes(t), TimeUnixNano: nanos(t), Flags: flags(t), Exemplars: exemplars(t),
			Sum: maybe(t), Scale: rapid.Int32Range(-5, 14).Draw(t, "scale"), ZeroCount: rapid.Uint64Range(0, 3).Draw(t, "zeros"),
			ZeroThreshold: rapid.SampledFrom([]float64{0, 0.5, -1, math.NaN()}).Draw(t, "threshold"), Positive: bucketsOf(t), Negative: bucketsOf(t)}
		p.Count = p.ZeroCount + uint64(rapid.SampledFrom([]int{0, 0, 0, 1}).Draw(t, "too many"))
		for _, c := range append(slices.Clone(p.GetPositive().GetBucketCounts()), p.GetNegative().GetBucketCounts()...) {
			p.Count += c
		}
		ps = append(ps, p)
	}
	return ps
}

func summaries(t *rapid.T) (ps []*metricspb.SummaryDataPoint) {
	for range rapid.IntRange(0, 2).Draw(t, "summaries") {
		p := &metricspb.SummaryDataPoint{Attributes: attributes(t), TimeUnixNano: nanos(t), Flags: flags(t), Count: rapid.Uint64().Draw(t, "count"), Sum: float(t)}
		for _, q := range rapid.SampledFrom([][]float64{nil, {0, 0.5, 1}}).Draw(t, "quantiles") {
			p.QuantileValues = append(p.QuantileValues, &metricspb.SummaryDataPoint_ValueAtQuantile{Quantile: q, Value: float(t)})
		}
		ps = append(ps, p)
	}
	return ps
}

func genMetric(t *rapid.T) *metricspb.Metric {
	m := &metricspb.Metric{
		Name:        rapid.SampledFrom([]string{"http.requests", "http_requests", "x", "", "..."}).Draw(t, "name"),
		Unit:        rapid.SampledFrom([]string{"", "1", "s", "By/s", "{things}"}).Draw(t, "unit"),
		Description: rapid.SampledFrom([]string{"", "help"}).Draw(t, "help"),
	}
	temporality := metricspb.AggregationTemporality(rapid.SampledFrom([]int32{2, 2, 2, 1, 0}).Draw(t, "temporality"))
	switch rapid.IntRange(0, 4).Draw(t, "kind") {
	case 0:
		m.Data = &metricspb.Metric_Gauge{Gauge: &metricspb.Gauge{DataPoints: numbers(t)}}
	case 1:
		m.Data = &metricspb.Metric_Sum{Sum: &metricspb.Sum{DataPoints: numbers(t), AggregationTemporality: temporality, IsMonotonic: rapid.Bool().Draw(t, "monotonic")}}
	case 2:
		m.Data = &metricspb.Metric_Histogram{Histogram: &metricspb.Histogram{DataPoints: histograms(t), AggregationTemporality: temporality}}
	case 3:
		m.Data = &metricspb.Metric_ExponentialHistogram{ExponentialHistogram: &metricspb.ExponentialHistogram{DataPoints: exponentials(t), AggregationTemporality: temporality}}
	default:
		m.Data = &metricspb.Metric_Summary{Summary: &metricspb.Summary{DataPoints: summaries(t)}}
	}
	return m
}

func genRequest(t *rapid.T) *metricspb.MetricsData {
	req := &metricspb.MetricsData{}
	for range rapid.IntRange(0, 2).Draw(t, "resources") {
		rm := &metricspb.ResourceMetrics{Resource: &resourcepb.Resource{Attributes: resourceAttributes(t)}}
		for range rapid.IntRange(0, 2).Draw(t, "scopes") {
			sm := &metricspb.ScopeMetrics{Scope: &commonpb.InstrumentationScope{Name: "scope"}}
			for range rapid.IntRange(0, 2).Draw(t, "metrics") {
				sm.Metrics = append(sm.Metrics, genMetric(t))
			}
			rm.ScopeMetrics = append(rm.ScopeMetrics, sm)
		}
		req.ResourceMetrics = append(req.ResourceMetrics, rm)
	}
	return req
}

// rowsOf gives the content of a batch in the reference's notation, sorted.
func rowsOf(b *point.Batch) (lines []string) {
	for i, id := range b.IDs {
		lines = append(lines, fmt.Sprintf("%v @%d = %s", b.Dict.Labels(id), b.Times[i], valueText(b.Values[i])))
	}
	for _, h := range b.Hists {
		ih, _, err := point.DecodeHistogram(h.H)
		text := fmt.Sprint(err)
		if point.IsStaleHistogram(h.H) {
			text = "histogram stale"
		} else if err == nil {
			text = fmt.Sprintf("histogram %d %v %d %d %v %v %v", ih.Schema, ih.Sum, ih.Count, ih.ZeroCount, ih.ZeroThreshold,
				indexedSpans(ih.PositiveSpans, ih.PositiveBuckets), indexedSpans(ih.NegativeSpans, ih.NegativeBuckets))
		}
		lines = append(lines, fmt.Sprintf("%v @%d = %s", b.Dict.Labels(h.ID), h.Time, text))
	}
	for _, e := range b.Exemplars {
		lines = append(lines, fmt.Sprintf("%v @%d = exemplar %v of %v", b.Dict.Labels(e.ID), e.Time, e.Value, e.Labels))
	}
	slices.Sort(lines)
	return lines
}

func indexedSpans(spans []histogram.Span, deltas []int64) (text []string) {
	at, count := int32(0), int64(0)
	for i, s := range spans {
		if at += s.Offset; i == 0 {
			at = s.Offset
		}
		for range s.Length {
			if count, deltas = count+deltas[0], deltas[1:]; count > 0 {
				text = append(text, fmt.Sprintf("%d:%d", at, count))
			}
			at++
		}
	}
	return text
}

// TestDecoderMeansWhatTheOfficialTypesMean decodes random requests twice, with new and with seen series, and as JSON.
func TestDecoderMeansWhatTheOfficialTypesMean(t *testing.T) {
	dec := newDecoder(t, otlp.Settings{DisableTargetInfo: true})
	dict := point.NewDict(0)
	rapid.Check(t, func(rt *rapid.T) {
		req := genRequest(rt)
		wire, err := proto.Marshal(req)
		if err != nil {
			rt.Fatal(err)
		}
		ref := translate(req)
		slices.Sort(ref.lines)
		for range 2 {
			check(rt, dec, dict, wire, otlp.Protobuf, ref)
		}
		text, err := protojson.Marshal(req)
		if err != nil {
			rt.Fatal(err)
		}
		for _, rm := range req.ResourceMetrics { // protojson writes ids as base64: OTLP's JSON would not
			for _, sm := range rm.ScopeMetrics {
				for _, m := range sm.Metrics {
					if strings.Contains(m.String(), "trace_id") || strings.Contains(m.String(), "span_id") {
						return
					}
				}
			}
		}
		check(rt, dec, dict, text, otlp.JSON, ref)
	})
}

func check(t *rapid.T, dec *otlp.Decoder, dict *point.Dict, body []byte, f otlp.Format, ref *reference) {
	b := point.GetBatch(dict)
	defer b.Put()
	if err := dec.Decode(body, f, b); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(ref.lines, rowsOf(b)); diff != "" {
		t.Fatalf("format %d: %s", f, diff)
	}
	if b.RefusedRows != ref.refused {
		t.Fatalf("%d points refused, want %d: %v", b.RefusedRows, ref.refused, b.Refused)
	}
}
