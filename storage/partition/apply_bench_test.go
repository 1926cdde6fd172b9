package partition

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/protocols/rank"
	"github.com/spillwaydb/spillway/storage/series"
)

// BenchmarkAppendLarge appends frames of 65,536 rows of existing series, without waiting, and flushes every tenth; "beside readers" while one makes views, and reports how long these last.
func BenchmarkAppendLarge(b *testing.B) {
	for _, readers := range []bool{false, true} {
		b.Run(fmt.Sprintf("readers=%t", readers), func(b *testing.B) {
			of := ident
			of.TimeHi = 1 << 60
			p := openBenchAs(new(testing.T), vfs.NewMem(), 1, Settings{}, of)
			defer p.close()
			const n = 1 << 16
			refs := make([]series.Ref, n)
			r := &Rows{Level: point.Received, Refs: refs, Times: make([]point.Nanos, n), Values: make([]float64, n)}
			for i := range refs {
				refs[i] = p.index.Intern(labelsOf(fmt.Sprint(i)))
			}
			quit, took := make(chan struct{}), make(chan []time.Duration, 1)
			if readers {
				go func() { took <- viewsUntil(p, quit) }()
			}
			at := point.Nanos(0)
			for b.Loop() {
				at++
				for i := range r.Times {
					r.Times[i] = at
				}
				r.Stamp = rank.At(noon + at*2000)
				if err := p.Append(r); err != nil {
					b.Fatal(err)
				}
				if at%10 == 0 {
					b.StopTimer()
					if err := p.Flush(b.Context(), ByAge); err != nil {
						b.Fatal(err)
					}
					b.StartTimer()
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n, "ns/row")
			close(quit)
			if readers {
				d := <-took
				slices.Sort(d)
				b.ReportMetric(float64(d[len(d)/2].Nanoseconds())/1e3, "µs/view")
				b.ReportMetric(float64(d[len(d)*99/100].Nanoseconds())/1e3, "µs/view-p99")
			}
		})
	}
}

// viewsUntil makes a view every 200 µs or so, and returns how long each lasted.
func viewsUntil(p *bench, quit chan struct{}) (took []time.Duration) {
	for {
		select {
		case <-quit:
			return took
		case <-time.After(200 * time.Microsecond):
		}
		start := time.Now()
		v, err := p.View()
		if err != nil {
			panic(err)
		}
		took = append(took, time.Since(start))
		v.Close()
	}
}
