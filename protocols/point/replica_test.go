package point

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/spillwaydb/spillway/protocols/fault"
)

var pairLabels = ReplicaLabels{Cluster: "cluster", Replica: "__replica__"}

// paired makes a Dict that removes the replica label.
func paired(seriesMax int) *Dict {
	d := NewDict(seriesMax)
	d.Replicas(pairLabels)
	return d
}

func of(pairs ...string) Labels { return MakeLabels(append([]string{"__name__", "up"}, pairs...)...) }

// intern numbers labels as a decoder does, and looks the number up again.
func intern(t *testing.T, d *Dict, l Labels) SeriesID {
	t.Helper()
	h := d.Hash([]byte(l))
	id, err := d.Intern(h, l)
	if err != nil {
		t.Fatal(err)
	}
	if again, ok := d.Lookup(h); !ok || again != id {
		t.Fatalf("%s: number %d, looked up %d %v", l, id, again, ok)
	}
	return id
}

// TestSeriesOfReplicasAreOneSeries: the numbers of the same series from two senders differ, their labels do not.
func TestSeriesOfReplicasAreOneSeries(t *testing.T) {
	d := paired(0)
	f := func(want string, replica string, pairs ...string) SeriesID {
		t.Helper()
		id := intern(t, d, of(pairs...))
		if got := d.Labels(id).String(); got != want {
			t.Errorf("%q: %s, want %s", pairs, got, want)
		}
		if got := d.Replica(id); got != replica {
			t.Errorf("%q: replica %q, want %q", pairs, got, replica)
		}
		return id
	}
	a := f(`{__name__="up", cluster="x", job="j"}`, "a", "cluster", "x", "__replica__", "a", "job", "j")
	b := f(`{__name__="up", cluster="x", job="j"}`, "b", "cluster", "x", "__replica__", "b", "job", "j")
	if a == b || a < twinFirst || b < twinFirst {
		t.Errorf("numbers %d and %d", a, b)
	}
	for _, pairs := range [][]string{{"cluster", "x", "job", "j"}, {"job", "j"}, {"__replica__", "a"}, {"cluster", "", "__replica__", "a"}, {"cluster", "x", "__replica__", ""}} {
		if id := intern(t, d, of(pairs...)); id >= twinFirst {
			t.Errorf("%q has no sender, and the number %d", pairs, id)
		}
	}
	if n := d.Len(); n != 4 { // with cluster and job, job, __replica__ alone, cluster alone
		t.Errorf("%d series", n)
	}
}

// TestRowsOfOneSenderAreKept also looks at the items of rows, and at rows of series without a sender.
func TestRowsOfOneSenderAreKept(t *testing.T) {
	d := paired(0)
	id := func(i int, sender string) SeriesID {
		pairs := []string{"i", fmt.Sprint(i)}
		if cluster, replica, ok := strings.Cut(sender, "/"); ok {
			pairs = append(pairs, "cluster", cluster, "__replica__", replica)
		}
		return intern(t, d, of(pairs...))
	}
	b := GetBatch(d)
	defer b.Put()
	senders := []string{"x/a", "x/b", "", "y/b", "y/b", "x/a", "full/a", "", "x/b"}
	for i, s := range senders {
		b.BeginItem()
		b.Append(id(i, s), Nanos(i), float64(i))
		b.Hists = append(b.Hists, HistRow{ID: id(i, s), Time: Nanos(i)})
		b.Exemplars = append(b.Exemplars, ExemplarRow{ID: id(i, s), Time: Nanos(i)})
	}
	var asked []string
	n := b.ResolveReplicas(func(s Sender) (bool, error) {
		asked = append(asked, s.Cluster+"/"+s.Replica)
		if s.Cluster == "full" {
			return false, fault.Errorf(fault.Invalid, "too many clusters")
		}
		return s.Replica == "a", nil
	})
	if want := []string{"x/a", "x/b", "y/b", "full/a"}; !slices.Equal(asked, want) {
		t.Errorf("asked for %q, want %q", asked, want)
	}
	if want := (Dropped{4, 4, 4}); n != want {
		t.Errorf("%+v rows are duplicates, want %+v", n, want)
	}
	want := []Nanos{0, 2, 5, 7}
	if !slices.Equal(b.Times, want) || !slices.Equal(b.Values, []float64{0, 2, 5, 7}) || len(b.Hists) != 4 || len(b.Exemplars) != 4 {
		t.Fatalf("kept %v %v, %d histograms, %d exemplars", b.Times, b.Values, len(b.Hists), len(b.Exemplars))
	}
	for row, at := range want {
		if got := b.Item(row); got != int(at)+1 {
			t.Errorf("row of %d is item %d", at, got)
		}
		for _, got := range []SeriesID{b.IDs[row], b.Hists[row].ID, b.Exemplars[row].ID} {
			if got >= twinFirst || d.Labels(got).Get("i") != fmt.Sprint(at) || d.Labels(got).Get("__replica__") != "" {
				t.Errorf("row of %d has number %d: %s", at, got, d.Labels(got))
			}
		}
	}
	if b.RefusedRows != 2 || len(b.Refused) != 2 || b.Refused[0].Item != 7 || b.Refused[0].Kind != fault.Invalid || !strings.Contains(b.Refused[0].Text, `i="6"`) {
		t.Errorf("refused %d: %+v", b.RefusedRows, b.Refused)
	}
	if again := b.ResolveReplicas(func(Sender) (bool, error) { t.Error("asked again"); return true, nil }); again != (Dropped{}) {
		t.Errorf("the second time: %+v", again)
	}
}

// TestSendersOfWhichRowsAreLeft: each by its own rows, floats or histograms. Exemplars, and rows without a sender, are no sign of any.
func TestSendersOfWhichRowsAreLeft(t *testing.T) {
	d := paired(0)
	x, y, z := Sender{"x", "a"}, Sender{"y", "a"}, Sender{"z", "b"}
	for _, c := range []struct {
		floats, hists, exemplars string
		want                     []Sender
	}{
		{"", "", "xyz", nil},
		{"x-", "", "yz", []Sender{x}},
		{"--", "yy", "x", []Sender{y}},
		{"zx", "y", "", []Sender{z, x, y}},
	} {
		b := GetBatch(d)
		id := func(r rune) SeriesID {
			if r == '-' {
				return intern(t, d, of("i", "1"))
			}
			return intern(t, d, of("i", "1", "cluster", string(r)))
		}
		for _, r := range c.floats {
			b.Append(id(r), 1, 1)
		}
		for _, r := range c.hists {
			b.Hists = append(b.Hists, HistRow{ID: id(r)})
		}
		for _, r := range c.exemplars {
			b.Exemplars = append(b.Exemplars, ExemplarRow{ID: id(r)})
		}
		if got := b.SendersLeft([]Sender{x, y, z}); !slices.Equal(got, c.want) {
			t.Errorf("%+v: %v", c, got)
		}
		if got := b.SendersLeft(nil); got != nil {
			t.Errorf("of none: %v", got)
		}
		b.Put()
	}
}

// TestSendersOfRelabelledRowsAreLeft: where the label of the group was dropped no row had it, and a replica that was alive counted as silent, and was replaced,
// again and again.
func TestSendersOfRelabelledRowsAreLeft(t *testing.T) {
	d := paired(0)
	d.Relabel(same{})
	b := GetBatch(d)
	defer b.Put()
	x := Sender{"x", "a"}
	if got := b.SendersLeft([]Sender{x}); got != nil {
		t.Errorf("without rows: %v", got)
	}
	b.Append(intern(t, d, of("i", "1")), 1, 1)
	if got := b.SendersLeft([]Sender{x}); !slices.Equal(got, []Sender{x}) {
		t.Errorf("with a row: %v", got)
	}
}

// same leaves labels as they are.
type same struct{}

func (same) Relabel(l Labels) (Labels, bool, error) { return l, true, nil }

// TestSeriesOfReplicasAreFoundInOrder: senders repeat their series in the same order, and LookupAfter finds each by the one before.
func TestSeriesOfReplicasAreFoundInOrder(t *testing.T) {
	d := paired(0)
	for _, replica := range []string{"a", "b"} {
		var f Fresh
		var hashes []Hash
		for i := range 300 {
			l := of("cluster", "x", "__replica__", replica, "i", fmt.Sprint(i))
			f.Text = append(f.Text, l...)
			hashes = append(hashes, d.Hash([]byte(l)))
			f.End(hashes[i])
		}
		if err := d.InternAll(&f); err != nil {
			t.Fatal(err)
		}
		for i, id := range f.IDs {
			if id < twinFirst || i > 0 && id != f.IDs[i-1]+1 {
				t.Fatalf("%s: number %d after %d", replica, id, f.IDs[max(0, i-1)])
			}
			if i == 0 {
				continue
			}
			if got, ok := d.twins.lookupAfter(f.IDs[i-1], hashes[i]); !ok || got != id {
				t.Fatalf("%s: %d after %d is %d %v", replica, id, f.IDs[i-1], got, ok)
			}
		}
	}
	if d.Len() != 300 {
		t.Errorf("%d series", d.Len())
	}
	for _, prev := range []SeriesID{0, 299, 300, twinFirst - 1, twinFirst + 599, twinFirst + 600, NoSeries, NoSeries - 1} {
		if id, ok := d.LookupAfter(prev, d.Hash([]byte("never"))); ok {
			t.Errorf("after %d: %d", prev, id)
		}
	}
}

// TestReplicasAreBounded: their series, their names, and the length of these.
func TestReplicasAreBounded(t *testing.T) {
	add := func(d *Dict, i int, cluster, replica string) error {
		l := of("cluster", cluster, "__replica__", replica, "i", fmt.Sprint(i))
		_, err := d.Intern(d.Hash([]byte(l)), l)
		return err
	}
	d := paired(2)
	for i := range 2 * twinsPerSeries {
		if err := add(d, i%2, "x", fmt.Sprint(i/2)); err != nil {
			t.Fatal(err)
		}
	}
	if err := add(d, 0, "x", "more"); !fault.Is(err, fault.Throttled) {
		t.Errorf("more than there is memory for: %v", err)
	}
	if err := add(d, 1, "x", "0"); err != nil {
		t.Errorf("a series that is known: %v", err)
	}
	if err := add(paired(0), 0, "x", strings.Repeat("r", SenderBytesMax+1)); !fault.Is(err, fault.Invalid) {
		t.Errorf("a long name: %v", err)
	}
	d = paired(0)
	for i := range SendersMax {
		if err := add(d, 0, fmt.Sprint(i%7), fmt.Sprint(i)); err != nil {
			t.Fatal(err)
		}
	}
	if err := add(d, 0, "x", "more"); !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), `"more" of "x"`) {
		t.Errorf("more senders than are remembered: %v", err)
	}
}

// TestReplicasAndRules: the replica label is removed before relabelling rules see a series, so that they cannot split it in two.
func TestReplicasAndRules(t *testing.T) {
	d := paired(0)
	d.Relabel(relabelFunc(func(l Labels) (Labels, bool, error) {
		if l.Get("__replica__") != "" {
			t.Errorf("the rules see %s", l)
		}
		return of("cluster", "y"), l.Get("i") != "gone", nil
	}))
	a := intern(t, d, of("cluster", "x", "__replica__", "a", "i", "1"))
	gone := intern(t, d, of("cluster", "x", "__replica__", "a", "i", "gone"))
	if d.Labels(a) != of("cluster", "y") || d.Replica(a) != "a" || gone >= twinFirst {
		t.Errorf("%s, dropped %d", d.Labels(a), gone)
	}
	b := GetBatch(d)
	defer b.Put()
	b.Append(a, 1, 1)
	b.Append(gone, 1, 1)
	if n := b.ResolveReplicas(func(s Sender) (bool, error) { return s == Sender{"x", "a"}, nil }); n != (Dropped{}) {
		t.Errorf("%+v", n)
	}
	if n := b.RemoveDropped(); n.Floats != 1 || len(b.IDs) != 1 {
		t.Errorf("%+v", n)
	}
}

// TestReplicasFromManyGoroutines: each number means the same series and sender in all goroutines.
func TestReplicasFromManyGoroutines(t *testing.T) {
	d := paired(0)
	var wg sync.WaitGroup
	ids := make([][]SeriesID, 8)
	for g := range ids {
		wg.Go(func() {
			for i := range 400 {
				l := of("cluster", "x", "__replica__", fmt.Sprint(i%2), "i", fmt.Sprint(i/2))
				id, err := d.Intern(d.Hash([]byte(l)), l)
				if err != nil || d.Labels(id).Get("i") != fmt.Sprint(i/2) || d.Replica(id) != fmt.Sprint(i%2) {
					t.Errorf("%s: %d %v", l, id, err)
					return
				}
				ids[g] = append(ids[g], id)
			}
		})
	}
	wg.Wait()
	for g := range ids {
		if !slices.Equal(ids[g], ids[0]) {
			t.Error("numbers differ")
		}
	}
}

// TestATableWithoutReplicasAllocatesNothing for them, and keeps the label.
func TestATableWithoutReplicasAllocatesNothing(t *testing.T) {
	d := NewDict(0)
	d.Replicas(ReplicaLabels{})
	id := intern(t, d, of("cluster", "x", "__replica__", "a"))
	b := GetBatch(d)
	defer b.Put()
	b.Append(id, 1, 1)
	if n := testing.AllocsPerRun(100, func() { b.ResolveReplicas(nil) }); n != 0 || d.Labels(id).Get("__replica__") != "a" {
		t.Errorf("%v allocations, %s", n, d.Labels(id))
	}
}

type relabelFunc func(Labels) (Labels, bool, error)

func (f relabelFunc) Relabel(l Labels) (Labels, bool, error) { return f(l) }
