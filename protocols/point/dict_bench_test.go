package point_test

import (
	"bytes"
	"fmt"
	"math/rand"
	"runtime"
	"testing"

	"github.com/spillwaydb/spillway/protocols/point"
)

// manySeries is a Dict of n series, the hashes of their raw bytes, and the bytes a series needs beside its labels.
func manySeries(b *testing.B, n int) (*point.Dict, []point.Hash, float64) {
	b.Helper()
	d := point.NewDict(0)
	labels := make([]point.Labels, n)
	for i := range labels {
		labels[i] = hostLabels(i)
	}
	hashes := make([]point.Hash, n)
	before := heap()
	for i, l := range labels {
		hashes[i] = d.Hash([]byte(l))
		if _, err := d.Intern(hashes[i], l); err != nil {
			b.Fatal(err)
		}
	}
	size := float64(heap()-before) / float64(n)
	runtime.KeepAlive(labels)
	return d, hashes, size
}

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

func hostLabels(i int) point.Labels {
	return point.MakeLabels("__name__", fmt.Sprintf("cpu_usage_%d", i%101), "hostname", fmt.Sprintf("host_%d", i/101),
		"region", "eu-central-1", "rack", fmt.Sprint(i%97), "service", fmt.Sprint(i%19))
}

func BenchmarkHash(b *testing.B) {
	d := point.NewDict(0)
	for _, n := range []int{50, 150, 300} {
		raw := bytes.Repeat([]byte{'x'}, n)
		b.Run(fmt.Sprintf("%d B", n), func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(n))
			for b.Loop() {
				sinkHash = d.Hash(raw)
			}
		})
	}
}

var sinkHash point.Hash

func BenchmarkLookup(b *testing.B) {
	const n = 1_000_000
	d, hashes, size := manySeries(b, n)
	order := rand.New(rand.NewSource(1)).Perm(n)
	run := func(name string, f func(i int) bool) {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if !f(i) {
					b.Fatal("a known series is not found")
				}
			}
			b.ReportMetric(size, "B/series")
		})
	}
	run("hot, 1 k of 1 M series", func(i int) bool { _, ok := d.Lookup(hashes[order[i%1000]]); return ok })
	run("cold, 1 M series at random", func(i int) bool { _, ok := d.Lookup(hashes[order[i%n]]); return ok })
	prev := point.SeriesID(0)
	run("after, 1 M series in order", func(i int) (ok bool) { prev, ok = d.LookupAfter(prev, hashes[i%n]); return ok })
}

// BenchmarkIntern makes a million series again and again; the price of growing is within.
func BenchmarkIntern(b *testing.B) {
	const n = 1_000_000
	labels := make([]point.Labels, n)
	raw := make([][]byte, n)
	for i := range labels {
		labels[i] = hostLabels(i)
		raw[i] = []byte(labels[i])
	}
	b.ReportAllocs()
	d := point.NewDict(0)
	for i := 0; b.Loop(); i++ {
		if i%n == 0 {
			d = point.NewDict(0)
		}
		if _, err := d.Intern(d.Hash(raw[i%n]), labels[i%n]); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkLabelsBuilder(b *testing.B) {
	l := hostLabels(12345)
	var pairs [][2][]byte
	l.Range(func(n, v string) bool { pairs = append(pairs, [2][]byte{[]byte(n), []byte(v)}); return true })
	var lb point.LabelsBuilder
	b.ReportAllocs()
	for b.Loop() {
		lb.Reset()
		for _, p := range pairs {
			lb.Add(p[0], p[1])
		}
		if _, err := lb.Labels(); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkLabelsValid(b *testing.B) {
	l := hostLabels(12345)
	b.ReportAllocs()
	for b.Loop() {
		if !l.Valid() {
			b.Fatal("not valid")
		}
	}
}
