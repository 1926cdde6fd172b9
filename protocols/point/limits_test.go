package point_test

import (
	"strings"
	"testing"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

func labelled(pairs ...string) point.Labels {
	return point.MakeLabels(append([]string{"__name__", "up"}, pairs...)...)
}

func manyLabels(n int) point.Labels {
	pairs := make([]string, 0, 2*n)
	for i := range n - 1 {
		pairs = append(pairs, "l"+strings.Repeat("x", i), "v")
	}
	return labelled(pairs...)
}

func TestLabelLimits(t *testing.T) {
	name, value := strings.Repeat("n", 1024), strings.Repeat("v", 8<<10)
	for _, c := range []struct {
		what   string
		labels point.Labels
		limits point.LabelLimits
		refuse string // part of the reason; "": accepted
	}{
		{"the longest name and value", labelled(name, value), point.DefaultLabelLimits, ""},
		{"a value one byte longer", labelled("path", value+"v"), point.DefaultLabelLimits, `label "path" has a value of 8193 bytes, the table takes at most 8192`},
		{"a metric's name one byte longer", point.MakeLabels("__name__", value+"v"), point.DefaultLabelLimits, `"__name__" has a value of 8193`},
		{"64 labels", manyLabels(64), point.DefaultLabelLimits, ""},
		{"65 labels", manyLabels(65), point.DefaultLabelLimits, "65 labels, the table takes at most 64"},
		{"two labels of one", labelled("a", "b"), point.LabelLimits{Count: 1}, "2 labels"},
		{"a name over a limit of one byte", labelled("ab", "c"), point.LabelLimits{NameBytes: 1}, `label name "__name__" of 8 bytes`},
		{"five labels that are a little more than four together may be", labelled("a", value, "b", value, "c", value, "d", value), point.DefaultLabelLimits, "labels of 32796 bytes, the table takes at most 32768"},
		{"a set over its own limit", labelled("a", "bcd"), point.LabelLimits{SetBytes: 17}, "labels of 18 bytes"},
		{"no limits", labelled(name, strings.Repeat("v", point.LabelValueMax)), point.LabelLimits{}, ""},
		{"a dry run", manyLabels(65), point.LabelLimits{Count: 64, DryRun: true}, ""},
	} {
		d := point.NewDict(0)
		d.SetLabelLimits(c.limits)
		_, err := d.InternLabels(c.labels, point.Hash{})
		switch {
		case c.refuse == "" && err != nil, c.refuse != "" && (!fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), c.refuse)):
			t.Errorf("%s: %v, want %q", c.what, err, c.refuse)
		case (c.refuse != "" || c.limits.DryRun) != (d.LabelLimited() == 1):
			t.Errorf("%s: %d series counted", c.what, d.LabelLimited())
		}
	}
}

func TestLabelLimitsAreForNewSeriesOnly(t *testing.T) {
	d := point.NewDict(0)
	long := labelled("path", strings.Repeat("v", 100))
	id := mustIntern(t, d, "long", long)
	d.SetLabelLimits(point.LabelLimits{ValueBytes: 50})
	if again, err := d.InternLabels(long, point.Hash{}); err != nil || again != id {
		t.Errorf("a series that has a number: %d, %v", again, err)
	}
	other := labelled("path", strings.Repeat("w", 100))
	if _, err := d.InternLabels(other, point.Hash{}); !fault.Is(err, fault.Invalid) {
		t.Errorf("a new series: %v", err)
	}
	if _, err := d.InternTaken(d.Hash([]byte("w")), other); err != nil {
		t.Errorf("rows of another dictionary, which may be acked: %v", err)
	}
}

func TestALimitedSeriesOfAListLeavesTheOthers(t *testing.T) {
	d := point.NewDict(0)
	d.SetLabelLimits(point.DefaultLabelLimits)
	var f point.Fresh
	for _, l := range []point.Labels{labelled("a", "1"), manyLabels(65), labelled("a", "2"), manyLabels(66)} {
		f.Text = append(f.Text, l...)
		f.End(d.Hash([]byte(l)))
	}
	err := d.InternAll(&f)
	if !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), "65 labels") {
		t.Errorf("InternAll: %v", err)
	}
	want := []point.SeriesID{0, point.NoSeries, 1, point.NoSeries}
	for i, id := range f.IDs {
		if id != want[i] {
			t.Errorf("numbers %v, want %v", f.IDs, want)
			break
		}
	}
	if _, ok := d.Lookup(d.Hash([]byte(manyLabels(65)))); ok {
		t.Error("a refused series is remembered")
	}
}

// TestLongLabelsCountAsSeveralSeries: few series of many kilobytes cost as much as many usual ones.
func TestLongLabelsCountAsSeveralSeries(t *testing.T) {
	d := point.NewDict(100)
	n := 0
	for ; ; n++ {
		_, err := d.InternLabels(labelled("i", strings.Repeat("x", 4000), "n", string(rune('0'+n))), point.Hash{})
		if fault.Is(err, fault.Throttled) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if n != 10 || d.Len() != 10 || d.Weight() < 100 {
		t.Errorf("%d series of 4,000 bytes in the room of 100: %d, weight %d", n, d.Len(), d.Weight())
	}
	if _, err := d.InternLabels(labelled("i", strings.Repeat("x", 4000), "n", "0"), point.Hash{}); err != nil {
		t.Errorf("a series that is known: %v", err)
	}
}
