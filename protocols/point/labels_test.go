package point_test

import (
	"encoding/binary"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/prometheus/model/labels"
	"pgregory.net/rapid"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

// drawSet draws a label set as a map: names and values as they should not be, but may.
func drawSet(t *rapid.T, label string) map[string]string {
	piece := rapid.OneOf(rapid.SampledFrom([]string{"a", "b", "aa", "ab", "é", "host", strings.Repeat("x", 127), strings.Repeat("y", 128)}), rapid.StringN(1, 8, -1))
	set := rapid.MapOfN(piece, piece, 0, 6).Draw(t, label)
	set[point.MetricName] = piece.Draw(t, label+" name")
	return set
}

func build(set map[string]string) (point.Labels, error) {
	var b point.LabelsBuilder
	for n, v := range set {
		b.Add([]byte(n), []byte(v))
	}
	return b.Labels()
}

func TestLabelsAreThoseOfPrometheus(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		set := drawSet(t, "set")
		l, err := build(set)
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]string{}
		var names []string
		l.Range(func(n, v string) bool { got[n] = v; names = append(names, n); return true })
		if d := cmp.Diff(set, got); d != "" {
			t.Fatal(d)
		}
		if !slices.IsSorted(names) || l.Len() != len(set) || !l.Valid() || !l.ValidSeries() {
			t.Fatalf("%v: names %q, valid %v, %v", l, names, l.Valid(), l.ValidSeries())
		}
		for _, n := range append(names, "", "zz", "A", "__name") {
			if l.Get(n) != set[n] {
				t.Fatalf("Get(%q) = %q, want %q", n, l.Get(n), set[n])
			}
		}
		if again, err := build(got); err != nil || again != l {
			t.Fatalf("the same set is %q and %q, %v", l, again, err)
		}
	})
}

func TestCompareOrdersAsPrometheusDoes(t *testing.T) {
	sign := func(n int) int { return min(max(n, -1), 1) }
	rapid.Check(t, func(t *rapid.T) {
		a, b := drawSet(t, "a"), drawSet(t, "b")
		if rapid.Bool().Draw(t, "common prefix") {
			b = map[string]string{}
			for n, v := range a {
				b[n] = v
			}
			b["zz"] = "z"
		}
		la, _ := build(a)
		lb, _ := build(b)
		want := sign(labels.Compare(labels.FromMap(a), labels.FromMap(b)))
		if got := sign(la.Compare(lb)); got != want || sign(lb.Compare(la)) != -want || la.Compare(la) != 0 {
			t.Fatalf("Compare(%v, %v) = %d, want %d", la, lb, got, want)
		}
	})
}

func TestLabelsBuilderRefuses(t *testing.T) {
	f := func(what string, pairs ...string) {
		t.Helper()
		var b point.LabelsBuilder
		for i := 0; i < len(pairs); i += 2 {
			b.Add([]byte(pairs[i]), []byte(pairs[i+1]))
		}
		if l, err := b.Labels(); !fault.Is(err, fault.Invalid) || l != "" {
			t.Errorf("%s: %v, %v, want invalid", what, l, err)
		}
	}
	f("nothing")
	f("no metric name", "job", "x")
	f("an empty metric name", "__name__", "")
	f("an empty name", "__name__", "m", "", "x")
	f("a name twice", "__name__", "m", "a", "x", "a", "y")
	f("a name that is not UTF-8", "__name__", "m", "a\xff", "x")
	f("a value that is not UTF-8", "__name__", "m", "a", "\xc3")
	f("a value cut within a character that the next length would complete", "__name__", "m", "a", "x\xc3", "b", strings.Repeat("x", 0xa9))
	f("a long name", "__name__", "m", strings.Repeat("n", point.LabelNameMax+1), "x")
	f("a long value", "__name__", "m", "a", strings.Repeat("v", point.LabelValueMax+1))
	long := strings.Repeat("v", point.LabelValueMax)
	f("a large set", "__name__", "m", "a", long, "b", long, "c", long, "d", long)
	var many []string
	for i := range point.LabelsMax {
		many = append(many, strings.Repeat("n", i+1), "x")
	}
	f("many labels", append(many, "__name__", "m")...)
}

func TestUnnamedNeedsNoMetricName(t *testing.T) {
	var b point.LabelsBuilder
	b.Add([]byte("trace_id"), []byte("1"))
	b.Add([]byte("dropped"), nil)
	l, err := b.Unnamed()
	if err != nil || l.String() != `{trace_id="1"}` || !l.Valid() || l.ValidSeries() || !b.Has("trace_id") || b.Has("dropped") {
		t.Errorf("%v, %v", l, err)
	}
	b.Reset()
	if l, err := b.Unnamed(); l != "" || err != nil || !l.Valid() {
		t.Errorf("the empty set is %q, %v", l, err)
	}
}

// TestValidMeansMade decides with the builder: a string is valid exactly if the builder makes the same from its pairs.
func TestValidMeansMade(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l, err := build(drawSet(t, "set"))
		if err != nil {
			t.Fatal(err)
		}
		b := []byte(l)
		switch rapid.IntRange(0, 3).Draw(t, "damage") {
		case 0:
			b[rapid.IntRange(0, len(b)-1).Draw(t, "at")] = rapid.Byte().Draw(t, "byte")
		case 1:
			b = b[:rapid.IntRange(0, len(b)).Draw(t, "cut")]
		case 2:
			at := rapid.IntRange(0, len(b)).Draw(t, "at")
			b = slices.Insert(b, at, rapid.Byte().Draw(t, "byte"))
		}
		checkValid(t, point.Labels(b))
	})
}

func checkValid(t interface{ Fatalf(string, ...any) }, l point.Labels) {
	var b point.LabelsBuilder
	l.Range(func(n, v string) bool { b.Add([]byte(n), []byte(v)); return true })
	made, err := b.Unnamed()
	if want := err == nil && made == l; l.Valid() != want {
		t.Fatalf("Valid(%q) = %v, but the builder makes %q, %v", string(l), l.Valid(), string(made), err)
	}
}

func FuzzLabelsValid(f *testing.F) {
	f.Add(string(point.MakeLabels("__name__", "up", "job", "é")))
	f.Add("\x01a\x82\x00x")
	f.Add("\x01a\x04x\xc3\xa9y")
	f.Fuzz(func(t *testing.T, s string) { checkValid(t, point.Labels(s)) })
}

func TestValidRefuses(t *testing.T) {
	f := func(what string, l string) {
		t.Helper()
		if point.Labels(l).Valid() {
			t.Errorf("%s is valid: %q", what, l)
		}
	}
	f("a length in two bytes", "\x81\x00a\x01x")
	f("a name without value", "\x01a")
	f("an empty value", "\x01a\x00")
	f("an empty name", "\x00\x01a")
	f("names out of order", "\x01b\x01x\x01a\x01x")
	f("a name twice", "\x01a\x01x\x01a\x01y")
	f("a length past the end", "\x01a\x05x")
	f("a huge length", "\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01a\x01x")
	f("half a character", "\x01a\x01\xc3")
	long := strings.Repeat("v", point.LabelValueMax+1)
	f("a long value", "\x01a"+string(binary.AppendUvarint(nil, uint64(len(long))))+long)
}

func TestStringIsForPeople(t *testing.T) {
	l := point.MakeLabels("__name__", "m", "path", "a\"b\nc")
	if got, want := l.String(), `{__name__="m", path="a\"b\nc"}`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// TestRingPointNeverChanges pins the hash: partition maps and data on disk are made with it.
func TestRingPointNeverChanges(t *testing.T) {
	f := func(l point.Labels, want uint64) {
		t.Helper()
		if got := l.RingPoint(); got != want {
			t.Errorf("RingPoint(%v) = %#x, want %#x", l, got, want)
		}
	}
	f("", 0xef46db3751d8e999)
	f(point.MakeLabels("__name__", "up", "job", "node"), 0x169f7118f8936ba5)
}

func TestMakeLabelsPanicsAtABadSet(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	point.MakeLabels("job", "x")
}
