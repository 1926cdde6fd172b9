package record_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/golang/snappy"

	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/protocols/record"
)

// fleet writes 10 fields of each of n hosts in a format.
func fleet(n int, f record.Format) (value []byte, rows int) {
	var b bytes.Buffer
	for i := range n {
		switch f {
		case record.Line:
			fmt.Fprintf(&b, "cpu,host=host-%04d,region=eu-west-1 ", i)
			for j := range 10 {
				fmt.Fprintf(&b, "%susage_%d=%d.5", strings.Repeat(",", min(j, 1)), j, i%100+j)
			}
			fmt.Fprintf(&b, " %d\n", at)
		case record.TelegrafJSON:
			fields := map[string]any{}
			for j := range 10 {
				fields[fmt.Sprintf("usage_%d", j)] = float64(i%100+j) + 0.5
			}
			_ = json.NewEncoder(&b).Encode(map[string]any{"fields": fields, "name": "cpu", "timestamp": at / 1e9,
				"tags": map[string]string{"host": fmt.Sprintf("host-%04d", i), "region": "eu-west-1"}})
		case record.PrometheusJSON:
			for j := range 10 {
				_ = json.NewEncoder(&b).Encode(map[string]any{"name": fmt.Sprintf("cpu_usage_%d", j), "value": fmt.Sprint(float64(i%100+j) + 0.5),
					"timestamp": "2026-03-01T12:00:00Z", "labels": map[string]string{"__name__": fmt.Sprintf("cpu_usage_%d", j), "host": fmt.Sprintf("host-%04d", i)}})
			}
		}
	}
	return b.Bytes(), 10 * n
}

func TestKnownSeriesAllocateNothing(t *testing.T) {
	for _, f := range []record.Format{record.Line, record.TelegrafJSON, record.PrometheusJSON} {
		value, rows := fleet(100, f)
		d, b, o := decoder(t), point.GetBatch(point.NewDict(0)), record.Options{Format: f}
		read := func() {
			dict := b.Dict
			b.Reset()
			b.Dict = dict
			if err := d.Decode(value, &o, at, b); err != nil || len(b.IDs) != rows {
				t.Fatalf("%v: %v, %d rows", f, err, len(b.IDs))
			}
		}
		read()
		if n := testing.AllocsPerRun(20, read); n > 0 {
			t.Errorf("%v: %v allocations for %d known rows", f, n, rows)
		}
	}
	value := snappy.Encode(nil, rw1(t))
	d, b, o := decoder(t), point.GetBatch(point.NewDict(0)), record.Options{Format: record.RemoteWrite}
	read := func() {
		b.Truncate(0)
		b.ItemRows = b.ItemRows[:0]
		if err := d.Decode(value, &o, at, b); err != nil {
			t.Fatal(err)
		}
	}
	read()
	if n := testing.AllocsPerRun(20, read); n > 0 {
		t.Errorf("remote write: %v allocations", n)
	}
}

func BenchmarkDecode(b *testing.B) {
	for _, f := range []record.Format{record.Line, record.TelegrafJSON, record.PrometheusJSON} {
		b.Run(f.String(), func(b *testing.B) {
			value, rows := fleet(500, f)
			d, batch, o := decoder(b), point.GetBatch(point.NewDict(0)), record.Options{Format: f}
			b.ReportAllocs()
			b.SetBytes(int64(len(value)))
			for b.Loop() {
				batch.Truncate(0)
				batch.ItemRows = batch.ItemRows[:0]
				if err := d.Decode(value, &o, at, batch); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(rows), "ns/row")
		})
	}
}
