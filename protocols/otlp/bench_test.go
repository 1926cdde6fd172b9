package otlp_test

import (
	"fmt"
	"testing"

	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	metricspb "go.opentelemetry.io/proto/otlp/metrics/v1"
	resourcepb "go.opentelemetry.io/proto/otlp/resource/v1"
	"google.golang.org/protobuf/proto"

	"github.com/spillwaydb/spillway/protocols/cputime"
	"github.com/spillwaydb/spillway/protocols/otlp"
	"github.com/spillwaydb/spillway/protocols/point"
)

const t0 = 1_700_000_000_000_000_000

func textAttributes(pairs ...string) (kvs []*commonpb.KeyValue) {
	for i := 0; i < len(pairs); i += 2 {
		kvs = append(kvs, &commonpb.KeyValue{Key: pairs[i], Value: &commonpb.AnyValue{Value: &commonpb.AnyValue_StringValue{StringValue: pairs[i+1]}}})
	}
	return kvs
}

// benchRequest is a collector's request for one host: points data points of 20 metrics, five attributes each.
func benchRequest(t testing.TB, host, points int, kind string) []byte {
	sm := &metricspb.ScopeMetrics{Scope: &commonpb.InstrumentationScope{Name: "github.com/open-telemetry/opentelemetry-collector-contrib/receiver/hostmetricsreceiver", Version: "0.120.0"}}
	for k := range 20 {
		m := &metricspb.Metric{Name: fmt.Sprintf("system.devops.metric_%02d", k), Unit: "By", Description: "How much of it there was."}
		sum := &metricspb.Sum{AggregationTemporality: 2, IsMonotonic: true}
		hist := &metricspb.Histogram{AggregationTemporality: 2}
		exp := &metricspb.ExponentialHistogram{AggregationTemporality: 2}
		for i := range points / 20 {
			attrs := textAttributes("device", fmt.Sprintf("sd%d", i), "direction", "read", "state", "used", "mode", "rw", "mountpoint", fmt.Sprintf("/srv/volume/%04d", i))
			at := uint64(t0 + k)
			sum.DataPoints = append(sum.DataPoints, &metricspb.NumberDataPoint{Attributes: attrs, StartTimeUnixNano: t0 - 1e9, TimeUnixNano: at,
				Value: &metricspb.NumberDataPoint_AsInt{AsInt: int64(i)}})
			hist.DataPoints = append(hist.DataPoints, &metricspb.HistogramDataPoint{Attributes: attrs, StartTimeUnixNano: t0 - 1e9, TimeUnixNano: at,
				Count: 15, Sum: proto.Float64(99), BucketCounts: []uint64{1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1},
				ExplicitBounds: []float64{5, 10, 25, 50, 75, 100, 250, 500, 750, 1000, 2500, 5000, 7500, 10000}})
			exp.DataPoints = append(exp.DataPoints, &metricspb.ExponentialHistogramDataPoint{Attributes: attrs, StartTimeUnixNano: t0 - 1e9, TimeUnixNano: at,
				Count: 39, Sum: proto.Float64(99), Scale: 4, Positive: &metricspb.ExponentialHistogramDataPoint_Buckets{Offset: 17,
					BucketCounts: []uint64{1, 2, 3, 4, 5, 0, 0, 0, 0, 5, 4, 3, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}}})
		}
		switch kind {
		case "numbers":
			m.Data = &metricspb.Metric_Sum{Sum: sum}
		case "histograms":
			m.Data = &metricspb.Metric_Histogram{Histogram: hist}
		case "exponential":
			m.Data = &metricspb.Metric_ExponentialHistogram{ExponentialHistogram: exp}
		}
		sm.Metrics = append(sm.Metrics, m)
	}
	return marshal(t, &metricspb.MetricsData{ResourceMetrics: []*metricspb.ResourceMetrics{{
		Resource: &resourcepb.Resource{Attributes: textAttributes("service.namespace", "infra", "service.name", "node", "service.instance.id", fmt.Sprintf("host_%d:9100", host),
			"host.name", fmt.Sprintf("host_%d", host), "host.arch", "amd64", "os.type", "linux", "cloud.region", "eu-central-1")},
		ScopeMetrics: []*metricspb.ScopeMetrics{sm},
	}}})
}

const benchPoints = 2000

func BenchmarkKnownSeries(b *testing.B) {
	for _, kind := range []string{"numbers", "histograms", "exponential"} {
		b.Run(kind, func(b *testing.B) {
			var bodies [][]byte
			for host := range 20 {
				bodies = append(bodies, benchRequest(b, host, benchPoints, kind))
			}
			dec, d := newDecoder(b, otlp.Settings{}), point.NewDict(0)
			rows, i := 0, 0
			one := func() {
				batch := point.GetBatch(d)
				if err := dec.Decode(bodies[i%len(bodies)], otlp.Protobuf, batch); err != nil || batch.RefusedRows > 0 {
					b.Fatal(err, batch.RefusedRows)
				}
				rows = batch.Rows()
				batch.Put()
				i++
			}
			for range bodies {
				one()
			}
			b.ReportAllocs()
			b.SetBytes(int64(len(bodies[0])))
			from, n := cputime.Used(), 0
			for b.Loop() {
				one()
				n++
			}
			spent := float64(cputime.Used()-from) / float64(n)
			b.ReportMetric(spent/float64(rows), "cpu-ns/row")
			b.ReportMetric(spent/benchPoints, "cpu-ns/point")
		})
	}
}

// BenchmarkOfficial measures the official module unmarshalling the same numbers, without any of the rest.
func BenchmarkOfficial(b *testing.B) {
	body := benchRequest(b, 1, benchPoints, "numbers")
	b.ReportAllocs()
	b.SetBytes(int64(len(body)))
	from, n := cputime.Used(), 0
	for b.Loop() {
		var m metricspb.MetricsData
		if err := proto.Unmarshal(body, &m); err != nil {
			b.Fatal(err)
		}
		n++
	}
	b.ReportMetric(float64(cputime.Used()-from)/float64(n)/benchPoints, "cpu-ns/point")
}

func BenchmarkNewSeries(b *testing.B) {
	body := benchRequest(b, 1, benchPoints, "numbers")
	dec := newDecoder(b, otlp.Settings{})
	b.ReportAllocs()
	from, n := cputime.Used(), 0
	for b.Loop() {
		batch := point.GetBatch(point.NewDict(0))
		if err := dec.Decode(body, otlp.Protobuf, batch); err != nil {
			b.Fatal(err)
		}
		batch.Put()
		n++
	}
	b.ReportMetric(float64(cputime.Used()-from)/float64(n)/benchPoints, "cpu-ns/point")
}

func BenchmarkJSON(b *testing.B) {
	body := goldenBody(b, "testdata/cases/histogram_classic")
	dec, d := newDecoder(b, otlp.Settings{}), point.NewDict(0)
	b.ReportAllocs()
	b.SetBytes(int64(len(body)))
	for b.Loop() {
		batch := point.GetBatch(d)
		if err := dec.Decode(body, otlp.JSON, batch); err != nil {
			b.Fatal(err)
		}
		batch.Put()
	}
}

func TestKnownSeriesTakeNoMemory(t *testing.T) {
	for kind, perPoint := range map[string]float64{"numbers": 0, "histograms": 0, "exponential": 1} {
		body := benchRequest(t, 1, benchPoints, kind)
		dec, d := newDecoder(t, otlp.Settings{}), point.NewDict(0)
		batch := point.GetBatch(d)
		got := testing.AllocsPerRun(10, func() {
			batch.Reset()
			batch.Dict = d
			if err := dec.Decode(body, otlp.Protobuf, batch); err != nil {
				t.Fatal(err)
			}
		})
		if got > perPoint*benchPoints+8 {
			t.Errorf("%s: %v allocations for %d points", kind, got, benchPoints)
		}
		batch.Put()
	}
}
