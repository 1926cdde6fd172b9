package point

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// strip removes the label "replica", drops series with drop="yes", and refuses those with bad="yes".
type strip struct{}

func (strip) Relabel(l Labels) (Labels, bool, error) {
	if l.Get("drop") != "" {
		return "", false, nil
	}
	if l.Get("bad") != "" {
		return "", false, fault.Errorf(fault.Invalid, "bad")
	}
	var b LabelsBuilder
	l.Range(func(name, value string) bool {
		if name != "replica" {
			b.Add([]byte(name), []byte(value))
		}
		return true
	})
	out, err := b.Labels()
	return out, true, err
}

func relabelled() *Dict {
	d := NewDict(0)
	d.Relabel(strip{})
	return d
}

// TestRelabelledSeriesAreFoundByTheirRawBytes: the rules run once a series, by every way into a Dict.
func TestRelabelledSeriesAreFoundByTheirRawBytes(t *testing.T) {
	a, b := MakeLabels(MetricName, "m", "replica", "1"), MakeLabels(MetricName, "m", "replica", "2")
	want, gone, bad := MakeLabels(MetricName, "m"), MakeLabels(MetricName, "m", "drop", "yes"), MakeLabels(MetricName, "m", "bad", "yes")
	alone := func(d *Dict, l Labels) (SeriesID, error) { return d.Intern(d.Hash([]byte(l)), l) }
	bytes := func(d *Dict, l Labels) (SeriesID, error) { return d.InternBytes(d.Hash([]byte(l)), []byte(l)) }
	together := func(d *Dict, l Labels) (SeriesID, error) {
		var f Fresh
		f.Text = append(f.Text, l...)
		f.End(d.Hash([]byte(l)))
		err := d.InternAll(&f)
		return f.IDs[0], err
	}
	for name, intern := range map[string]func(*Dict, Labels) (SeriesID, error){"alone": alone, "bytes": bytes, "together": together} {
		d := relabelled()
		one, err1 := intern(d, a)
		two, err2 := intern(d, b)
		if err1 != nil || err2 != nil || one != two || d.Labels(one) != want {
			t.Errorf("%s: %d %d %v %v %s", name, one, two, err1, err2, d.Labels(one))
		}
		if id, ok := d.Lookup(d.Hash([]byte(b))); !ok || id != one {
			t.Errorf("%s: the raw bytes of the second are not known", name)
		}
		if _, err := intern(d, bad); !fault.Is(err, fault.Invalid) {
			t.Errorf("%s: a series that the rules spoil: %v", name, err)
		}
		id, err := intern(d, gone)
		if err != nil || id == one {
			t.Errorf("%s: dropped: %d %v", name, id, err)
		}
		if other, err := intern(d, MakeLabels(MetricName, "n", "drop", "yes")); err != nil || other != id {
			t.Errorf("%s: another dropped one: %d, not %d, %v", name, other, id, err)
		}
		if d.Len() != 2 {
			t.Errorf("%s: %d series", name, d.Len())
		}
	}
	d := relabelled()
	if id, err := d.InternTaken(d.Hash([]byte(a)), a); err != nil || d.Labels(id) != a {
		t.Errorf("a series that another Dict relabelled is relabelled again: %v", err)
	}
}

// TestRowsOfDroppedSeriesLeaveTheOthersInPlace compares batches with a model.
func TestRowsOfDroppedSeriesLeaveTheOthersInPlace(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 7))
	for range 300 {
		d := relabelled()
		var ids [4]SeriesID
		for i, l := range []Labels{MakeLabels(MetricName, "a"), MakeLabels(MetricName, "x", "drop", "yes"), MakeLabels(MetricName, "b"), MakeLabels(MetricName, "y", "drop", "yes")} {
			var err error
			if ids[i], err = d.Intern(d.Hash([]byte(l)), l); err != nil {
				t.Fatal(err)
			}
		}
		b := &Batch{Dict: d}
		var times []Nanos
		var items []int // of the kept rows
		var want Dropped
		for item := 1; item <= 5; item++ {
			b.BeginItem()
			for range r.IntN(4) {
				n, at := r.IntN(4), Nanos(r.IntN(1000))
				b.Append(ids[n], at, float64(at))
				if n%2 == 0 {
					times, items = append(times, at), append(items, item)
				} else {
					want.Floats++
				}
			}
		}
		for i := range r.IntN(4) {
			b.Hists = append(b.Hists, HistRow{ID: ids[i]})
			b.Exemplars = append(b.Exemplars, ExemplarRow{ID: ids[i]})
			want.Hists, want.Exemplars = want.Hists+i%2, want.Exemplars+i%2
		}
		if got := b.RemoveDropped(); got != want || d.DroppedRows() != uint64(want.Floats+want.Hists) {
			t.Fatalf("dropped %+v, want %+v", got, want)
		}
		if !slices.Equal(b.Times, times) {
			t.Fatalf("rows %v, want %v", b.Times, times)
		}
		for i := range b.Times {
			if b.Values[i] != float64(times[i]) || b.Item(i) != items[i] || d.Labels(b.IDs[i]) == "" {
				t.Fatalf("row %d: item %d, want %d", i, b.Item(i), items[i])
			}
		}
		for _, h := range b.Hists {
			if strings.Contains(string(d.Labels(h.ID)), "drop") || d.Labels(h.ID) == "" {
				t.Fatal("a histogram of a dropped series is left")
			}
		}
	}
}

// TestRowsOfADroppedSeriesAreRemovedFromTheFirstOn: requests that begin at the same moment all bring series that are dropped. Each found the number
// that the first one made, and some before it counted as the number of dropped series: their rows stayed, without a name.
func TestRowsOfADroppedSeriesAreRemovedFromTheFirstOn(t *testing.T) {
	const senders, rounds = 4, 60_000
	labels := make([]Labels, senders)
	for i := range labels {
		labels[i] = MakeLabels("__name__", fmt.Sprint("m", i))
	}
	for range rounds {
		d := NewDict(0)
		d.Relabel(dropAll{})
		var begin, end sync.WaitGroup
		begin.Add(1)
		for _, l := range labels {
			end.Go(func() {
				b := GetBatch(d)
				defer b.Put()
				begin.Wait()
				id, err := d.InternLabels(l, Hash{})
				if err != nil {
					t.Error(err)
				}
				b.Append(id, 1, 1)
				if b.RemoveDropped(); b.Rows() > 0 {
					t.Errorf("a row of %s stays, as %q", l, d.Labels(id))
				}
			})
		}
		begin.Done()
		if end.Wait(); t.Failed() {
			return
		}
	}
}

// dropAll drops every series.
type dropAll struct{}

func (dropAll) Relabel(Labels) (Labels, bool, error) { return "", false, nil }
