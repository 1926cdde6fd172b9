package server

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/series"
)

// TestOrderIsThatOfLabels sorts random subsets of series that come, go, and pass their numbers on to others.
func TestOrderIsThatOfLabels(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	var o order
	table := make([]found, 3000)
	renew := func(i int) {
		l := point.MakeLabels("__name__", fmt.Sprint("m", rng.IntN(20)), "host", fmt.Sprint(rng.Uint32()))
		table[i] = found{labels: l, ref: series.Ref(i), known: rng.IntN(10) > 0}
	}
	for i := range table {
		renew(i)
	}
	for round := range 60 {
		for range 200 {
			renew(rng.IntN(len(table)))
		}
		all := slices.Clone(table)
		rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		all = all[:rng.IntN(len(all))]
		want := slices.Clone(all)
		slices.SortFunc(want, compareFound)
		o.sort(all, len(table)/(1+round%3))
		if !slices.EqualFunc(all, want, func(a, b found) bool { return a.labels == b.labels && a.ref == b.ref }) {
			t.Fatalf("round %d: %d series are not in order", round, len(all))
		}
	}
	if n := len(o.mu.sorted); n == 0 || n > 2*len(table) {
		t.Errorf("%d places of %d series", n, len(table))
	}
}

// BenchmarkOrder sorts 20 000 series in the order of their numbers.
func BenchmarkOrder(b *testing.B) {
	var o order
	table := make([]found, 20_000)
	for i := range table {
		l := point.MakeLabels("__name__", fmt.Sprint("cpu_usage_", i%100), "arch", "x64", "datacenter", "eu-central-1a",
			"hostname", fmt.Sprint("host_", i/100), "os", "Ubuntu16.04LTS", "rack", "42", "region", "eu-central-1")
		table[i] = found{labels: l, ref: series.Ref(i), known: true}
	}
	o.sort(slices.Clone(table), len(table))
	b.Run("learnt", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			o.sort(slices.Clone(table), len(table))
		}
	})
	b.Run("labels", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			slices.SortFunc(slices.Clone(table), compareFound)
		}
	})
}
