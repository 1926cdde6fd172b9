package remotewrite_test

import (
	"fmt"
	"hash/maphash"
	"testing"

	"github.com/golang/snappy"
	"github.com/klauspost/compress/s2"
	ksnappy "github.com/klauspost/compress/snappy"
	"github.com/prometheus/prometheus/prompb"
	writev2 "github.com/prometheus/prometheus/prompb/io/prometheus/write/v2"

	"github.com/spillwaydb/spillway/protocols/cputime"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/protocols/remotewrite"
)

// The load: hosts with 101 metrics each, 12 labels a series, 2,000 samples a request, as Prometheus sends it.
const (
	benchSamples = 2000
	benchMetrics = 101
)

// benchLabels gives the labels of series i, sorted.
func benchLabels(i int) []label {
	host := i / benchMetrics
	return []label{
		{"__name__", fmt.Sprintf("devops_metric_%03d_total", i%benchMetrics)},
		{"arch", "x64"}, {"datacenter", fmt.Sprintf("eu-central-1%c", 'a'+host%3)}, {"hostname", fmt.Sprintf("host_%d", host)},
		{"instance", fmt.Sprintf("10.0.%d.%d:9100", host/256, host%256)}, {"job", "node"}, {"os", "Ubuntu24.04"}, {"rack", fmt.Sprint(host % 90)},
		{"region", "eu-central-1"}, {"service", fmt.Sprint(host % 20)}, {"service_environment", "production"}, {"team", "NYC"},
	}
}

// benchV1 gives n requests over consecutive series.
func benchV1(t testing.TB, n int) (bodies [][]byte) {
	for r := range n {
		req := &prompb.WriteRequest{}
		for i := range benchSamples {
			ts := prompb.TimeSeries{Samples: []prompb.Sample{{Value: float64(i) + 0.5, Timestamp: t0 + int64(i)}}}
			for _, l := range benchLabels(r*benchSamples + i) {
				ts.Labels = append(ts.Labels, prompb.Label{Name: l.name, Value: l.value})
			}
			req.Timeseries = append(req.Timeseries, ts)
		}
		body, err := req.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		bodies = append(bodies, body)
	}
	return bodies
}

func benchV2(t testing.TB, n int) (bodies [][]byte) {
	for r := range n {
		table := writev2.NewSymbolTable()
		req := &writev2.Request{}
		for i := range benchSamples {
			ts := writev2.TimeSeries{
				Samples:  []writev2.Sample{{Value: float64(i) + 0.5, Timestamp: t0 + int64(i)}},
				Metadata: writev2.Metadata{Type: writev2.Metadata_METRIC_TYPE_COUNTER, HelpRef: table.Symbolize("How often it happened.")},
			}
			for _, l := range benchLabels(r*benchSamples + i) {
				ts.LabelsRefs = append(ts.LabelsRefs, table.Symbolize(l.name), table.Symbolize(l.value))
			}
			req.Timeseries = append(req.Timeseries, ts)
		}
		req.Symbols = table.Symbols()
		body, err := req.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		bodies = append(bodies, body)
	}
	return bodies
}

// BenchmarkRows decodes requests of known series with one sample each, as a scrape is sent, and with 100, as senders write what they kept while the
// receiver was away. The second is nearly all loop over rows.
func BenchmarkRows(b *testing.B) {
	for _, per := range []int{1, 100} {
		v1, v2 := &prompb.WriteRequest{}, &writev2.Request{}
		table := writev2.NewSymbolTable()
		for i := range benchSamples / per {
			one, two := prompb.TimeSeries{}, writev2.TimeSeries{}
			for _, l := range benchLabels(i) {
				one.Labels = append(one.Labels, prompb.Label{Name: l.name, Value: l.value})
				two.LabelsRefs = append(two.LabelsRefs, table.Symbolize(l.name), table.Symbolize(l.value))
			}
			for k := range per {
				value, at := float64(i)+0.5, t0+int64(k)*15_000
				one.Samples = append(one.Samples, prompb.Sample{Value: value, Timestamp: at})
				two.Samples = append(two.Samples, writev2.Sample{Value: value, Timestamp: at})
			}
			two.Metadata = writev2.Metadata{Type: writev2.Metadata_METRIC_TYPE_COUNTER, HelpRef: table.Symbolize("How often it happened.")}
			v1.Timeseries, v2.Timeseries = append(v1.Timeseries, one), append(v2.Timeseries, two)
		}
		v2.Symbols = table.Symbols()
		for version, marshal := range map[string]func() ([]byte, error){"v1": v1.Marshal, "v2": v2.Marshal} {
			body, err := marshal()
			if err != nil {
				b.Fatal(err)
			}
			b.Run(fmt.Sprintf("%s/per=%d", version, per), func(b *testing.B) { benchDecode(b, newDecoder(version), [][]byte{body}, false) })
		}
	}
}

// BenchmarkDecode decodes series that are in the Dict; 2 k fit the caches of a core, 100 k do not. In the same order
// each number stands beside the one before; scattered senders need the table.
func BenchmarkDecode(b *testing.B) {
	for _, version := range []string{"v1", "v2"} {
		for _, requests := range []int{1, 50} {
			bodies := benchV1(b, requests)
			if version == "v2" {
				bodies = benchV2(b, requests)
			}
			series := requests * benchSamples
			b.Run(fmt.Sprintf("%s/series=%d", version, series), func(b *testing.B) { benchDecode(b, newDecoder(version), bodies, false) })
			b.Run(fmt.Sprintf("%s/series=%d/snappy", version, series), func(b *testing.B) { benchDecode(b, newDecoder(version), bodies, true) })
		}
	}
}

func benchDecode(b *testing.B, dec decoder, bodies [][]byte, compressed bool) {
	dict := point.NewDict(0)
	batch := point.GetBatch(dict)
	var packed [][]byte
	for _, body := range bodies {
		packed = append(packed, snappy.Encode(nil, body))
		batch.Reset()
		batch.Dict = dict
		if err := dec.Decode(body, batch); err != nil || len(batch.IDs) != benchSamples {
			b.Fatal(len(batch.IDs), err)
		}
	}
	buf := make([]byte, 0, 2<<20)
	b.ReportAllocs()
	n := 0
	cpu := cputime.Used()
	for b.Loop() {
		body := bodies[n%len(bodies)]
		if compressed {
			var err error
			if body, err = remotewrite.DecompressSnappy(buf, packed[n%len(bodies)], 32<<20); err != nil {
				b.Fatal(err)
			}
		}
		batch.Reset()
		batch.Dict = dict
		if err := dec.Decode(body, batch); err != nil {
			b.Fatal(err)
		}
		n++
	}
	b.ReportMetric(float64(n*benchSamples)/b.Elapsed().Seconds()/1e6, "Msamples/s")
	b.ReportMetric(float64(cputime.Used()-cpu)/float64(n*benchSamples), "cpu-ns/sample")
}

// BenchmarkSnappy compares the decoders of the block format; the first is ours. s2 accepts more than the format.
func BenchmarkSnappy(b *testing.B) {
	packed := snappy.Encode(nil, benchV1(b, 1)[0])
	buf := make([]byte, 2<<20)
	for name, decode := range map[string]func(dst, src []byte) ([]byte, error){
		"golang": snappy.Decode, "s2": s2.Decode, "klauspost strict": ksnappy.DecodeStrict,
	} {
		b.Run(name, func(b *testing.B) {
			n := 0
			for b.Loop() {
				if _, err := decode(buf, packed); err != nil {
					b.Fatal(err)
				}
				n++
			}
			b.ReportMetric(float64(n*benchSamples)/b.Elapsed().Seconds()/1e6, "Msamples/s")
		})
	}
}

// BenchmarkFloor is the bound for any decoder that sums all label bytes twice: the two sums over 300 bytes of labels.
func BenchmarkFloor(b *testing.B) {
	seeds := [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}
	raw := make([]byte, 300)
	var sum uint64
	for b.Loop() {
		sum += maphash.Bytes(seeds[0], raw) ^ maphash.Bytes(seeds[1], raw)
	}
	_ = sum
}

func TestKnownSeriesCostNoMemory(t *testing.T) {
	for version, body := range map[string][]byte{"v1": benchV1(t, 1)[0], "v2": benchV2(t, 1)[0]} {
		dec, batch := newDecoder(version), point.GetBatch(point.NewDict(0))
		dict := batch.Dict
		decode := func() {
			batch.Reset()
			batch.Dict = dict
			if err := dec.Decode(body, batch); err != nil {
				t.Fatal(err)
			}
		}
		decode()
		if n := testing.AllocsPerRun(20, decode); n != 0 {
			t.Errorf("%s: %v allocations for a request of %d known series", version, n, benchSamples)
		}
	}
}
