package partition

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/series"
)

// benchSeries is how many series a benchmark has.
func benchSeries() int {
	if v, err := strconv.Atoi(os.Getenv("SPILLWAY_SERIES")); err == nil {
		return v
	}
	return 200_000
}

// BenchmarkCompactSeries compacts a partition of series that live for a while each, SPILLWAY_SERIES of them, and reports the heap
// that it uses beyond the heap before.
func BenchmarkCompactSeries(b *testing.B) {
	n := benchSeries()
	for b.Loop() {
		b.StopTimer()
		p := churned(&testing.T{}, b.TempDir(), n)
		defer debug.SetGCPercent(debug.SetGCPercent(gcPercent()))
		runtime.GC()
		before := heapBytes()
		quit, peak := make(chan struct{}), make(chan uint64)
		go func() {
			most := uint64(0)
			for {
				select {
				case <-quit:
					peak <- most
					return
				case <-time.After(5 * time.Millisecond):
					most = max(most, heapBytes())
				}
			}
		}()
		b.StartTimer()
		if err := p.Compact(context.Background(), ByRequest); err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		close(quit)
		b.ReportMetric((float64(<-peak)-float64(before))/float64(n), "B/series")
		p.close()
		b.StartTimer()
	}
}

func heapBytes() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// churned makes a partition of n series in ten segments, two rows each.
func churned(t *testing.T, dir string, n int) *bench {
	fs := vfs.Default
	if err := os.Chdir(dir); err != nil {
		panic(err)
	}
	p := openBench(t, fs, 1)
	const flushes, batch = 10, 1000
	for flush := range flushes {
		for at := flush * n / flushes; at < (flush+1)*n/flushes; at += batch {
			var labels []point.Labels
			for i := at; i < at+batch; i++ {
				labels = append(labels, point.MakeLabels("__name__", fmt.Sprintf("container_metric_%03d", i%100), "cluster", "prod-eu-1",
					"container", "app", "endpoint", "https-metrics", "id", fmt.Sprintf("/kubepods/burstable/pod%08x-2c1f-4a57-9d0e", i/100*7919),
					"image", "registry.example.com/team/app:v1.27.3", "job", "kubelet", "namespace", fmt.Sprint("team-", i/100%40),
					"node", fmt.Sprint("node-", i/100%300), "pod", fmt.Sprintf("app-%x-%05x", i/100%9973, i/100)))
			}
			refs := p.index.InternAll(labels, nil)
			times, values := make([]point.Nanos, batch), make([]float64, batch)
			for k := range 2 {
				for i := range times {
					times[i], values[i] = point.Nanos(flush*10+k), float64(i)
				}
				p.stamp += 1024
				p.must(p.Append(&Rows{Stamp: p.stamp, Level: point.Received, Refs: refs, Times: times, Values: values}))
			}
			p.index.Release(refs...)
		}
		p.must(p.Flush(context.Background(), ByAge))
	}
	return p
}

// gcPercent is little, so that the heap's peak is the live heap; SPILLWAY_GC=60 measures the time.
func gcPercent() int {
	if v, err := strconv.Atoi(os.Getenv("SPILLWAY_GC")); err == nil {
		return v
	}
	return 5
}

// BenchmarkFoldSeries folds three flushes of six rows of each of SPILLWAY_SERIES series, which an older segment defines.
func BenchmarkFoldSeries(b *testing.B) {
	n := benchSeries()
	for b.Loop() {
		b.StopTimer()
		p := churned(&testing.T{}, b.TempDir(), n)
		p.must(p.Compact(context.Background(), ByRequest))
		for flush := range 3 {
			p.scrapes(n, 6, point.Nanos(100+flush*10))
			p.must(p.Flush(context.Background(), ByAge))
		}
		b.StartTimer()
		p.must(p.compact(context.Background(), ByCount, p.Segments()[1].ID))
		b.StopTimer()
		p.close()
		b.StartTimer()
	}
}

// scrapes appends rows of the first n series.
func (p *bench) scrapes(n, rows int, from point.Nanos) {
	const batch = 1000
	x := p.ids.Load()
	for at := 0; at < n; at += batch {
		refs := make([]series.Ref, batch)
		for i := range refs {
			refs[i], _ = x.ref(point.DenseID(at + i))
		}
		times, values := make([]point.Nanos, batch), make([]float64, batch)
		for k := range rows {
			for i := range times {
				times[i], values[i] = from+point.Nanos(k), float64((i*7919+k*104729)%1000)
			}
			p.stamp += 1024
			p.must(p.Append(&Rows{Stamp: p.stamp, Level: point.Received, Refs: refs, Times: times, Values: values}))
		}
	}
}
