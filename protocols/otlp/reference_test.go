package otlp_test

import (
	"cmp"
	"encoding/hex"
	"fmt"
	"math"
	"slices"
	"sort"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/prometheus/otlptranslator"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	metricspb "go.opentelemetry.io/proto/otlp/metrics/v1"

	"github.com/spillwaydb/spillway/protocols/point"
)

// reference translates a request with the default settings, from the official types and in the plainest way: no hashing,
// no reuse, no wire. It returns the rows of floats and exemplars as text, in order, and the number of points that are
// refused. Of native histograms it gives the buckets, each by its index, instead of spans.
type reference struct {
	lines   []string
	refused int
	labels  otlptranslator.LabelNamer
	metrics otlptranslator.MetricNamer

	resource map[string]string // of the resource: job and instance
}

func translate(m *metricspb.MetricsData) *reference {
	r := &reference{metrics: otlptranslator.MetricNamer{WithMetricSuffixes: true}}
	for _, rm := range m.ResourceMetrics {
		r.resourceMetrics(rm)
	}
	return r
}

func (r *reference) resourceMetrics(rm *metricspb.ResourceMetrics) {
	attrs := map[string]string{}
	for _, kv := range rm.GetResource().GetAttributes() {
		attrs[kv.Key] = plain(kv.Value)
	}
	r.resource = map[string]string{}
	if name, ok := attrs["service.name"]; ok {
		r.resource["job"] = name
		if ns, ok := attrs["service.namespace"]; ok {
			r.resource["job"] = ns + "/" + name
		}
	}
	if id, ok := attrs["service.instance.id"]; ok {
		r.resource["instance"] = id
	}
	for _, sm := range rm.ScopeMetrics {
		for _, m := range sm.Metrics {
			r.metric(m)
		}
	}
}

// plain covers the values that the generator makes.
func plain(v *commonpb.AnyValue) string {
	switch x := v.GetValue().(type) {
	case *commonpb.AnyValue_StringValue:
		return x.StringValue
	case *commonpb.AnyValue_BoolValue:
		return fmt.Sprint(x.BoolValue)
	case *commonpb.AnyValue_IntValue:
		return fmt.Sprint(x.IntValue)
	}
	return ""
}

// series gives the labels of a series as text, "" if there are none such.
func (r *reference) series(name string, attrs []*commonpb.KeyValue, extra ...string) string {
	sorted := slices.Clone(attrs)
	slices.SortStableFunc(sorted, func(a, b *commonpb.KeyValue) int { return cmp.Compare(a.Key, b.Key) })
	set := map[string]string{}
	for _, kv := range sorted {
		if kv.Key == "__name__" {
			continue
		}
		label, err := r.labels.Build(kv.Key)
		if err != nil {
			return ""
		}
		if have := set[label]; have != "" {
			set[label] = have + ";" + plain(kv.Value)
		} else {
			set[label] = plain(kv.Value)
		}
	}
	for k, v := range r.resource {
		if v != "" {
			set[k] = v
		}
	}
	for i := 0; i+1 < len(extra); i += 2 {
		set[extra[i]] = extra[i+1]
	}
	set["__name__"] = name
	var pairs []string
	for k, v := range set {
		if v != "" {
			pairs = append(pairs, k, v)
		}
	}
	return point.MakeLabels(pairs...).String()
}

func (r *reference) metric(m *metricspb.Metric) {
	tm := otlptranslator.Metric{Name: m.Name, Unit: m.Unit}
	var temporality metricspb.AggregationTemporality = metricspb.AggregationTemporality_AGGREGATION_TEMPORALITY_CUMULATIVE
	points := 0
	switch {
	case m.GetGauge() != nil:
		tm.Type, points = otlptranslator.MetricTypeGauge, len(m.GetGauge().DataPoints)
	case m.GetSum() != nil:
		tm.Type, points = otlptranslator.MetricTypeNonMonotonicCounter, len(m.GetSum().DataPoints)
		if m.GetSum().IsMonotonic {
			tm.Type = otlptranslator.MetricTypeMonotonicCounter
		}
		temporality = m.GetSum().AggregationTemporality
	case m.GetHistogram() != nil:
		tm.Type, points = otlptranslator.MetricTypeHistogram, len(m.GetHistogram().DataPoints)
		temporality = m.GetHistogram().AggregationTemporality
	case m.GetExponentialHistogram() != nil:
		tm.Type, points = otlptranslator.MetricTypeExponentialHistogram, len(m.GetExponentialHistogram().DataPoints)
		temporality = m.GetExponentialHistogram().AggregationTemporality
	case m.GetSummary() != nil:
		tm.Type, points = otlptranslator.MetricTypeSummary, len(m.GetSummary().DataPoints)
	}
	name, err := r.metrics.Build(tm)
	if err != nil || m.Name == "" || temporality != metricspb.AggregationTemporality_AGGREGATION_TEMPORALITY_CUMULATIVE {
		r.refused += points
		return
	}
	for _, p := range m.GetGauge().GetDataPoints() {
		r.number(name, p)
	}
	for _, p := range m.GetSum().GetDataPoints() {
		r.number(name, p)
	}
	for _, p := range m.GetHistogram().GetDataPoints() {
		r.histogram(name, p)
	}
	for _, p := range m.GetExponentialHistogram().GetDataPoints() {
		r.exponential(name, p)
	}
	for _, p := range m.GetSummary().GetDataPoints() {
		r.summary(name, p)
	}
}

func timely(ns uint64) bool { return ns > 0 && ns <= math.MaxInt64 }

func (r *reference) row(series string, t uint64, v float64, flags uint32) {
	text := fmt.Sprint(v)
	if flags&1 != 0 {
		text = "stale"
	}
	r.lines = append(r.lines, fmt.Sprintf("%s @%d = %s", series, t, text))
}

func (r *reference) number(name string, p *metricspb.NumberDataPoint) {
	var v float64
	valued := true
	switch x := p.Value.(type) {
	case *metricspb.NumberDataPoint_AsInt:
		v = float64(x.AsInt)
	case *metricspb.NumberDataPoint_AsDouble:
		v = x.AsDouble
	default:
		valued = p.Flags&1 != 0
	}
	series := r.series(name, p.Attributes)
	if series == "" || !timely(p.TimeUnixNano) || !valued {
		r.refused++
		return
	}
	r.row(series, p.TimeUnixNano, v, p.Flags)
	r.exemplars(p.Exemplars, p.TimeUnixNano, func(float64) string { return series })
}

func (r *reference) histogram(name string, p *metricspb.HistogramDataPoint) {
	good := timely(p.TimeUnixNano) && r.series(name, p.Attributes) != "" && sort.SliceIsSorted(p.ExplicitBounds, func(i, j int) bool { return p.ExplicitBounds[i] < p.ExplicitBounds[j] })
	for i := 1; i < len(p.ExplicitBounds); i++ {
		good = good && p.ExplicitBounds[i] != p.ExplicitBounds[i-1]
	}
	if p.Flags&1 == 0 && len(p.BucketCounts)+len(p.ExplicitBounds) > 0 {
		good = good && len(p.BucketCounts) == len(p.ExplicitBounds)+1
	}
	if !good {
		r.refused++
		return
	}
	if p.Sum != nil {
		r.row(r.series(name+"_sum", p.Attributes), p.TimeUnixNano, *p.Sum, p.Flags)
	}
	r.row(r.series(name+"_count", p.Attributes), p.TimeUnixNano, float64(p.Count), p.Flags)
	bucket := func(bound float64) string {
		return r.series(name+"_bucket", p.Attributes, "le", strconv.FormatFloat(bound, 'f', -1, 64))
	}
	below := uint64(0)
	for i, bound := range p.ExplicitBounds {
		if i < len(p.BucketCounts) {
			below += p.BucketCounts[i]
		}
		r.row(bucket(bound), p.TimeUnixNano, float64(below), p.Flags)
	}
	r.row(bucket(math.Inf(1)), p.TimeUnixNano, float64(p.Count), p.Flags)
	r.exemplars(p.Exemplars, p.TimeUnixNano, func(v float64) string {
		for _, bound := range p.ExplicitBounds {
			if v <= bound {
				return bucket(bound)
			}
		}
		return bucket(math.Inf(1))
	})
}

func (r *reference) exponential(name string, p *metricspb.ExponentialHistogramDataPoint) {
	series := r.series(name, p.Attributes)
	down := max(0, p.Scale-8)
	positive, all := indexed(p.Positive, down)
	negative, more := indexed(p.Negative, down)
	if p.Flags&1 != 0 && series != "" && timely(p.TimeUnixNano) {
		r.lines = append(r.lines, fmt.Sprintf("%s @%d = histogram stale", series, p.TimeUnixNano))
	} else if series == "" || !timely(p.TimeUnixNano) || p.Scale < -4 || !(p.ZeroThreshold >= 0) || !soundCount(p, all+more+p.ZeroCount) {
		r.refused++
		return
	} else {
		threshold := p.ZeroThreshold
		if threshold == 0 {
			threshold = 1e-128
		}
		r.lines = append(r.lines, fmt.Sprintf("%s @%d = histogram %d %v %d %d %v %v %v", series, p.TimeUnixNano, min(p.Scale, 8), p.GetSum(), p.Count, p.ZeroCount, threshold, positive, negative))
	}
	r.exemplars(p.Exemplars, p.TimeUnixNano, func(float64) string { return series })
}

func soundCount(p *metricspb.ExponentialHistogramDataPoint, buckets uint64) bool {
	if math.IsNaN(p.GetSum()) {
		return p.Count >= buckets
	}
	return p.Count == buckets
}

// indexed gives "index:count" of each bucket that is not empty, and the sum of all.
func indexed(b *metricspb.ExponentialHistogramDataPoint_Buckets, down int32) (text []string, all uint64) {
	counts := map[int64]uint64{}
	for i, c := range b.GetBucketCounts() {
		at := math.Floor(float64(int64(b.Offset)+int64(i)) / math.Exp2(float64(down)))
		counts[int64(at)+1] += c
		all += c
	}
	var at []int64
	for i, c := range counts {
		if c > 0 {
			at = append(at, i)
		}
	}
	slices.Sort(at)
	for _, i := range at {
		text = append(text, fmt.Sprintf("%d:%d", i, counts[i]))
	}
	return text, all
}

func (r *reference) summary(name string, p *metricspb.SummaryDataPoint) {
	if !timely(p.TimeUnixNano) || r.series(name, p.Attributes) == "" {
		r.refused++
		return
	}
	r.row(r.series(name+"_sum", p.Attributes), p.TimeUnixNano, p.Sum, p.Flags)
	r.row(r.series(name+"_count", p.Attributes), p.TimeUnixNano, float64(p.Count), p.Flags)
	for _, q := range p.QuantileValues {
		r.row(r.series(name, p.Attributes, "quantile", strconv.FormatFloat(q.Quantile, 'f', -1, 64)), p.TimeUnixNano, q.Value, p.Flags)
	}
}

func (r *reference) exemplars(es []*metricspb.Exemplar, at uint64, series func(float64) string) {
	for _, e := range es {
		var v float64
		switch x := e.Value.(type) {
		case *metricspb.Exemplar_AsInt:
			v = float64(x.AsInt)
		case *metricspb.Exemplar_AsDouble:
			v = x.AsDouble
		default:
			continue
		}
		t := cmp.Or(e.TimeUnixNano, at)
		if t > math.MaxInt64 || math.IsNaN(v) {
			continue
		}
		set := map[string]string{}
		runes := 0
		for _, id := range []struct {
			name  string
			bytes []byte
		}{{"trace_id", e.TraceId}, {"span_id", e.SpanId}} {
			if text := hex.EncodeToString(id.bytes); strings.Trim(text, "0") != "" {
				set[id.name] = text
				runes += len(id.name) + len(text)
			}
		}
		for _, kv := range e.FilteredAttributes {
			runes += utf8.RuneCountInString(kv.Key) + utf8.RuneCountInString(plain(kv.Value))
		}
		broken := false
		if runes <= 128 {
			seen := map[string]bool{}
			for _, kv := range e.FilteredAttributes {
				v := plain(kv.Value)
				broken = broken || v != "" && (seen[kv.Key] || kv.Key == "")
				seen[kv.Key] = seen[kv.Key] || v != ""
				if _, isID := set[kv.Key]; !isID && v != "" {
					set[kv.Key] = v
				}
			}
		}
		if broken {
			continue
		}
		var b point.LabelsBuilder
		for k, v := range set {
			b.Add([]byte(k), []byte(v))
		}
		labels, err := b.Unnamed()
		if err != nil {
			continue
		}
		r.lines = append(r.lines, fmt.Sprintf("%s @%d = exemplar %v of %v", series(v), t, v, labels))
	}
}
