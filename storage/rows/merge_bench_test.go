package rows_test

import (
	"math/rand/v2"
	"testing"

	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/rows"
)

// floats makes a run of n rows that begins at first, step apart.
func floats(stamp point.Stamp, n int, first, step point.Nanos) rows.Run {
	r := rows.Run{StampLo: stamp, StampHi: stamp}
	for i := range n {
		r.Times = append(r.Times, first+int64(i)*step)
		r.Values = append(r.Values, float64(i))
	}
	return r
}

// BenchmarkMerge merges sources of one series: 8 that follow each other, as flushes leave them; 8 that each miss the
// others' rows, which is the worst case; two that overlap by a tenth, a head with late rows; two copies of the same.
func BenchmarkMerge(b *testing.B) {
	const n, step = 1000, 15e9
	var disjoint, interleaved []rows.Run
	for i := range 8 {
		disjoint = append(disjoint, floats(point.Stamp(i+1), n, int64(i)*n*step, step))
		interleaved = append(interleaved, floats(point.Stamp(i+1), n, int64(i), step))
	}
	scattered := make([]rows.Run, 8) // each row in a run by chance: no run is predictable
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range 8 * n {
		r := &scattered[rng.IntN(8)]
		r.Times, r.Values, r.StampHi = append(r.Times, int64(i)*step), append(r.Values, float64(i)), 1
	}
	for _, c := range []struct {
		name string
		runs []rows.Run
	}{
		{"one", disjoint[:1]},
		{"disjoint8", disjoint},
		{"interleaved8", interleaved},
		{"scattered8", scattered},
		{"overlap2", []rows.Run{floats(1, n, 0, step), floats(2, n, 9*n/10*step, step)}},
		{"copies2", []rows.Run{floats(1, n, 0, step), floats(2, n, 0, step)}},
	} {
		b.Run(c.name, func(b *testing.B) {
			total := 0
			for i := range c.runs {
				total += c.runs[i].Len()
			}
			b.ReportAllocs()
			for b.Loop() {
				rows.Merge(c.runs)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(total), "ns/row")
		})
	}
}
