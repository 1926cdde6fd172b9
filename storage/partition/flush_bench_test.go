//go:build unix

package partition

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/protocols/cputime"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/protocols/rank"
	"github.com/spillwaydb/spillway/storage/rows"
	"github.com/spillwaydb/spillway/storage/segment"
	"github.com/spillwaydb/spillway/storage/series"
)

// scrapes are those of a hundred hosts with 96 series each, ten seconds apart with a jitter of some milliseconds, in requests of so many series.
type scrapes struct {
	b    *bench
	rng  *rand.Rand
	refs [][]series.Ref // by request
	at   point.Nanos
	vals []float64
}

const scrapeHosts, scrapeSeries = 100, 96

func newScrapes(b *bench, request int) *scrapes {
	s := &scrapes{b: b, rng: rand.New(rand.NewPCG(1, 2)), at: noon}
	for h := range scrapeHosts {
		var refs []series.Ref
		for m := range scrapeSeries {
			refs = append(refs, b.index.Intern(point.MakeLabels("__name__", fmt.Sprintf("metric_%03d", m), "host", fmt.Sprint("host-", h), "region", "eu-west-1")))
		}
		for i := 0; i < len(refs); i += request {
			s.refs = append(s.refs, refs[i:min(i+request, len(refs))])
		}
	}
	s.vals = make([]float64, scrapeSeries)
	return s
}

// append writes so many scrapes of all hosts.
func (s *scrapes) append(n int) {
	times := make([]point.Nanos, scrapeSeries)
	for range n {
		s.at += 10 * second
		for i, refs := range s.refs {
			for k := range refs {
				times[k], s.vals[k] = s.at, math.Floor(s.rng.Float64()*20)
			}
			stamp := rank.At(s.at+point.Nanos(i)*10*second/point.Nanos(len(s.refs))+s.rng.Int64N(5e6)) | point.Stamp(i%2)*77
			s.b.must(s.b.Append(&Rows{Stamp: stamp, Level: point.Received, Refs: refs, Times: times[:len(refs)], Values: s.vals[:len(refs)]}))
		}
	}
}

// BenchmarkFlushScrapes is an hour of scrapes: CPU a row to append and to flush them, to compact two such hours, and to read all; and bytes a row in the segment.
func BenchmarkFlushScrapes(b *testing.B) {
	defer func(n int64) { benchCache = n }(benchCache)
	benchCache = segment.CacheBytes
	for _, request := range []int{32, scrapeSeries} {
		b.Run(fmt.Sprint("request=", request), func(b *testing.B) {
			const scrapesAnHour, all = 360, scrapeHosts * scrapeSeries * 360
			var spent [4]time.Duration
			size := int64(0)
			ident := Identity{Table: "t", Partition: 1, Placement: 42, TimeLo: 0, TimeHi: math.MaxInt64}
			for b.Loop() {
				p := openBenchAs(new(testing.T), vfs.NewMem(), 1, Settings{ExactRanksFor: 100 * 365 * 24 * time.Hour}, ident)
				s := newScrapes(p, request)
				step := func(i int, f func()) {
					from := cputime.Used()
					f()
					spent[i] += cputime.Used() - from
				}
				for range 2 {
					step(0, func() { s.append(scrapesAnHour) })
					step(1, func() { p.must(p.Flush(b.Context(), ByAge)) })
				}
				size += p.Segments()[0].Size
				step(2, func() { p.must(p.Compact(b.Context(), ByRequest)) })
				v, err := p.View()
				p.must(err)
				ss, err := v.Match(nil)
				p.must(err)
				step(3, func() {
					p.must(v.Read(ss, 0, math.MaxInt64, func(int, rows.Run) error { return nil }))
				})
				v.Close()
				p.close()
			}
			for i, name := range []string{"append", "flush", "compact", "read"} {
				b.ReportMetric(float64(spent[i].Nanoseconds())/float64(b.N)/(2*all), name+"-cpu-ns/row")
			}
			b.ReportMetric(float64(size)/float64(b.N)/all, "B/row")
		})
	}
}
