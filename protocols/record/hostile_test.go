package record_test

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/golang/snappy"
	"github.com/klauspost/compress/zstd"
	"github.com/prometheus/prometheus/prompb"
	writev2 "github.com/prometheus/prometheus/prompb/io/prometheus/write/v2"
	metricspb "go.opentelemetry.io/proto/otlp/metrics/v1"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/protocols/record"
)

type sample struct {
	value   []byte
	options record.Options
}

func rw1(t testing.TB) []byte {
	w := prompb.WriteRequest{Timeseries: []prompb.TimeSeries{
		{Labels: []prompb.Label{{Name: "__name__", Value: "up"}, {Name: "job", Value: "node"}}, Samples: []prompb.Sample{{Value: 1, Timestamp: 1772366400000}}},
		{Labels: []prompb.Label{{Name: "__name__", Value: "up"}, {Name: "job", Value: "web"}}, Samples: []prompb.Sample{{Value: 0, Timestamp: 1772366400000}}},
	}}
	b, err := w.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func rw2(t testing.TB) []byte {
	w := writev2.Request{Symbols: []string{"", "__name__", "up", "job", "node"}, Timeseries: []writev2.TimeSeries{
		{LabelsRefs: []uint32{1, 2, 3, 4}, Samples: []writev2.Sample{{Value: 1, Timestamp: 1772366400000}}},
	}}
	b, err := w.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func gzipped(b []byte) []byte {
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	w.Write(b)
	w.Close()
	return out.Bytes()
}

func zstded(t testing.TB, b []byte) []byte {
	w, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	return w.EncodeAll(b, nil)
}

const (
	lineSample     = "cpu,host=a usage_user=1.5,usage_idle=98i 1772366400000000000\nmem,host=a used=12i\n"
	telegrafSample = `{"metrics":[{"fields":{"usage_user":1.5,"usage_idle":98,"note":"ho\u00fc"},"name":"cpu","tags":{"host":"a"},"timestamp":1772366400},` +
		`{"fields":{"used":12},"name":"mem","tags":{"host":"a\tb"},"timestamp":1772366400}]}`
	promSample = `{"timestamp":"2026-03-01T12:00:00Z","value":"0.5","name":"up","labels":{"__name__":"up","job":"node"}}` + "\n"
)

const otlpSample = `{"resourceMetrics":[{"resource":{"attributes":[{"key":"service.name","value":{"stringValue":"shop"}}]},"scopeMetrics":[{"metrics":[` +
	`{"name":"queue.length","gauge":{"dataPoints":[{"timeUnixNano":"1772366400000000000","asDouble":3.5,"attributes":[{"key":"q","value":{"stringValue":"a"}}]}]}}]}]}]}`

func otlpProtobuf(t testing.TB) []byte {
	var m metricspb.MetricsData // the same fields as ExportMetricsServiceRequest
	if err := protojson.Unmarshal([]byte(otlpSample), &m); err != nil {
		t.Fatal(err)
	}
	b, err := proto.Marshal(&m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// samples are good records, one of every format and packing.
func samples(t testing.TB) map[string]sample {
	return map[string]sample{
		"line":                  {[]byte(lineSample), record.Options{}},
		"line, gzip":            {gzipped([]byte(lineSample)), record.Options{}},
		"line, zstd":            {zstded(t, []byte(lineSample)), record.Options{}},
		"line, snappy":          {snappy.Encode(nil, []byte(lineSample)), record.Options{Packing: record.Snappy}},
		"remote write 1":        {rw1(t), record.Options{Format: record.RemoteWrite}},
		"remote write 1 snappy": {snappy.Encode(nil, rw1(t)), record.Options{Format: record.RemoteWrite}},
		"remote write 1 zstd":   {zstded(t, rw1(t)), record.Options{Format: record.RemoteWrite}},
		"remote write 1 told":   {snappy.Encode(nil, rw1(t)), record.Options{Format: record.RemoteWrite1, Packing: record.Snappy}},
		"remote write 2":        {rw2(t), record.Options{Format: record.RemoteWrite}},
		"remote write 2 snappy": {snappy.Encode(nil, rw2(t)), record.Options{Format: record.RemoteWrite}},
		"remote write 2 told":   {rw2(t), record.Options{Format: record.RemoteWrite2, Packing: record.Plain}},
		"telegraf":              {[]byte(telegrafSample), record.Options{Format: record.TelegrafJSON}},
		"otlp":                  {otlpProtobuf(t), record.Options{Format: record.OTLP}},
		"otlp, json":            {[]byte(otlpSample), record.Options{Format: record.OTLP}},
		"prometheus json":       {[]byte(promSample), record.Options{Format: record.PrometheusJSON}},
	}
}

func TestRemoteWriteIsFoundOut(t *testing.T) {
	all := samples(t)
	read := func(name string) string {
		c, b := all[name], point.GetBatch(point.NewDict(0))
		err := decoder(t).Decode(c.value, &c.options, at, b)
		if err != nil || len(b.IDs) == 0 {
			t.Fatalf("%s: %v", name, err)
		}
		return dump(b, nil)
	}
	for _, same := range [][]string{
		{"remote write 1", "remote write 1 snappy", "remote write 1 zstd", "remote write 1 told"},
		{"remote write 2", "remote write 2 snappy", "remote write 2 told"},
		{"otlp", "otlp, json"},
		{"line", "line, gzip", "line, zstd", "line, snappy"},
	} {
		for _, name := range same[1:] {
			if a, b := read(same[0]), read(name); a != b {
				t.Errorf("%s:\n%s%s:\n%s", same[0], a, name, b)
			}
		}
	}
}

// TestSnappyIsNeverTakenForProtobuf tries every length of a name, hence every first byte of a block.
func TestSnappyIsNeverTakenForProtobuf(t *testing.T) {
	d := decoder(t)
	for n := range 3000 {
		w := prompb.WriteRequest{Timeseries: []prompb.TimeSeries{{
			Labels:  []prompb.Label{{Name: "__name__", Value: "m"}, {Name: "x", Value: strings.Repeat("v", n+1)}},
			Samples: []prompb.Sample{{Value: 1, Timestamp: 1}},
		}}}
		plain, _ := w.Marshal()
		for _, value := range [][]byte{plain, snappy.Encode(nil, plain)} {
			b := point.GetBatch(point.NewDict(0))
			if err := d.Decode(value, &record.Options{Format: record.RemoteWrite}, at, b); err != nil || len(b.IDs) != 1 {
				t.Fatalf("%d bytes of value: %v, %d rows", n+1, err, len(b.IDs))
			}
			b.Put()
		}
	}
}

// TestCutAnywhere cuts every sample at every byte. Line protocol is text in which some cuts are good lines; a format
// with an end of its own must refuse them.
func TestCutAnywhere(t *testing.T) {
	for name, c := range samples(t) {
		d := decoder(t)
		for n := 1; n < len(c.value); n++ {
			b := point.GetBatch(point.NewDict(0))
			err := d.Decode(c.value[:n], &c.options, at, b)
			if err != nil && len(b.IDs)+len(b.Refused) > 0 {
				t.Fatalf("%s cut at %d: an error and rows", name, n)
			}
			if k := fault.KindOf(err); err != nil && k != fault.Invalid && k != fault.TooLarge {
				t.Fatalf("%s cut at %d: kind %v: %v", name, n, k, err)
			}
			text := c.options.Format == record.Line && c.options.Packing == record.Detect
			json := c.options.Format == record.PrometheusJSON && n == len(c.value)-1 // the last byte is a new line
			if whole := err == nil && b.RefusedRows == 0; whole && !text && !json && !strings.HasPrefix(name, "remote write") && name != "otlp" {
				t.Errorf("%s cut at %d was taken as whole", name, n)
			}
		}
	}
}

func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

func TestBombsStaySmall(t *testing.T) {
	zeros := make([]byte, 48<<20)
	lie := append([]byte{0x80, 0x80, 0x80, 0x18}, 0, 0) // snappy that declares 48 MiB
	for name, c := range map[string]sample{
		"gzip":         {gzipped(zeros), record.Options{}},
		"zstd":         {zstded(t, zeros), record.Options{}},
		"snappy":       {snappy.Encode(nil, zeros), record.Options{Format: record.RemoteWrite}},
		"snappy, lie":  {lie, record.Options{Format: record.RemoteWrite}},
		"deep arrays":  {bytes.Repeat([]byte("["), 8<<20), record.Options{Format: record.TelegrafJSON}},
		"deep objects": {bytes.Repeat([]byte(`{"a":`), 2<<20), record.Options{Format: record.PrometheusJSON}},
	} {
		d := decoder(t, func(s *record.Settings) { s.DecodedBytesMax = 32 << 20 })
		b := point.GetBatch(point.NewDict(0))
		var err error
		got := allocated(func() { err = d.Decode(c.value, &c.options, at, b) })
		if k := fault.KindOf(err); k != fault.TooLarge && k != fault.Invalid {
			t.Errorf("%s: %v", name, err)
		}
		if most := uint64(32 << 20); got > most {
			t.Errorf("%s took %d bytes, at most %d are reasonable", name, got, most)
		}
	}
}

func TestValuesOverTheLimitAreTooLarge(t *testing.T) {
	d := decoder(t, func(s *record.Settings) { s.DecodedBytesMax = 1000 })
	long := []byte("m v=1 " + strings.Repeat("1", 1000))
	for name, c := range map[string]sample{
		"plain":  {long, record.Options{}},
		"gzip":   {gzipped(long), record.Options{}},
		"zstd":   {zstded(t, long), record.Options{}},
		"snappy": {snappy.Encode(nil, long), record.Options{Packing: record.Snappy}},
	} {
		b := point.GetBatch(point.NewDict(0))
		if err := d.Decode(c.value, &c.options, at, b); !fault.Is(err, fault.TooLarge) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func fuzz(f *testing.F, o record.Options) {
	for _, c := range samples(f) {
		if c.options.Format == o.Format {
			f.Add(c.value)
		}
	}
	files, _ := os.ReadDir("testdata/cases")
	for _, file := range files {
		text, _ := os.ReadFile("testdata/cases/" + file.Name())
		for _, line := range bytes.Split(text, []byte("\n")) {
			f.Add(line)
		}
	}
	d := decoder(f, func(s *record.Settings) { s.DecodedBytesMax = 1 << 20 })
	f.Fuzz(func(t *testing.T, value []byte) {
		b := point.GetBatch(point.NewDict(10_000))
		defer b.Put()
		err := d.Decode(value, &o, at, b)
		if len(b.IDs) != len(b.Times) || len(b.IDs) != len(b.Values) {
			t.Fatalf("columns of %d, %d and %d rows", len(b.IDs), len(b.Times), len(b.Values))
		}
		if err != nil && b.Rows()+len(b.Metadata)+b.RefusedRows > 0 {
			t.Fatalf("rows beside the error %v", err)
		}
		if err != nil && fault.Is(err, fault.Internal) {
			t.Fatalf("nobody said what kind of error this is: %v", err)
		}
		for _, id := range b.IDs {
			if l := b.Dict.Labels(id); !l.ValidSeries() {
				t.Fatalf("bad labels %q", l)
			}
		}
		// A record that is read twice is read the same, the second time by the short way.
		again := point.GetBatch(b.Dict)
		defer again.Put()
		err2 := d.Decode(value, &o, at, again)
		if (err == nil) != (err2 == nil) || fmt.Sprint(b.IDs, b.Times) != fmt.Sprint(again.IDs, again.Times) {
			t.Fatalf("first %v, %v, then %v, %v", b.IDs, err, again.IDs, err2)
		}
	})
}

func FuzzLine(f *testing.F)         { fuzz(f, record.Options{}) }
func FuzzRemoteWrite(f *testing.F)  { fuzz(f, record.Options{Format: record.RemoteWrite}) }
func FuzzTelegrafJSON(f *testing.F) { fuzz(f, record.Options{Format: record.TelegrafJSON}) }
func FuzzPrometheusJSON(f *testing.F) {
	fuzz(f, record.Options{Format: record.PrometheusJSON})
}

func FuzzOTLP(f *testing.F) { fuzz(f, record.Options{Format: record.OTLP}) }

func FuzzHeader(f *testing.F) {
	f.Add("content-type", []byte("application/x-protobuf;proto=io.prometheus.write.v2.Request"))
	f.Add("Format", []byte("telegraf-json"))
	f.Fuzz(func(t *testing.T, key string, value []byte) {
		var o record.Options
		if err := o.Header(key, value); err != nil && !fault.Is(err, fault.Invalid) {
			t.Fatal(err)
		}
	})
}

// A producer that compresses as a stream does not say how large a value is. Such values were dead letters.
func TestValuesOfProducersThatStreamAreTaken(t *testing.T) {
	d := decoder(t)
	for _, n := range []int{1, 100, 1000, 20_000} {
		var packed bytes.Buffer
		w, err := zstd.NewWriter(&packed)
		if err != nil {
			t.Fatal(err)
		}
		for i := range n {
			fmt.Fprintf(w, "cpu,host=h%d usage=%d\n", i%20, i*i%9973)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		b := point.GetBatch(point.NewDict(0))
		if err := d.Decode(packed.Bytes(), &record.Options{}, at, b); err != nil || b.Rows() != n {
			t.Errorf("%d of %d rows, %v", b.Rows(), n, err)
		}
		b.Put()
	}
}
