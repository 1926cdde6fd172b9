package remotewrite_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/prompb"
	writev2 "github.com/prometheus/prometheus/prompb/io/prometheus/write/v2"

	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/protocols/remotewrite"
)

var update = flag.Bool("update", false, "write the golden requests and what they mean anew")

// decoder is the interface of both versions.
type decoder interface {
	Decode(body []byte, b *point.Batch) error
	Taken() remotewrite.Written
}

func newDecoder(version string) decoder {
	if version == "v1" {
		return new(remotewrite.DecoderV1)
	}
	return new(remotewrite.DecoderV2)
}

// TestGoldenRequests decodes requests that were marshalled once by Prometheus' own code and lie in testdata:
// testdata/<version>/<case>/in.bin is the protobuf, want.txt its meaning.
func TestGoldenRequests(t *testing.T) {
	if *update {
		writeGolden(t)
	}
	for _, version := range []string{"v1", "v2"} {
		dirs, _ := filepath.Glob(filepath.Join("testdata", version, "*"))
		if len(dirs) == 0 {
			t.Fatalf("no golden requests of %s", version)
		}
		for _, dir := range dirs {
			t.Run(version+"/"+filepath.Base(dir), func(t *testing.T) { checkGolden(t, newDecoder(version), dir) })
		}
	}
}

func checkGolden(t *testing.T, dec decoder, dir string) {
	body, err := os.ReadFile(filepath.Join(dir, "in.bin"))
	if err != nil {
		t.Fatal(err)
	}
	b := point.GetBatch(point.NewDict(0))
	defer b.Put()
	got := explain(b, dec.Decode(body, b), dec)
	file := filepath.Join(dir, "want.txt")
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
}

// explain lists the result of decoding a body, line by line.
func explain(b *point.Batch, err error, dec decoder) string {
	var s strings.Builder
	if err != nil {
		fmt.Fprintf(&s, "error      %v\n", err)
	}
	for i, id := range b.IDs {
		fmt.Fprintf(&s, "sample     %v @%d = %v   (item %d)\n", b.Dict.Labels(id), b.Times[i], b.Values[i], b.Item(i))
	}
	for _, h := range b.Hists {
		ih, fh, err := point.DecodeHistogram(h.H)
		switch {
		case err != nil:
			fmt.Fprintf(&s, "histogram  %v\n", err)
		case ih != nil:
			fmt.Fprintf(&s, "histogram  %v @%d = %v %v\n", b.Dict.Labels(h.ID), h.Time, ih, ih.CounterResetHint)
		default:
			fmt.Fprintf(&s, "histogram  %v @%d = %v %v (float)\n", b.Dict.Labels(h.ID), h.Time, fh, fh.CounterResetHint)
		}
	}
	for _, e := range b.Exemplars {
		fmt.Fprintf(&s, "exemplar   %v @%d = %v of %v\n", b.Dict.Labels(e.ID), e.Time, e.Value, e.Labels)
	}
	for _, m := range b.Metadata {
		fmt.Fprintf(&s, "metadata   %s is a %s in %q: %q\n", m.Metric, m.Type, m.Unit, m.Help)
	}
	for _, r := range b.Refused {
		fmt.Fprintf(&s, "refused    item %d %s: %s (%v)\n", r.Item, r.Text, r.Reason, r.Kind)
	}
	fmt.Fprintf(&s, "taken      %+v, %d rows refused\n", dec.Taken(), b.RefusedRows)
	return s.String()
}

// goldenBodies gives the golden requests of a version by case.
func goldenBodies(t testing.TB, version string) map[string][]byte {
	t.Helper()
	files, _ := filepath.Glob(filepath.Join("testdata", version, "*", "in.bin"))
	bodies := map[string][]byte{}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		bodies[filepath.Base(filepath.Dir(f))] = b
	}
	if len(bodies) == 0 {
		t.Fatalf("no golden requests of %s", version)
	}
	return bodies
}

const t0 = 1_700_000_000_000 // milliseconds

func writeGolden(t *testing.T) {
	for name, req := range goldenV1() {
		body, err := req.Marshal()
		putGolden(t, "v1", name, body, err)
	}
	for name, req := range goldenV2() {
		body, err := req.Marshal()
		if name == "created_timestamp" {
			body = withCreated(t, req, t0-60_000)
		}
		putGolden(t, "v2", name, body, err)
	}
}

func putGolden(t *testing.T, version, name string, body []byte, err error) {
	dir := filepath.Join("testdata", version, name)
	if err == nil {
		err = os.MkdirAll(dir, 0o755)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "in.bin"), body, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func v1Labels(pairs ...string) (ls []prompb.Label) {
	for i := 0; i < len(pairs); i += 2 {
		ls = append(ls, prompb.Label{Name: pairs[i], Value: pairs[i+1]})
	}
	return ls
}

func goldenV1() map[string]*prompb.WriteRequest {
	up := v1Labels("__name__", "up", "instance", "10.0.0.1:9090", "job", "api")
	return map[string]*prompb.WriteRequest{
		"samples": {Timeseries: []prompb.TimeSeries{
			{Labels: up, Samples: []prompb.Sample{{Value: 1, Timestamp: t0}, {Value: 0, Timestamp: t0 + 15_000}}},
			{Labels: v1Labels("job", "api", "__name__", "unsorted_total"), Samples: []prompb.Sample{{Value: 12.5, Timestamp: -1}}},
		}},
		"histograms": {Timeseries: []prompb.TimeSeries{{
			Labels: v1Labels("__name__", "rpc_seconds"),
			Histograms: []prompb.Histogram{
				{
					Count: &prompb.Histogram_CountInt{CountInt: 7}, Sum: 3.25, Schema: 3, ZeroThreshold: 1e-128,
					ZeroCount:     &prompb.Histogram_ZeroCountInt{ZeroCountInt: 1},
					PositiveSpans: []prompb.BucketSpan{{Offset: -2, Length: 2}, {Offset: 3, Length: 1}}, PositiveDeltas: []int64{1, 1, -1},
					NegativeSpans: []prompb.BucketSpan{{Offset: 0, Length: 1}}, NegativeDeltas: []int64{2},
					ResetHint: prompb.Histogram_YES, Timestamp: t0,
				},
				{
					Count: &prompb.Histogram_CountFloat{CountFloat: 2.5}, Sum: 1, Schema: -53, CustomValues: []float64{0.1, 1, 10},
					PositiveSpans: []prompb.BucketSpan{{Offset: 1, Length: 2}}, PositiveCounts: []float64{1.5, 1},
					ResetHint: prompb.Histogram_GAUGE, Timestamp: t0 + 15_000,
				},
				{Count: &prompb.Histogram_CountInt{CountInt: 9}, Timestamp: t0 + 30_000}, // no buckets for nine observations
			},
		}}},
		"exemplars_and_metadata": {
			Timeseries: []prompb.TimeSeries{{
				Labels: up, Samples: []prompb.Sample{{Value: 1, Timestamp: t0}},
				Exemplars: []prompb.Exemplar{{Labels: v1Labels("trace_id", "abc"), Value: 0.5, Timestamp: t0 - 1}, {Value: 7}},
			}},
			Metadata: []prompb.MetricMetadata{{Type: prompb.MetricMetadata_GAUGE, MetricFamilyName: "up", Help: "Whether it answers.", Unit: ""}},
		},
		"metadata_alone": {Metadata: []prompb.MetricMetadata{
			{Type: prompb.MetricMetadata_COUNTER, MetricFamilyName: "http_requests_total", Help: "Requests.", Unit: "requests"},
			{Help: "of nothing"},
		}},
		"bad_series_good_siblings": {Timeseries: []prompb.TimeSeries{
			{Labels: v1Labels("__name__", "a", "x", "1", "x", "2"), Samples: []prompb.Sample{{Value: 1, Timestamp: t0}}},
			{Labels: up, Samples: []prompb.Sample{{Value: 1, Timestamp: t0}, {Value: 1, Timestamp: 1 << 62}}},
			{Labels: v1Labels("job", "api"), Samples: []prompb.Sample{{Value: 1, Timestamp: t0}, {Value: 2, Timestamp: t0}}},
			{Labels: v1Labels("__name__", "b", "bytes", "\xff\xfe"), Samples: []prompb.Sample{{Value: 1, Timestamp: t0}}},
		}},
	}
}

func goldenV2() map[string]*writev2.Request {
	symbols := []string{"", "__name__", "up", "job", "api", "trace_id", "abc", "Whether it answers.", "rpc_seconds", "seconds"}
	hist := goldenV1()["histograms"].Timeseries[0].Histograms
	return map[string]*writev2.Request{
		"samples": {Symbols: symbols, Timeseries: []writev2.TimeSeries{{
			LabelsRefs: []uint32{1, 2, 3, 4},
			Samples:    []writev2.Sample{{Value: 1, Timestamp: t0, StartTimestamp: t0 - 60_000}, {Timestamp: t0 + 15_000}},
			Exemplars:  []writev2.Exemplar{{LabelsRefs: []uint32{5, 6}, Value: 0.5, Timestamp: t0 - 1}},
			Metadata:   writev2.Metadata{Type: writev2.Metadata_METRIC_TYPE_GAUGE, HelpRef: 7},
		}}},
		"histograms": {Symbols: symbols, Timeseries: []writev2.TimeSeries{{
			LabelsRefs: []uint32{1, 8}, Histograms: []writev2.Histogram{toV2(hist[0], t0-60_000), toV2(hist[1], 0)},
			Metadata: writev2.Metadata{Type: writev2.Metadata_METRIC_TYPE_HISTOGRAM, UnitRef: 9},
		}}},
		"bad_refs": {Symbols: symbols, Timeseries: []writev2.TimeSeries{
			{LabelsRefs: []uint32{1, 99}, Samples: []writev2.Sample{{Value: 1, Timestamp: t0}}},
			{LabelsRefs: []uint32{1, 2, 3}, Samples: []writev2.Sample{{Value: 1, Timestamp: t0}}},
			{LabelsRefs: []uint32{1, 2}, Samples: []writev2.Sample{{Value: 1, Timestamp: t0}}, Exemplars: []writev2.Exemplar{{LabelsRefs: []uint32{5, 77}}}},
			{LabelsRefs: []uint32{1, 2}, Samples: []writev2.Sample{{Value: 2, Timestamp: t0}}, Metadata: writev2.Metadata{HelpRef: 50}},
		}},
		"neither_and_both": {Symbols: symbols, Timeseries: []writev2.TimeSeries{
			{LabelsRefs: []uint32{1, 2}},
			{LabelsRefs: []uint32{1, 8}, Samples: []writev2.Sample{{Value: 1, Timestamp: t0}}, Histograms: []writev2.Histogram{toV2(hist[0], 0)}},
		}},
		"exemplars_alone": {Symbols: symbols, Timeseries: []writev2.TimeSeries{
			{LabelsRefs: []uint32{1, 2, 3, 4}, Exemplars: []writev2.Exemplar{{LabelsRefs: []uint32{5, 6}, Value: 0.5, Timestamp: t0}}},
			{LabelsRefs: []uint32{1, 8}, Samples: []writev2.Sample{{Value: 1, Timestamp: t0}}},
			{LabelsRefs: []uint32{1, 8}, Exemplars: []writev2.Exemplar{{LabelsRefs: []uint32{5, 6}, Value: 2, Timestamp: t0}}},
		}},
		"created_timestamp": {Symbols: symbols, Timeseries: []writev2.TimeSeries{
			{LabelsRefs: []uint32{1, 2}, Samples: []writev2.Sample{{Value: 5, Timestamp: t0}}},
		}},
		"no_empty_symbol": {Symbols: []string{"__name__", "up"}, Timeseries: []writev2.TimeSeries{
			{LabelsRefs: []uint32{0, 1}, Samples: []writev2.Sample{{Value: 5, Timestamp: t0}}},
		}},
	}
}
