package point_test

import (
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

// add appends a set to f under the hash of raw; no hash for "".
func add(d *point.Dict, f *point.Fresh, raw string, l point.Labels) {
	f.Text = append(f.Text, l...)
	var h point.Hash
	if raw != "" {
		h = d.Hash([]byte(raw))
	}
	f.End(h)
}

func TestFreshSeriesAreNumberedInTheirOrder(t *testing.T) {
	d := point.NewDict(0)
	up, down := point.MakeLabels("__name__", "up"), point.MakeLabels("__name__", "down")
	mustIntern(t, d, "up", up)
	var f point.Fresh
	add(d, &f, "down", down)
	add(d, &f, "", point.MakeLabels("__name__", "left"))
	add(d, &f, "up, another way", up)
	add(d, &f, "down again", down) // twice in one list
	f.Text = append(f.Text, "half a set"...)
	f.Drop()
	if err := d.InternAll(&f); err != nil || !slices.Equal(f.IDs, []point.SeriesID{1, 2, 0, 1}) || d.Len() != 3 {
		t.Fatalf("InternAll = %v, %v, of %d series", f.IDs, err, d.Len())
	}
	clear(f.Text) // the Dict keeps no part of this memory
	for raw, want := range map[string]point.SeriesID{"up": 0, "down": 1, "up, another way": 0, "down again": 1} {
		if id, ok := d.Lookup(d.Hash([]byte(raw))); !ok || id != want {
			t.Errorf("%s = %d, %v", raw, id, ok)
		}
	}
	if id, ok := d.LookupAfter(0, d.Hash([]byte("down"))); !ok || id != 1 || d.Labels(1) != down {
		t.Errorf("after series 0: %d, %v, %s", id, ok, d.Labels(1))
	}
	if _, ok := d.LookupAfter(1, point.Hash{}); ok {
		t.Error("a series without a hash is found by none")
	}
}

func TestFreshSeriesOfAFullDictionary(t *testing.T) {
	d := point.NewDict(3)
	a := point.MakeLabels("__name__", "a")
	mustIntern(t, d, "a", a)
	var f point.Fresh
	for _, name := range []string{"b", "c", "d", "e"} {
		add(d, &f, name, point.MakeLabels("__name__", name))
	}
	if err := d.InternAll(&f); !fault.Is(err, fault.Throttled) || !slices.Equal(f.IDs, []point.SeriesID{1, 2}) {
		t.Errorf("four more series, where two have room: %v, %v", f.IDs, err)
	}
	if _, ok := d.Lookup(d.Hash([]byte("d"))); ok || d.Len() != 3 {
		t.Error("a refused series left something behind")
	}
	f.Reset()
	add(d, &f, "another a", a)
	if err := d.InternAll(&f); err != nil || f.IDs[0] != 0 {
		t.Errorf("a known series in a full dictionary: %v, %v", f.IDs, err)
	}
}

func TestLookupAll(t *testing.T) {
	d := point.NewDict(0)
	if ids := d.LookupAll([]point.Hash{{Lo: 1}}, nil); !slices.Equal(ids, []point.SeriesID{point.NoSeries}) {
		t.Errorf("in an empty dictionary: %v", ids)
	}
	var hs []point.Hash
	var want []point.SeriesID
	for i := range 5000 {
		raw := fmt.Sprint("series ", i)
		hs = append(hs, d.Hash([]byte(raw)))
		if i%3 == 0 {
			want = append(want, point.NoSeries)
			continue
		}
		want = append(want, mustIntern(t, d, raw, point.MakeLabels("__name__", raw)))
	}
	if got := d.LookupAll(hs, nil); !slices.Equal(got, want) {
		t.Error("LookupAll and Intern give other numbers")
	}
}

// TestFirstHashesWhereSeriesHaveNone mixes series with and without a hash over several pages.
func TestFirstHashesWhereSeriesHaveNone(t *testing.T) {
	d := point.NewDict(0)
	var f point.Fresh
	has := func(i int) bool { return i%1024 == 700 && i/1024%3 == 1 || i > 9000 }
	const n = 10_000
	for i := range n {
		f.Reset()
		name := fmt.Sprint("s", i)
		if has(i) {
			add(d, &f, name, point.MakeLabels("__name__", name))
		} else {
			add(d, &f, "", point.MakeLabels("__name__", name))
		}
		if err := d.InternAll(&f); err != nil || int(f.IDs[0]) != i {
			t.Fatalf("series %d = %v, %v", i, f.IDs, err)
		}
	}
	for i := 1; i < n; i++ {
		id, ok := d.LookupAfter(point.SeriesID(i-1), d.Hash(fmt.Append(nil, "s", i)))
		if ok != has(i) || ok && int(id) != i {
			t.Fatalf("series %d after the one before: %d, %v", i, id, ok)
		}
	}
}

// TestManyNumberTheSameSeries lets writers number overlapping lists while readers look: a set has one number, for ever.
func TestManyNumberTheSameSeries(t *testing.T) {
	d := point.NewDict(0)
	const writers, series = 4, 4000
	var wg sync.WaitGroup
	numbers := make([][]point.SeriesID, writers)
	for w := range writers {
		numbers[w] = make([]point.SeriesID, series)
		wg.Go(func() {
			var f point.Fresh
			for from := 0; from < series; from += 40 {
				f.Reset()
				for i := from; i < from+40; i++ {
					name := fmt.Sprint("s", i)
					add(d, &f, name, point.MakeLabels("__name__", name))
				}
				if err := d.InternAll(&f); err != nil {
					t.Error(err)
					return
				}
				copy(numbers[w][from:], f.IDs)
				for i, id := range f.IDs {
					name := fmt.Sprint("s", from+i)
					if got, ok := d.LookupAfter(id-1, d.Hash([]byte(name))); !ok || got != id || d.Labels(id) != point.MakeLabels("__name__", name) {
						t.Errorf("%s = %d, looked up %d, %v", name, id, got, ok)
						return
					}
				}
			}
		})
	}
	wg.Wait()
	for w := range writers {
		if !slices.Equal(numbers[w], numbers[0]) || d.Len() != series {
			t.Fatalf("writers disagree; %d series of %d", d.Len(), series)
		}
	}
}

// BenchmarkInternAll is BenchmarkIntern by lists of 32.
func BenchmarkInternAll(b *testing.B) {
	const n = 1_000_000
	labels := make([]point.Labels, n)
	for i := range labels {
		labels[i] = hostLabels(i)
	}
	runtime.GC()
	b.ReportAllocs()
	d := point.NewDict(0)
	var f point.Fresh
	for i := 0; b.Loop(); i++ {
		if i%n == 0 {
			d = point.NewDict(0)
		}
		f.Text = append(f.Text, labels[i%n]...)
		f.End(d.Hash([]byte(labels[i%n])))
		if f.Len() == 32 || (i+1)%n == 0 {
			if err := d.InternAll(&f); err != nil {
				b.Fatal(err)
			}
			f.Reset()
		}
	}
}

// TestNewSeriesOfABatch: each once, not those that were there, nor those that the dictionary before has.
func TestNewSeriesOfABatch(t *testing.T) {
	name := func(i int) point.Labels { return point.MakeLabels("__name__", fmt.Sprint("n", i)) }
	old := point.NewDict(0)
	mustIntern(t, old, "5", name(5))
	d := point.NewDict(0)
	d.Follow(old)
	b := point.GetBatch(d)
	defer b.Put()
	for i := range 3 {
		b.Append(mustIntern(t, d, fmt.Sprint(i), name(i)), 1, 1)
	}
	known := d.Len()
	for range b.NewSeries(known) {
		t.Fatal("nothing is new")
	}
	mustIntern(t, d, "3", name(3)) // by another request
	for range 2 {
		for i := range 90 {
			if i != 3 {
				b.Append(mustIntern(t, d, fmt.Sprint(i), name(i)), 1, 1)
			}
		}
	}
	b.Hists = append(b.Hists, point.HistRow{ID: mustIntern(t, d, "4", name(4))}, point.HistRow{ID: mustIntern(t, d, "h", point.MakeLabels("__name__", "h"))})
	seen := map[point.Labels]int{}
	for l := range b.NewSeries(known) {
		seen[l]++
	}
	if len(seen) != 90-5+1 || seen[name(4)] != 1 || seen[name(89)] != 1 || seen[name(2)]+seen[name(3)]+seen[name(5)] != 0 || seen[point.MakeLabels("__name__", "h")] != 1 {
		t.Errorf("%d new series: %v", len(seen), seen)
	}
}
