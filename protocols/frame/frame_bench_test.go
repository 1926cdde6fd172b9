package frame_test

import (
	"testing"

	"github.com/spillwaydb/spillway/protocols/frame"
	"github.com/spillwaydb/spillway/protocols/point"
)

// loads are the frames whose figures stand in DESIGN.md, about 2000 rows each.
func loads() map[string]*frame.Frame {
	jittered := newDevops(20)
	jittered.jitter = 15e6
	doubles := newDevops(20)
	doubles.doubles = true
	small := newDevops(20).steady(1)
	small.IDs, small.Times, small.Values = small.IDs[:10], small.Times[:10], small.Values[:10]
	shuffled := newDevops(20).steady(20)
	rng := newDevops(1).rng
	rng.Shuffle(len(shuffled.IDs), func(i, j int) {
		shuffled.IDs[i], shuffled.IDs[j] = shuffled.IDs[j], shuffled.IDs[i]
		shuffled.Values[i], shuffled.Values[j] = shuffled.Values[j], shuffled.Values[i]
	})
	fresh := newDevops(20)
	withDefs := fresh.steady(20)
	withDefs.FirstDef = 0
	for i := range fresh.values {
		withDefs.Defs = append(withDefs.Defs, fresh.labels(i))
	}
	return map[string]*frame.Frame{
		"devops":         newDevops(20).steady(20),
		"devops jitter":  jittered.steady(20),
		"devops random":  shuffled,
		"devops 10 rows": small,
		"backfill":       newDevops(1).backfill(1, 20),
		"doubles":        doubles.steady(20),
		"new series":     withDefs,
	}
}

func BenchmarkAppend(b *testing.B) {
	for name, f := range loads() {
		b.Run(name, func(b *testing.B) {
			var e frame.Encoder
			buf := e.Append(nil, f)
			b.ReportAllocs()
			for b.Loop() {
				buf = e.Append(buf[:0], f)
			}
			perRow(b, f, len(buf))
		})
	}
}

func BenchmarkDecode(b *testing.B) {
	for name, f := range loads() {
		b.Run(name, func(b *testing.B) {
			var d frame.Decoder
			var into frame.Frame
			buf := encode(f)
			b.ReportAllocs()
			for b.Loop() {
				if err := d.Decode(buf, &into); err != nil {
					b.Fatal(err)
				}
			}
			perRow(b, f, len(buf))
		})
	}
}

func perRow(b *testing.B, f *frame.Frame, size int) {
	rows := float64(len(f.IDs))
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/rows, "ns/row")
	b.ReportMetric(float64(size)/rows, "B/row")
}

func BenchmarkSetSerial(b *testing.B) {
	buf := encode(newDevops(1).steady(1))
	b.ReportAllocs()
	for b.Loop() {
		frame.SetSerial(buf, point.Serial{Epoch: 1, Seq: 2}, point.Serial{Epoch: 1, Seq: 1})
	}
}
