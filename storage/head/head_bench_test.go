package head

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/rows"
)

// load is a devops-like mix: counters, integer walks, and one series in ten a percentage with a fraction.
type load struct {
	rng    *rand.Rand
	values []float64
	ids    []point.DenseID
	times  []point.Nanos
	vals   []float64
}

const frameRows = 2000

func newLoad(series int) *load {
	return &load{rng: rand.New(rand.NewPCG(1, 2)), values: make([]float64, series)}
}

// frame fills the columns with a frame of the ids from..from+frameRows, permuted by at, in a round of scrapes.
func (l *load) frame(round, from int, at func(i int) int) {
	l.ids, l.times, l.vals = l.ids[:0], l.times[:0], l.vals[:0]
	for i := from; i < min(from+frameRows, len(l.values)); i++ {
		id := at(i)
		switch {
		case id%10 == 0:
			l.values[id] = l.rng.Float64() * 100
		case id%10 < 6:
			l.values[id] += float64(l.rng.IntN(100))
		default:
			l.values[id] += float64(l.rng.IntN(21) - 10)
		}
		l.ids = append(l.ids, point.DenseID(id))
		l.times = append(l.times, int64(round)*10e9+int64(from)%7*1e6)
		l.vals = append(l.vals, l.values[id])
	}
}

// frames are rounds of scrapes made beforehand, so that the loop measures appends alone.
func frames(series, rounds int, at func(i int) int) (out []load) {
	l := newLoad(series)
	for r := range rounds {
		for from := 0; from < series; from += frameRows {
			l.frame(r, from, at)
			out = append(out, load{ids: slices.Clone(l.ids), times: slices.Clone(l.times), vals: slices.Clone(l.vals)})
		}
	}
	return out
}

func benchmarkAppend(b *testing.B, series int, at func(i int) int) {
	const heads = 40_000_000 // rows in a head before the next one, about as many as a flush lets gather
	fs := frames(series, max(4, 2_000_000/series), at)
	h, stamp, n, appended := New(Settings{}), point.Stamp(0), 0, 0
	var cpu cpu
	cpu.start(b)
	b.ReportAllocs()
	b.ResetTimer()
	for b.Loop() {
		f := &fs[n]
		if n++; n == len(fs) { // the same rows again, at later times
			n = 0
			b.StopTimer()
			cpu.pause()
			shift := 10_000_000_000 * int64(len(fs)*frameRows/series)
			for _, f := range fs {
				for i := range f.times {
					f.times[i] += shift
				}
			}
			if h.Rows() > heads {
				h.Free()
				h = New(Settings{})
			}
			cpu.resume()
			b.StartTimer()
		}
		stamp++
		h.Append(stamp, f.ids, f.times, f.vals)
		appended += len(f.ids)
	}
	cpu.report(b, appended)
	h.Free()
}

func BenchmarkAppendHostOrder(b *testing.B) {
	for _, series := range []int{10_000, 100_000, 1_000_000} {
		b.Run(fmt.Sprint(series), func(b *testing.B) { benchmarkAppend(b, series, func(i int) int { return i }) })
	}
}

func BenchmarkAppendRandom(b *testing.B) {
	for _, series := range []int{100_000, 1_000_000} {
		perm := rand.New(rand.NewPCG(3, 4)).Perm(series)
		b.Run(fmt.Sprint(series), func(b *testing.B) { benchmarkAppend(b, series, func(i int) int { return perm[i] }) })
	}
}

// filled is a head with the rows of some rounds.
func filled(series, rounds int, at func(i int) int) *Head {
	l, h := newLoad(series), New(Settings{})
	stamp := point.Stamp(0)
	for r := range rounds {
		for from := 0; from < series; from += frameRows {
			l.frame(r, from, at)
			stamp++
			h.Append(stamp, l.ids, l.times, l.vals)
		}
	}
	return h
}

func BenchmarkRead(b *testing.B) {
	for _, rounds := range []int{30, 360} {
		b.Run(fmt.Sprint(rounds), func(b *testing.B) {
			const series = 10_000
			h := filled(series, rounds, func(i int) int { return i })
			var run rows.Run
			id, n := 0, 0
			var cpu cpu
			cpu.start(b)
			b.ReportAllocs()
			for b.Loop() {
				h.Read(point.DenseID(id*7919%series), math.MinInt64, math.MaxInt64, &run)
				n += run.Len()
				id++
			}
			cpu.report(b, n)
			b.ReportMetric(float64(h.Bytes())/float64(h.Rows()), "B/row")
			b.ReportMetric(float64(h.Bytes()-h.Series()*64)/float64(h.Rows()), "B/row_stateless")
			h.Free()
		})
	}
}

func BenchmarkDrain(b *testing.B) {
	const series = 100_000
	h := filled(series, 30, func(i int) int { return i })
	order := make([]point.DenseID, series)
	for i, p := range rand.New(rand.NewPCG(5, 6)).Perm(series / 100) { // groups of a hundred lie together, as hosts do
		for j := range 100 {
			order[i*100+j] = point.DenseID(p*100 + j)
		}
	}
	n := 0
	var cpu cpu
	cpu.start(b)
	b.ReportAllocs()
	for b.Loop() {
		_ = h.Drain(order, func(_ point.DenseID, r *rows.Run) error { n += r.Len(); return nil })
	}
	cpu.report(b, n)
	h.Free()
}

// TestAppendAllocatesNothing pins the cost of the hot path: rows of existing series use arena memory only.
func TestAppendAllocatesNothing(t *testing.T) {
	const series = 5000
	h := filled(series, 3, func(i int) int { return i })
	defer h.Free()
	l := newLoad(series)
	l.frame(4, 0, func(i int) int { return i })
	stamp := point.Stamp(1 << 40)
	allocs := testing.AllocsPerRun(100, func() {
		stamp++
		for i := range l.times {
			l.times[i] += 10e9
			l.vals[i]++
		}
		h.Append(stamp, l.ids, l.times, l.vals)
	})
	// A frame of 2000 rows may at times need a new chunk of the arena or a longer list of stamps.
	if allocs > 1 {
		t.Errorf("%v allocations a frame of %d rows", allocs, frameRows)
	}
	var run rows.Run
	h.Read(1, math.MinInt64, math.MaxInt64, &run)
	if n := testing.AllocsPerRun(100, func() { h.Read(1, math.MinInt64, math.MaxInt64, &run) }); n > 0 {
		t.Errorf("%v allocations a read into memory that suffices", n)
	}
}

// BenchmarkDrainLate drains series of 120 rows of which some came late: the last ten once more, or half of them ten rows later.
func BenchmarkDrainLate(b *testing.B) {
	const series, rounds = 10_000, 120
	for _, late := range []struct {
		name  string
		round func(i int) int
	}{
		{"repeated", func(i int) int { return i - i/110*10 }},
		{"swapped", func(i int) int { return i/20*20 + (i+10)%20 }},
		{"shuffled", func(i int) int { return i * 7 % rounds }},
	} {
		b.Run(late.name, func(b *testing.B) {
			l, h := newLoad(series), New(Settings{})
			order := make([]point.DenseID, series)
			for i := range rounds {
				for from := 0; from < series; from += frameRows {
					l.frame(late.round(i), from, func(i int) int { return i })
					h.Append(point.Stamp(i*series+from), l.ids, l.times, l.vals)
				}
			}
			for i := range order {
				order[i] = point.DenseID(i)
			}
			n := 0
			var cpu cpu
			cpu.start(b)
			for b.Loop() {
				_ = h.Drain(order, func(_ point.DenseID, r *rows.Run) error { n += rounds; return nil })
			}
			cpu.report(b, n)
			h.Free()
		})
	}
}
