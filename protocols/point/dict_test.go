package point_test

import (
	"fmt"
	"math"
	"math/rand"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

func mustIntern(t testing.TB, d *point.Dict, raw string, l point.Labels) point.SeriesID {
	t.Helper()
	id, err := d.Intern(d.Hash([]byte(raw)), l)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func TestDictNumbersSeriesOnce(t *testing.T) {
	d := point.NewDict(0)
	up := point.MakeLabels("__name__", "up", "job", "node")
	if _, ok := d.Lookup(d.Hash([]byte("up{job=node}"))); ok {
		t.Error("an empty dictionary knows a series")
	}
	a := mustIntern(t, d, "up{job=node}", up)
	b := mustIntern(t, d, "{job=node,__name__=up}", up) // another spelling of the same series
	c := mustIntern(t, d, "down", point.MakeLabels("__name__", "down"))
	if a != 0 || b != a || c != 1 || d.Len() != 2 {
		t.Errorf("numbers %d, %d, %d; %d series", a, b, c, d.Len())
	}
	for raw, want := range map[string]point.SeriesID{"up{job=node}": 0, "{job=node,__name__=up}": 0, "down": 1} {
		if id, ok := d.Lookup(d.Hash([]byte(raw))); !ok || id != want {
			t.Errorf("Lookup(%s) = %d, %v", raw, id, ok)
		}
	}
	if d.Labels(0) != up {
		t.Errorf("labels of series 0: %v", d.Labels(0))
	}
	if id, err := d.InternLabels(up, point.Hash{}); err != nil || id != 0 {
		t.Errorf("InternLabels of a known series = %d, %v", id, err)
	}
}

func TestDictsHashDifferently(t *testing.T) {
	a, b := point.NewDict(0), point.NewDict(0)
	if a.Hash([]byte("x")) == b.Hash([]byte("x")) {
		t.Error("two dictionaries share a seed")
	}
}

func TestLookupAfterTakesAnyPrevious(t *testing.T) {
	d := point.NewDict(0)
	const n = 3000
	hashes := make([]point.Hash, n)
	for i := range hashes {
		raw := fmt.Sprintf("series %d", i)
		hashes[i] = d.Hash([]byte(raw))
		mustIntern(t, d, raw, point.MakeLabels("__name__", raw))
	}
	for _, prev := range []point.SeriesID{0, 1, 1022, 1023, 1024, n - 2, n - 1, n, math.MaxUint32} {
		for i := 0; i < n; i += 7 {
			if id, ok := d.LookupAfter(prev, hashes[i]); !ok || int(id) != i {
				t.Fatalf("LookupAfter(%d) of series %d = %d, %v", prev, i, id, ok)
			}
		}
	}
	if _, ok := d.LookupAfter(0, point.Hash{Lo: 1, Hi: 1}); ok {
		t.Error("an unknown hash is found")
	}
}

func TestFullDictIsThrottledAndStillKnowsItsOwn(t *testing.T) {
	d := point.NewDict(2)
	a, b := point.MakeLabels("__name__", "a"), point.MakeLabels("__name__", "b")
	mustIntern(t, d, "a", a)
	mustIntern(t, d, "b", b)
	if _, err := d.Intern(d.Hash([]byte("c")), point.MakeLabels("__name__", "c")); !fault.Is(err, fault.Throttled) {
		t.Errorf("third series of two: %v, want throttled", err)
	}
	if _, ok := d.Lookup(d.Hash([]byte("c"))); ok || d.Len() != 2 {
		t.Error("the refused series left something behind")
	}
	if id := mustIntern(t, d, "another a", a); id != 0 {
		t.Errorf("a known series in a full dictionary = %d", id)
	}
}

// TestSpellingsAreBounded sends one series in ever new spellings: it is always found, and the memory has an end.
func TestSpellingsAreBounded(t *testing.T) {
	d := point.NewDict(2)
	a := point.MakeLabels("__name__", "a")
	remembered := 0
	for i := range 100 {
		raw := fmt.Sprint("spelling ", i)
		if id := mustIntern(t, d, raw, a); id != 0 {
			t.Fatalf("%s = series %d", raw, id)
		}
		if _, ok := d.Lookup(d.Hash([]byte(raw))); ok {
			remembered++
		}
	}
	if remembered != 2*point.SpellingsPerSeries {
		t.Errorf("%d spellings of a dictionary for 2 series are remembered", remembered)
	}
}

func TestLineKeysGrowFieldByField(t *testing.T) {
	d := point.NewDict(0)
	h := d.Hash([]byte("cpu,host=a"))
	if d.LookupLine(h) != nil {
		t.Error("an unknown line is known")
	}
	d.ExtendLine(h, point.LineField{Name: "user", ID: 4})
	old := d.LookupLine(h)
	d.ExtendLine(h, point.LineField{Name: "idle", ID: 5})
	k := d.ExtendLine(h, point.LineField{Name: "user", ID: 99}) // a field already there stays
	if len(old.Fields) != 1 || len(k.Fields) != 2 || k.Fields[0].ID != 4 || k.Fields[1].ID != 5 || d.LookupLine(h) != k {
		t.Errorf("first %v, then %v", old.Fields, k.Fields)
	}
}

func TestLineKeysAreFoundBehindOthers(t *testing.T) {
	d := point.NewDict(0)
	const n = 2000
	var hashes []point.Hash
	for i := range n {
		hashes = append(hashes, d.Hash(fmt.Append(nil, "line ", i)))
		d.ExtendLine(hashes[i], point.LineField{Name: "f", ID: point.SeriesID(i)})
	}
	rng := rand.New(rand.NewSource(1))
	order, another := rng.Perm(n), rng.Perm(n)
	for turn, order := range [][]int{order, order, another, another} {
		prev := (*point.LineKey)(nil)
		for _, i := range order {
			if rng.Intn(10) == 0 {
				d.ExtendLine(hashes[i], point.LineField{Name: fmt.Sprint("g", turn), ID: 7})
			}
			k := d.LookupLineAfter(prev, hashes[i])
			if k == nil || k != d.LookupLine(hashes[i]) || int(k.Fields[0].ID) != i {
				t.Fatalf("line %d = %v", i, k)
			}
			prev = k
		}
	}
	in := func(prev *point.LineKey) *point.LineKey { return d.LookupLineAfter(prev, hashes[1]) }
	one := d.LookupLineAfter(nil, hashes[0])
	if first := in(one); first == nil || in(one) != first || d.LookupLineAfter(one, point.Hash{}) != nil {
		t.Error("what follows a line changed, or an unknown line is known")
	}
	now := d.ExtendLine(hashes[1], point.LineField{Name: "more", ID: 9})
	if in(one) != now {
		t.Error("a key is found behind another as it was before it grew")
	}
}

func TestLineKeysAreBounded(t *testing.T) {
	d := point.NewDict(2)
	h := d.Hash([]byte("wide"))
	for i := range point.LineFieldsMax + 10 {
		d.ExtendLine(h, point.LineField{Name: fmt.Sprint(i), ID: point.SeriesID(i)})
	}
	if n := len(d.LookupLine(h).Fields); n != point.LineFieldsMax {
		t.Errorf("a line key has %d fields", n)
	}
	known := 0
	for i := range 100 {
		h := d.Hash(fmt.Append(nil, "line ", i))
		if k := d.ExtendLine(h, point.LineField{Name: "f", ID: 7}); len(k.Fields) != 1 || k.Fields[0].ID != 7 {
			t.Fatalf("line %d has fields %v", i, k.Fields)
		}
		if d.LookupLine(h) != nil {
			known++
		}
	}
	if known != 2*point.SpellingsPerSeries-1 {
		t.Errorf("%d lines of a dictionary for 2 series are remembered", known)
	}
}

// TestDictIsSharedByManyDecoders gives several decoders the same new series and lines at the same time, in different order,
// while readers check that whatever is found is whole. Meant for -race.
func TestDictIsSharedByManyDecoders(t *testing.T) {
	const series, decoders = 5000, 6
	strides := [decoders]int{1, 3, 7, 9, 11, 13} // none shares a factor with series: each goroutine visits all
	d := point.NewDict(0)
	labels := make([]point.Labels, series)
	for i := range labels {
		labels[i] = point.MakeLabels("__name__", fmt.Sprint("m", i))
	}
	var wg sync.WaitGroup
	ids := make([][]point.SeriesID, decoders)
	for g := range decoders {
		ids[g] = make([]point.SeriesID, series)
		wg.Go(func() {
			prev := point.SeriesID(math.MaxUint32)
			for k := range series {
				i := (k*strides[g] + g*1000) % series
				h := d.Hash([]byte(labels[i]))
				id, ok := d.LookupAfter(prev, h)
				if !ok {
					var err error
					if id, err = d.Intern(h, labels[i]); err != nil {
						t.Error(err)
						return
					}
				}
				if got := d.Labels(id); got != labels[i] {
					t.Errorf("series %d has labels %v, want %v", id, got, labels[i])
					return
				}
				line := d.Hash(fmt.Append(nil, "line ", i%100))
				if k := d.LookupLine(line); k == nil || len(k.Fields) < 50 {
					d.ExtendLine(line, point.LineField{Name: string(labels[i]), ID: id})
				}
				for _, f := range d.LookupLine(line).Fields {
					if string(d.Labels(f.ID)) != f.Name {
						t.Errorf("field %q has series %v", f.Name, d.Labels(f.ID))
						return
					}
				}
				ids[g][i], prev = id, id
			}
		})
	}
	wg.Wait()
	if d.Len() != series {
		t.Errorf("%d series, want %d", d.Len(), series)
	}
	for g := 1; g < decoders && !t.Failed(); g++ {
		for i := range series {
			if ids[g][i] != ids[0][i] {
				t.Fatalf("series %d is %d to one decoder and %d to another", i, ids[0][i], ids[g][i])
			}
		}
	}
}

// TestASeriesOfSeveralSendersIsNumberedOnce: senders that begin with the same series at the same moment, as the replicas of a pair do, do not
// make two series of one.
func TestASeriesOfSeveralSendersIsNumberedOnce(t *testing.T) {
	const series, senders, rounds = 300, 4, 40
	labels := make([]point.Labels, series)
	for i := range labels {
		labels[i] = point.MakeLabels("__name__", fmt.Sprint("m", i))
	}
	for range rounds {
		d := point.NewDict(0)
		var wg sync.WaitGroup
		for range senders {
			wg.Go(func() {
				for _, l := range labels {
					if _, err := d.Intern(d.Hash([]byte(l)), l); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		wg.Wait()
		if d.Len() != series {
			t.Fatalf("%d series, want %d", d.Len(), series)
		}
	}
}

func TestKnownSeriesAllocateNothing(t *testing.T) {
	d := point.NewDict(0)
	raw := []byte("cpu,host=a usage")
	id := mustIntern(t, d, string(raw), point.MakeLabels("__name__", "cpu_usage", "host", "a"))
	line := d.Hash([]byte("cpu,host=a"))
	d.ExtendLine(line, point.LineField{Name: "usage", ID: id})
	n := testing.AllocsPerRun(100, func() {
		h := d.Hash(raw)
		a, _ := d.Lookup(h)
		b, _ := d.LookupAfter(a-1, h)
		if a != id || b != id || d.LookupLine(line) == nil || d.Labels(a) == "" {
			t.Error("a known series is not found")
		}
	})
	if n > 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestLabelsOfTheCallerAreCopied overwrites the argument of InternBytes, as a decoder does with its scratch.
func TestLabelsOfTheCallerAreCopied(t *testing.T) {
	d := point.NewDict(0)
	var want []point.Labels
	scratch := []byte{}
	for i := range 500 { // some pieces' worth, and now and then one that is larger than a piece
		l := point.MakeLabels("__name__", "m", "n", strings.Repeat("x", i%7*i*5+1), "i", fmt.Sprint(i))
		scratch = append(scratch[:0], l...)
		id, err := d.InternBytes(d.Hash(scratch), scratch)
		if err != nil || id != point.SeriesID(i) {
			t.Fatalf("series %d has number %d, %v", i, id, err)
		}
		want = append(want, l)
	}
	clear(scratch[:cap(scratch)])
	for i, l := range want {
		if d.Labels(point.SeriesID(i)) != l {
			t.Fatalf("series %d has become %q", i, d.Labels(point.SeriesID(i)))
		}
		if id, ok := d.Lookup(d.Hash([]byte(l))); !ok || id != point.SeriesID(i) {
			t.Fatalf("series %d is not found", i)
		}
	}
}

// TestInternBytesAllocatesBySeveral pins the cost of a new series beside the tables: no object per series.
func TestInternBytesAllocatesBySeveral(t *testing.T) {
	d := point.NewDict(0)
	l := []byte(point.MakeLabels("__name__", "m", "host", "00000000"))
	n := 0
	intern := func() {
		for i, rest := len(l)-1, n; i >= len(l)-8; i, rest = i-1, rest/10 {
			l[i] = '0' + byte(rest%10)
		}
		n++
		if _, err := d.InternBytes(d.Hash(l), l); err != nil {
			t.Fatal(err)
		}
	}
	for range 1 << 15 { // the tables have their size for a while
		intern()
	}
	if allocs := testing.AllocsPerRun(2000, intern); allocs > 0.1 {
		t.Errorf("%.2f allocations a new series", allocs)
	}
	if allocs := testing.AllocsPerRun(100, func() { _, _ = d.InternBytes(d.Hash(l), l) }); allocs > 0 {
		t.Errorf("%.2f allocations a known series", allocs)
	}
	known := string(l)
	if allocs := testing.AllocsPerRun(100, func() { _, _ = d.InternLabels(point.Labels(known), point.Hash{}) }); allocs > 0 {
		t.Errorf("%.2f allocations for labels that are known", allocs)
	}
}

func TestLineKeysTakeSeveralFieldsAtOnce(t *testing.T) {
	d := point.NewDict(0)
	h := d.Hash([]byte("cpu,host=a"))
	f := func(name string, id point.SeriesID) point.LineField { return point.LineField{Name: name, ID: id} }
	given := []point.LineField{f("user", 1), f("idle", 2)}
	d.ExtendLineAll(h, 0, given)
	given[0] = f("overwritten", 9)
	old := d.LookupLine(h)
	d.ExtendLineAll(h, 1, []point.LineField{f("idle", 99), f("wait", 3)}) // by one that saw user alone
	k := d.LookupLine(h)
	if want := []point.LineField{f("user", 1), f("idle", 2), f("wait", 3)}; !slices.Equal(k.Fields, want) || len(old.Fields) != 2 {
		t.Errorf("fields %v, before %v, want %v", k.Fields, old.Fields, want)
	}
	if d.ExtendLineAll(h, 3, []point.LineField{f("user", 98)}) == k {
		t.Error("who says that he looked is not believed") // it costs a double, no more
	}
	wide := make([]point.LineField, point.LineFieldsMax+5)
	if n := len(d.ExtendLineAll(d.Hash([]byte("wide")), 0, wide).Fields); n != point.LineFieldsMax {
		t.Errorf("a new key of %d fields", n)
	}
}
