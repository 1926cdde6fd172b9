package labelorder

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/RoaringBitmap/roaring/v2"

	"github.com/spillwaydb/spillway/protocols/point"
)

// world is series with their postings, by name and value in order.
type world struct {
	series []point.Labels
	names  []string
	values map[string]map[string]*roaring.Bitmap
	read   int // postings
}

func newWorld(series []point.Labels) *world {
	w := &world{series: series, values: map[string]map[string]*roaring.Bitmap{}}
	for i, l := range series {
		l.Range(func(name, value string) bool {
			if w.values[name] == nil {
				w.values[name] = map[string]*roaring.Bitmap{}
				w.names = append(w.names, name)
			}
			if w.values[name][value] == nil {
				w.values[name][value] = roaring.New()
			}
			w.values[name][value].Add(uint32(i))
			return true
		})
	}
	slices.Sort(w.names)
	return w
}

// counts is how many values each name has.
func (w *world) counts() (counts []int) {
	for _, name := range w.names {
		counts = append(counts, len(w.values[name]))
	}
	return counts
}

func (w *world) each(name int, rest *roaring.Bitmap, f func(*roaring.Bitmap) bool) error {
	of := w.values[w.names[name]]
	var values []string
	for v := range of {
		values = append(values, v)
	}
	slices.Sort(values)
	for _, v := range values {
		w.read++
		if has := roaring.And(of[v], rest); !has.IsEmpty() && !f(has) {
			break
		}
	}
	return nil
}

func (w *world) first(of *roaring.Bitmap, n int) (first []point.Labels) {
	for it := of.Iterator(); it.HasNext(); {
		first = append(first, w.series[it.Next()])
	}
	slices.SortFunc(first, point.Labels.Compare)
	return first[:min(n, len(first))]
}

// TestNarrowedSeriesHaveTheFirst compares with sorting all, for sets of labels of which some are the beginnings of others and names are missing in some.
func TestNarrowedSeriesHaveTheFirst(t *testing.T) {
	for seed := range uint64(8) {
		r := rand.New(rand.NewPCG(seed, 1))
		seen := map[point.Labels]bool{}
		names := []string{"A", "__name__", "host", "job", "z"}
		values := 1 + r.IntN(40)
		for range 2000 {
			var pairs []string
			for _, name := range names {
				if name == point.MetricName || r.IntN(5) > 0 {
					pairs = append(pairs, name, fmt.Sprint(r.IntN(values)))
				}
			}
			seen[point.MakeLabels(pairs...)] = true
		}
		var series []point.Labels
		for l := range seen {
			series = append(series, l)
		}
		slices.SortFunc(series, point.Labels.Compare)
		r.Shuffle(len(series), func(i, j int) { series[i], series[j] = series[j], series[i] })
		w := newWorld(series)
		within := roaring.New()
		for i := range series {
			if r.IntN(4) > 0 {
				within.Add(uint32(i))
			}
		}
		for _, n := range []int{0, 1, 7, 100, 5000} {
			before := within.Clone()
			got, err := Narrow(within, n, w.counts(), []int{slices.Index(w.names, point.MetricName), -1}[seed%2], w.each)
			if err != nil || !within.Equals(before) {
				t.Fatal(err, "within changed")
			}
			if !roaring.And(got, within).Equals(got) {
				t.Fatalf("seed %d, first %d: series that were not asked for", seed, n)
			}
			if !slices.Equal(w.first(got, n), w.first(within, n)) {
				t.Fatalf("seed %d, first %d: others than by sorting", seed, n)
			}
			if most := n + (1+2*len(names))*Few; int(got.GetCardinality()) > most {
				t.Errorf("seed %d, first %d: %d series", seed, n, got.GetCardinality())
			}
		}
	}
}

// TestASeriesWithoutFurtherLabelsIsFirst has one that is the beginning of all others, of which half lack the next name.
func TestASeriesWithoutFurtherLabelsIsFirst(t *testing.T) {
	shortest := point.MakeLabels("__name__", "m")
	var series []point.Labels
	for i := range 4 * Few {
		series = append(series, point.MakeLabels("__name__", "m", "host", fmt.Sprint(i%3), "z", fmt.Sprint(i)), point.MakeLabels("__name__", "m", "job", fmt.Sprint(i)))
	}
	series = append(series, shortest)
	w := newWorld(series)
	within := roaring.New()
	within.AddRange(0, uint64(len(series)))
	for _, every := range []int{0, -1} {
		got, err := Narrow(within, 1, w.counts(), every, w.each)
		if first := w.first(got, 1); err != nil || first[0] != shortest || got.GetCardinality() > 4*Few {
			t.Errorf("the first of %d is %v, %v", got.GetCardinality(), first, err)
		}
	}
}

// TestFewPostingsAreReadForTheFirst counts the postings that are read for three of thirty thousand series.
func TestFewPostingsAreReadForTheFirst(t *testing.T) {
	var series []point.Labels
	for metric := range 100 {
		for host := range 300 {
			series = append(series, point.MakeLabels("__name__", fmt.Sprintf("m%03d", metric), "dc", fmt.Sprint(host%3), "host", fmt.Sprintf("h%03d", host)))
		}
	}
	w := newWorld(series)
	within := roaring.New()
	within.AddRange(0, uint64(len(series)))
	got, err := Narrow(within, 3, w.counts(), 0, w.each)
	if err != nil || got.GetCardinality() > Few+3 || w.read > 1+3 {
		t.Fatalf("%d series, %d postings read, %v", got.GetCardinality(), w.read, err)
	}
}

// TestFewOfManyValuesAreRead asks for three of a thousand series that have few of the values of a label: reading their labels costs less than all its postings.
func TestFewOfManyValuesAreRead(t *testing.T) {
	var series []point.Labels
	for pod := range 10_000 {
		series = append(series, point.MakeLabels("__name__", "m", "dc", fmt.Sprint(pod%2), "pod", fmt.Sprintf("p%05d", pod)))
	}
	for i := range 1000 {
		series = append(series, point.MakeLabels("__name__", "up", "dc", fmt.Sprint(i%2), "z", fmt.Sprint(i)))
	}
	w := newWorld(series)
	within := roaring.New()
	within.AddRange(10_000, 11_000)
	got, err := Narrow(within, 3, w.counts(), 0, w.each)
	if err != nil || !slices.Equal(w.first(got, 3), w.first(within, 3)) || w.read > 1000 {
		t.Fatalf("%d postings were read for the first of %d, %v", w.read, got.GetCardinality(), err)
	}
}
