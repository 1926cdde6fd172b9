package frame_test

import (
	"testing"

	"github.com/spillwaydb/spillway/protocols/frame"
	"github.com/spillwaydb/spillway/protocols/point"
)

// loads are the frames with figures in DESIGN.md, about 2000 rows or definitions each, and once 101,000.
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
	fresh := newDevops(20).steady(20)
	fresh.FirstDef, fresh.Defs = 0, definitions(20)
	defs := &frame.Frame{Kind: frame.Rows, Defs: fresh.Defs}
	many := &frame.Frame{Kind: frame.Rows, Defs: definitions(1000)}
	return map[string]*frame.Frame{
		"devops":               newDevops(20).steady(20),
		"devops jitter":        jittered.steady(20),
		"devops random":        shuffled,
		"devops 10 rows":       small,
		"backfill":             newDevops(1).backfill(1, 20),
		"doubles":              doubles.steady(20),
		"new series":           fresh,
		"definitions":          defs,
		"definitions 1k hosts": many,
	}
}

func BenchmarkAppend(b *testing.B) {
	for name, f := range loads() {
		b.Run(name, func(b *testing.B) {
			var e frame.Encoder
			buf := e.Append(nil, f)
			b.ReportAllocs()
			for b.Loop() {
				if cap(buf) > 4<<20 { // as storage/partition, which keeps no more
					buf = nil
				}
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

// perRow gives figures by the row, or by the definition where there are no rows.
func perRow(b *testing.B, f *frame.Frame, size int) {
	rows := float64(max(len(f.IDs), len(f.Defs)))
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/rows, "ns/row")
	b.ReportMetric(float64(size)/rows, "B/row")
}

func BenchmarkSetSerial(b *testing.B) {
	buf := encode(newDevops(1).steady(1))
	b.ReportAllocs()
	for b.Loop() {
		frame.SetSerial(buf, point.Serial{Epoch: 1, Seq: 2}, point.Serial{Epoch: 1, Seq: 1}, 3)
	}
}
