package intake_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zlib"
	"github.com/klauspost/compress/zstd"
	collectorpb "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	metricspb "go.opentelemetry.io/proto/otlp/metrics/v1"
	resourcepb "go.opentelemetry.io/proto/otlp/resource/v1"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/spillwaydb/spillway/gateway/intake"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/otlp"
)

var (
	otlpProto = []string{"Content-Type", "application/x-protobuf"}
	otlpJSON  = []string{"Content-Type", "application/json"}
)

// otlpRequest is an SDK's export: one counter of the service cart.
func otlpRequest(t testing.TB, temporality metricspb.AggregationTemporality, points ...*metricspb.NumberDataPoint) []byte {
	t.Helper()
	body, err := proto.Marshal(&collectorpb.ExportMetricsServiceRequest{ResourceMetrics: []*metricspb.ResourceMetrics{{
		Resource: &resourcepb.Resource{Attributes: []*commonpb.KeyValue{text("service.name", "cart"), text("host.name", "n1")}},
		ScopeMetrics: []*metricspb.ScopeMetrics{{Metrics: []*metricspb.Metric{{
			Name: "http.requests", Data: &metricspb.Metric_Sum{Sum: &metricspb.Sum{IsMonotonic: true, AggregationTemporality: temporality, DataPoints: points}},
		}}}},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	return body
}

func text(key, value string) *commonpb.KeyValue {
	return &commonpb.KeyValue{Key: key, Value: &commonpb.AnyValue{Value: &commonpb.AnyValue_StringValue{StringValue: value}}}
}

func counted(at time.Time, n int64, attrs ...*commonpb.KeyValue) *metricspb.NumberDataPoint {
	return &metricspb.NumberDataPoint{TimeUnixNano: uint64(at.UnixNano()), Value: &metricspb.NumberDataPoint_AsInt{AsInt: n}, Attributes: attrs}
}

// otlpJSONBody is otlpRequest with one point, as a browser writes it.
func otlpJSONBody(at time.Time, n int64) string {
	return fmt.Sprintf(`{"resourceMetrics":[{"resource":{"attributes":[{"key":"service.name","value":{"stringValue":"cart"}},{"key":"host.name","value":{"stringValue":"n1"}}]},
		"scopeMetrics":[{"metrics":[{"name":"http.requests","sum":{"isMonotonic":true,"aggregationTemporality":2,"dataPoints":[{"timeUnixNano":"%d","asInt":"%d"}]}}]}]}]}`, at.UnixNano(), n)
}

const cumulative = metricspb.AggregationTemporality_AGGREGATION_TEMPORALITY_CUMULATIVE

func TestOTLP(t *testing.T) {
	f := start(t)
	want := fmt.Sprintf("{__name__=\"http_requests_total\", job=\"cart\"} 5 @%[1]d\n{__name__=\"target_info\", host_name=\"n1\", job=\"cart\"} 1 @%[1]d\n", now.UnixNano())
	body := otlpRequest(t, cumulative, counted(now, 5))
	inJSON := otlpJSONBody(now, 5)
	packer, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	var deflated bytes.Buffer
	zw := zlib.NewWriter(&deflated)
	zw.Write(body)
	zw.Close()
	gzip := []string{"Content-Encoding", "gzip"}
	for i, c := range []struct {
		path   string
		body   []byte
		header []string
		answer string
	}{
		{"/v1/metrics", body, otlpProto, ""},
		{"/api/v1/otlp/v1/metrics", gzipped(string(body)), append(gzip, otlpProto...), ""},
		{"/opentelemetry/v1/metrics", packer.EncodeAll(body, nil), append([]string{"Content-Encoding", "zstd"}, otlpProto...), ""},
		{"/v1/metrics", deflated.Bytes(), append([]string{"Content-Encoding", "deflate"}, otlpProto...), ""},
		{"/otlp/v1/metrics", []byte(inJSON), otlpJSON, "{}"},
		{"/v1/metrics", gzipped(inJSON), append(gzip, otlpJSON...), "{}"},
	} {
		table := fmt.Sprintf("t%d", i)
		a := f.do(t, "POST /t/"+table+c.path, c.body, c.header...)
		a.want(t, 200, "Content-Type: "+c.header[len(c.header)-1])
		if a.body != c.answer {
			t.Errorf("%s was answered by %q", c.path, a.body)
		}
		if got := f.memory.table(table).dump(); got != want {
			t.Errorf("%s stored %s", c.path, got)
		}
	}
	f.do(t, "POST /v1/metrics", body, otlpProto...).want(t, 200)
	f.do(t, "POST /v1/metrics", body, append(otlpProto, "X-Scope-OrgID", "team-a")...).want(t, 200)
	if f.memory.table("team-a").dump() != want || f.memory.table("default").dump() != want {
		t.Error("tables by header or default are wrong")
	}
}

func TestOTLPRefusals(t *testing.T) {
	f := start(t, func(s *intake.Settings) { s.BodyBytesMax, s.DecodedBytesMax = 64<<10, 128<<10 })
	ok := otlpRequest(t, cumulative, counted(now, 1))
	f.do(t, "POST /v1/metrics", []byte{0xff}, otlpProto...).want(t, 400, "Content-Type: application/x-protobuf", "corrupt body")
	f.do(t, "POST /v1/metrics", []byte("{"), otlpJSON...).want(t, 400, "Content-Type: application/json", `"code":3`)
	f.do(t, "POST /v1/metrics", ok, "Content-Type", "text/plain").want(t, 415, `"code":3`)
	f.do(t, "POST /v1/metrics", ok, append(otlpProto, "Content-Encoding", "br")...).want(t, 415, "Content-Type: application/x-protobuf")
	f.do(t, "POST /v1/metrics", ok, append(otlpProto, "Content-Encoding", "gzip")...).want(t, 400, "gzip")
	f.do(t, "POST /v1/metrics", make([]byte, 65<<10), otlpProto...).want(t, 413)
	f.do(t, "POST /v1/metrics", gzipped(strings.Repeat("x", 129<<10)), append(otlpProto, "Content-Encoding", "gzip")...).want(t, 413)
	f.do(t, "GET /v1/metrics", nil).want(t, 405, "Allow: POST")
	f.do(t, "POST /t/no%20name/v1/metrics", ok, otlpProto...).want(t, 400, "table name")
	f.do(t, "POST /v1/metrics", ok, append(otlpProto, intake.AckHeader, "maybe")...).want(t, 400, "use received, one or all")

	// Refusals by the decoder and by admission are reported alike, and their siblings are kept.
	f.memory.table("default").lo = now.Add(-time.Hour).UnixNano()
	a := f.do(t, "POST /v1/metrics", otlpRequest(t, cumulative,
		counted(now, 1, text("", "no name")), counted(time.Unix(5, 0), 1), counted(now, 7)), otlpProto...)
	a.want(t, 200)
	var r collectorpb.ExportMetricsServiceResponse
	if err := proto.Unmarshal([]byte(a.body), &r); err != nil {
		t.Fatal(err)
	}
	msg := r.GetPartialSuccess().GetErrorMessage()
	if n := r.GetPartialSuccess().GetRejectedDataPoints(); n != 2 || !strings.Contains(msg, "label name is empty") || !strings.Contains(msg, "1970-01-01T00:00:05Z is older than what the table keeps") {
		t.Errorf("%d points refused: %s", n, msg)
	}
	if got := f.memory.table("default").dump(); !strings.Contains(got, fmt.Sprintf("{__name__=\"http_requests_total\", job=\"cart\"} 7 @%d\n", now.UnixNano())) || strings.Contains(got, "@5000000000\n") {
		t.Errorf("stored %s", got)
	}
	delta := otlpRequest(t, metricspb.AggregationTemporality_AGGREGATION_TEMPORALITY_DELTA, counted(now, 1))
	f.do(t, "POST /v1/metrics", delta, otlpProto...).want(t, 200, "delta temporality is not taken here")

	for kind, status := range map[fault.Kind]int{
		fault.Throttled: 503, fault.Unavailable: 503, fault.Stale: 503, fault.Invalid: 400, fault.TooLarge: 413, fault.Internal: 503,
	} {
		table := "fails_" + kind.String()
		f.memory.table(table).fail(fault.Errorf(kind, "as asked"))
		a := f.do(t, "POST /t/"+table+"/v1/metrics", ok, otlpProto...)
		a.want(t, status)
		var s statuspb.Status
		if err := proto.Unmarshal([]byte(a.body), &s); err != nil || !strings.Contains(s.Message, "as asked") {
			t.Errorf("%v: %v %v", kind, err, &s)
		}
		if (a.header.Get("Retry-After") == "1") != (status == 503) {
			t.Errorf("%v: Retry-After %q", kind, a.header.Get("Retry-After"))
		}
	}
	f.memory.createOnWrite = false
	f.do(t, "POST /t/unknown/v1/metrics", ok, otlpProto...).want(t, 404, "unknown")
}

// A classic histogram of six rows is one data point, and so is a native one; target_info is none.
func TestOTLPCountsRefusedDataPointsAndNotRows(t *testing.T) {
	f := start(t)
	late := uint64(now.Add(time.Hour).UnixNano())
	point := &metricspb.HistogramDataPoint{TimeUnixNano: late, Count: 6, Sum: proto.Float64(9), BucketCounts: []uint64{1, 2, 3}, ExplicitBounds: []float64{1, 2}}
	native := &metricspb.ExponentialHistogramDataPoint{TimeUnixNano: late, Count: 1, Sum: proto.Float64(1), Positive: &metricspb.ExponentialHistogramDataPoint_Buckets{BucketCounts: []uint64{1}}}
	body, err := proto.Marshal(&collectorpb.ExportMetricsServiceRequest{ResourceMetrics: []*metricspb.ResourceMetrics{{
		Resource: &resourcepb.Resource{Attributes: []*commonpb.KeyValue{text("service.name", "cart"), text("host.name", "n1")}},
		ScopeMetrics: []*metricspb.ScopeMetrics{{Metrics: []*metricspb.Metric{
			{Name: "a", Data: &metricspb.Metric_Histogram{Histogram: &metricspb.Histogram{AggregationTemporality: cumulative, DataPoints: []*metricspb.HistogramDataPoint{point}}}},
			{Name: "b", Data: &metricspb.Metric_ExponentialHistogram{ExponentialHistogram: &metricspb.ExponentialHistogram{AggregationTemporality: cumulative, DataPoints: []*metricspb.ExponentialHistogramDataPoint{native}}}},
			{Name: "c", Data: &metricspb.Metric_Gauge{Gauge: &metricspb.Gauge{DataPoints: []*metricspb.NumberDataPoint{counted(now.Add(time.Hour), 1), counted(now, 1)}}}},
		}}},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	a := f.do(t, "POST /v1/metrics", body, otlpProto...)
	a.want(t, 200)
	var r collectorpb.ExportMetricsServiceResponse
	if err := proto.Unmarshal([]byte(a.body), &r); err != nil || r.GetPartialSuccess().GetRejectedDataPoints() != 3 {
		t.Errorf("%v %v, want 3 data points refused", err, &r)
	}
}

func TestOTLPSettings(t *testing.T) {
	f := start(t, func(s *intake.Settings) {
		s.OTLP = otlp.Settings{Translation: otlp.NoTranslation, Delta: otlp.DeltaConvert, DisableTargetInfo: true}
	})
	for i := range 3 {
		at := now.Add(time.Duration(i-3) * time.Second)
		f.do(t, "POST /t/a/v1/metrics", otlpRequest(t, metricspb.AggregationTemporality_AGGREGATION_TEMPORALITY_DELTA, counted(at, 2)), otlpProto...).want(t, 200)
	}
	got := f.memory.table("a").dump()
	for i, sum := range []int{2, 4, 6} {
		if line := fmt.Sprintf("{__name__=\"http.requests\", job=\"cart\"} %d @%d\n", sum, now.Add(time.Duration(i-3)*time.Second).UnixNano()); !strings.Contains(got, line) {
			t.Errorf("no %s in %s", line, got)
		}
	}
	if _, err := intake.New(intake.Deps{}, intake.Settings{OTLP: otlp.Settings{Delta: "maybe"}}); !fault.Is(err, fault.Invalid) {
		t.Error(err)
	}
}

// JSON needs many times its bytes while it is read, and that is counted before.
func TestOTLPInJSONIsChargedFor(t *testing.T) {
	f := start(t, func(s *intake.Settings) {
		s.BodyBytesMax, s.DecodedBytesMax, s.InFlightBytesMax = 1<<20, 1<<20, 3<<20
	})
	f.do(t, "POST /v1/metrics", []byte(`{"resourceMetrics":[`+strings.Repeat("{},", 100_000)+`{}]}`), otlpJSON...).want(t, 413, "smaller pieces")
	f.do(t, "POST /v1/metrics", []byte(otlpJSONBody(now, 1)), otlpJSON...).want(t, 200)
}
