package processtest

import (
	"testing"
	"time"

	"github.com/spillwaydb/spillway/protocols/cputime"
)

// Pair is two ways to have the same answer, with the names of their processor time in a benchmark's report.
type Pair [2]struct {
	Name string
	Ask  func()
}

// Compare asks both in turns, and reports the median processor time of each in µs, and the median of the second one's in parts of the first one's.
func (p Pair) Compare(b *testing.B) {
	var took [2][]time.Duration
	var ratios []float64
	for b.Loop() {
		var pair [2]time.Duration
		for i, way := range p {
			before := cputime.Used()
			way.Ask()
			pair[i] = cputime.Used() - before
			took[i] = append(took[i], pair[i])
		}
		ratios = append(ratios, float64(pair[1])/float64(max(pair[0], 1)))
	}
	b.ReportMetric(0, "ns/op")
	for i, way := range p {
		b.ReportMetric(float64(Median(took[i]).Microseconds()), way.Name)
	}
	b.ReportMetric(Median(ratios), "ratio")
}
