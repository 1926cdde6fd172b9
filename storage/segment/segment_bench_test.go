//go:build unix

package segment

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/protocols/cputime"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/rows"
)

var loads = []struct {
	name                   string
	hosts, samples, jitter int
}{
	{"aligned/samples=30", 200, 30, 0},
	{"aligned/samples=360", 100, 360, 0},
	{"jitter/samples=360", 100, 360, 15},
	{"aligned/samples=4320", 20, 4320, 0},
}

// BenchmarkWrite reports bytes per sample, with and without definitions, and ns per sample of encoding and writing.
func BenchmarkWrite(b *testing.B) {
	for _, l := range loads {
		s := devops(l.hosts, l.samples, l.jitter)
		b.Run(l.name, func(b *testing.B) { benchWrite(b, s) })
	}
}

// perSample reports the processor time of a sample since from, the garbage collector's included.
func perSample(b *testing.B, from float64, samples int) {
	b.ReportMetric((float64(cputime.Used())-from)/float64(samples)/float64(b.N), "cpu-ns/sample")
}

func benchWrite(b *testing.B, s *source) {
	var info Info
	runs := make([]rows.Run, len(s.order)) // so that neither map look-ups nor t.Helper are measured
	for i, id := range s.order {
		runs[i] = s.runs[id]
	}
	b.ReportAllocs()
	from := float64(cputime.Used())
	for b.Loop() {
		w, err := Create(vfs.NewMem(), "seg", s.meta, Settings{})
		check(b, err)
		for _, d := range s.defs {
			if err := w.Define(d.id, d.labels); err != nil {
				b.Fatal(err)
			}
		}
		for i, id := range s.order {
			if err := w.Add(id, &runs[i]); err != nil {
				b.Fatal(err)
			}
		}
		info, err = w.Finish()
		check(b, err)
	}
	b.ReportMetric(float64(info.Size)/float64(s.rows()), "B/sample")
	perSample(b, from, s.rows())
}

// BenchmarkAdd is encoding and writing of rows alone, as in a flush that meets no new series.
func BenchmarkAdd(b *testing.B) {
	for _, l := range loads {
		b.Run(l.name, func(b *testing.B) {
			s := devops(l.hosts, l.samples, l.jitter)
			s.defs = nil
			benchWrite(b, s)
		})
	}
}

func BenchmarkScan(b *testing.B) {
	for _, l := range loads {
		b.Run(l.name, func(b *testing.B) {
			fs := vfs.NewMem()
			s := devops(l.hosts, l.samples, l.jitter)
			r := openSegment(b, fs, "seg", s.write(b, fs, "seg"), openCache(b, 256<<20))
			b.ReportAllocs()
			from := float64(cputime.Used())
			for b.Loop() {
				check(b, r.Scan(func(point.DenseID, rows.Run) error { return nil }))
			}
			perSample(b, from, s.rows())
		})
	}
}

// BenchmarkReadOne selects single series, BenchmarkReadMetric one metric of all hosts.
func BenchmarkReadOne(b *testing.B) {
	fs := vfs.NewMem()
	s := devops(100, 360, 0)
	r := openSegment(b, fs, "seg", s.write(b, fs, "seg"), openCache(b, 256<<20))
	rng := rand.New(rand.NewPCG(1, 1))
	b.ReportAllocs()
	for b.Loop() {
		id := s.order[rng.IntN(len(s.order))]
		check(b, r.Read([]point.DenseID{id}, math.MinInt64, math.MaxInt64, func(point.DenseID, rows.Run) error { return nil }))
	}
}

func BenchmarkReadMetric(b *testing.B) {
	fs := vfs.NewMem()
	s := devops(100, 360, 0)
	r := openSegment(b, fs, "seg", s.write(b, fs, "seg"), openCache(b, 256<<20))
	ids := s.order[500:600]
	n := 0
	b.ReportAllocs()
	from := float64(cputime.Used())
	for b.Loop() {
		n = 0
		check(b, r.Read(ids, math.MinInt64, math.MaxInt64, func(_ point.DenseID, run rows.Run) error { n += run.Len(); return nil }))
	}
	perSample(b, from, n)
}

// BenchmarkFewRows writes segments of series with one row each, opens and checks them, as flushes of narrow partitions do.
func BenchmarkFewRows(b *testing.B) {
	for _, series := range []int{1, 100, 100_000} {
		b.Run(fmt.Sprint("series=", series), func(b *testing.B) {
			s := devops((series+100)/101, 1, 0)
			defs := s.defs[:series]
			var order []point.DenseID
			var runs []rows.Run // so that neither map look-ups nor t.Helper are measured
			for _, id := range s.order {
				if int(id) < series {
					order, runs = append(order, id), append(runs, s.runs[id])
				}
			}
			var info Info
			cache := NewCache(1 << 20)
			defer cache.Close()
			b.ReportAllocs()
			from := float64(cputime.Used())
			for b.Loop() {
				fs := vfs.NewMem()
				w, err := Create(fs, "seg", s.meta, Settings{})
				check(b, err)
				for _, d := range defs {
					if err := w.Define(d.id, d.labels); err != nil {
						b.Fatal(err)
					}
				}
				for i, id := range order {
					if err := w.Add(id, &runs[i]); err != nil {
						b.Fatal(err)
					}
				}
				info, err = w.Finish()
				check(b, err)
				r, err := Open(fs, "seg", info, cache)
				check(b, err)
				check(b, r.Check())
				check(b, r.Close())
			}
			b.ReportMetric((float64(cputime.Used())-from)/float64(b.N)/1e3, "cpu-µs")
			b.ReportMetric(float64(info.Size), "B")
		})
	}
}
