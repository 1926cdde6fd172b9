package series

import (
	"fmt"
	"runtime"
	"slices"
	"testing"

	"github.com/prometheus/prometheus/model/labels"

	"github.com/spillwaydb/spillway/protocols/point"
)

// hostLabels are sets of 12 labels as 101 metrics of each of many hosts have them.
func hostLabels(n int) []point.Labels {
	out := make([]point.Labels, n)
	for i := range out {
		h := i / 101
		out[i] = point.MakeLabels(
			"__name__", fmt.Sprintf("node_metric_%03d_total", i%101), "job", "node", "instance", fmt.Sprintf("host-%d:9100", h),
			"hostname", fmt.Sprintf("host_%d", h), "region", fmt.Sprint("region-", h%9), "datacenter", fmt.Sprint("dc-", h%27),
			"rack", fmt.Sprint(h%100), "os", []string{"Ubuntu16.04", "Debian12"}[h%2], "arch", "x64",
			"team", fmt.Sprint("team-", h%20), "service", fmt.Sprint("svc-", h%40), "environment", []string{"prod", "test"}[h%2])
	}
	return out
}

func BenchmarkInternNew(b *testing.B) {
	for _, n := range []int{101_000, 1_010_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			ls := hostLabels(n)
			const section = 1000 // as streams define them
			i, done, x := 0, 0, New()
			var refs []Ref
			var cpu cpu
			cpu.start(b)
			b.ReportAllocs()
			for b.Loop() {
				if i == n {
					b.StopTimer()
					cpu.pause()
					i, x = 0, New()
					cpu.resume()
					b.StartTimer()
				}
				refs = x.InternAll(ls[i:i+section], refs[:0])
				i, done = i+section, done+section
			}
			cpu.report(b, done)
		})
	}
}

// BenchmarkCatchUp measures how long the first query after many new series waits.
func BenchmarkCatchUp(b *testing.B) {
	ls := hostLabels(101_000)
	done := 0
	var cpu cpu
	cpu.start(b)
	for b.Loop() {
		b.StopTimer()
		cpu.pause()
		x := New()
		x.InternAll(ls, nil)
		cpu.resume()
		b.StartTimer()
		x.catchUp()
		done += len(ls)
	}
	cpu.report(b, done)
}

func BenchmarkInternKnown(b *testing.B) {
	ls, x := filled(101_000)
	b.ReportAllocs()
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		for i := 0; pb.Next(); i++ {
			x.Intern(ls[i*7919%len(ls)])
		}
	})
}

func BenchmarkChurn(b *testing.B) {
	ls, x := filled(101_000)
	i := 0
	b.ReportAllocs()
	for b.Loop() { // one is released, one is made
		j := i * 7919 % len(ls)
		x.Release(x.refOf(ls[j]))
		x.Intern(ls[j])
		i++
	}
}

func filled(n int) ([]point.Labels, *Index) {
	ls, x := hostLabels(n), New()
	for _, l := range ls {
		x.Intern(l)
	}
	return ls, x
}

func (x *Index) refOf(l point.Labels) Ref {
	ref := x.Intern(l)
	x.Release(ref)
	return ref
}

func BenchmarkMatch(b *testing.B) {
	_, x := filled(1_010_000)
	eq, ne, re, nre := labels.MatchEqual, labels.MatchNotEqual, labels.MatchRegexp, labels.MatchNotRegexp
	metric := matcher(eq, "__name__", "node_metric_007_total")
	for name, ms := range map[string][]*labels.Matcher{
		"metric":                    {metric},
		"metric_host":               {metric, matcher(eq, "hostname", "host_77")},
		"metric_8_hosts":            {metric, matcher(re, "hostname", "host_1|host_2|host_3|host_4|host_5|host_6|host_7|host_8")},
		"metric_region_not_team":    {metric, matcher(eq, "region", "region-3"), matcher(ne, "team", "team-3")},
		"metric_host_prefix":        {metric, matcher(re, "hostname", "host_77.*")},
		"metric_host_suffix":        {metric, matcher(nre, "hostname", ".*7")},
		"job_10_metrics":            {matcher(eq, "job", "node"), matcher(re, "__name__", "node_metric_00.*")},
		"everything_without_region": {matcher(ne, "region", "region-3")},
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			n := uint64(0)
			for b.Loop() {
				n = x.Match(ms).GetCardinality()
			}
			b.ReportMetric(float64(n), "series")
		})
	}
}

func BenchmarkStats(b *testing.B) {
	_, x := filled(101_000)
	for b.Loop() {
		x.Stats(10)
	}
}

// BenchmarkMemory reports the memory of an index of a million series beside its labels.
func BenchmarkMemory(b *testing.B) {
	const n = 1_010_000
	ls := hostLabels(n)
	size := 0
	for _, l := range ls {
		size += len(l)
	}
	for b.Loop() {
		before := heap()
		x := New()
		for _, l := range ls {
			x.Intern(l)
		}
		b.ReportMetric(float64(heap()-before)/n, "B/series")
		runtime.KeepAlive(x)
	}
	b.ReportMetric(float64(size)/n, "B/labels")
	runtime.KeepAlive(ls)
}

func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

func TestInternOfAKnownSeriesAllocatesNothing(t *testing.T) {
	ls, x := filled(1000)
	i := 0
	if n := testing.AllocsPerRun(1000, func() { x.Intern(ls[i%1000]); i++ }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// BenchmarkSort puts a million series, as they came from hosts, into label order: by comparing, by parts, and by places.
func BenchmarkSort(b *testing.B) {
	x := New()
	refs := x.InternAll(hostLabels(1_010_000), nil)
	for _, by := range []struct {
		name string
		sort func(rs []Ref)
	}{
		{"compare", func(rs []Ref) {
			slices.SortFunc(rs, func(a, b Ref) int { return x.Labels(a).Compare(x.Labels(b)) })
		}},
		{"parts", func(rs []Ref) { SortByLabels(rs, x.Labels) }},
		{"ranks", func(rs []Ref) { SortRefs(x, rs, func(r Ref) Ref { return r }) }},
	} {
		b.Run(by.name, func(b *testing.B) {
			by.sort(slices.Clone(refs)) // learns
			b.ReportAllocs()
			var c cpu
			c.start(b)
			n := 0
			for b.Loop() {
				rs := slices.Clone(refs)
				by.sort(rs)
				n += len(rs)
			}
			c.report(b, n)
		})
	}
}
