package series

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/RoaringBitmap/roaring/v2"
	"github.com/prometheus/prometheus/model/labels"
	"pgregory.net/rapid"

	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
)

func matcher(t labels.MatchType, name, value string) *labels.Matcher {
	return labels.MustNewMatcher(t, name, value)
}

// brute is Match by its definition.
func brute(held map[Ref]point.Labels, ms []*labels.Matcher) []uint32 {
	var out []uint32
	for ref, l := range held {
		if !slices.ContainsFunc(ms, func(m *labels.Matcher) bool { return !m.Matches(l.Get(m.Name)) }) {
			out = append(out, uint32(ref))
		}
	}
	slices.Sort(out)
	return out
}

var (
	someName  = rapid.SampledFrom([]string{"a", "b", "c", "__name__", "zone"})
	someValue = rapid.SampledFrom([]string{"x", "y", "xy", "xyz", "X", "prod-1", "prod-2", "line\nbreak", "é", "0"})
	someRegex = rapid.SampledFrom([]string{
		"", ".*", ".+", "x|", "x|y", "|", "x.*", ".*y", "x.?", "(?i)x", "(?i:xy)", "prod-[12]", "prod-.+", "^x$", "x*", "[xy]+",
		"(x|y)z?", ".*y.*", "()", "x|prod-1|é", ".", "..", "x(|y)", "(.*)", "^.*$", "[^x].*", "line.break", "nothing",
	})
	someType = rapid.SampledFrom([]labels.MatchType{labels.MatchEqual, labels.MatchNotEqual, labels.MatchRegexp, labels.MatchNotRegexp})

	someMatcher = rapid.Custom(func(t *rapid.T) *labels.Matcher {
		typ, value := someType.Draw(t, "type"), ""
		switch {
		case typ == labels.MatchRegexp || typ == labels.MatchNotRegexp:
			value = someRegex.Draw(t, "regex")
		case rapid.IntRange(0, 3).Draw(t, "some") > 0:
			value = someValue.Draw(t, "value")
		}
		return matcher(typ, someName.Draw(t, "name"), value)
	})
	someLabels = rapid.Custom(func(t *rapid.T) point.Labels {
		set := map[string]string{"n": fmt.Sprint(rapid.IntRange(0, 2000).Draw(t, "n"))}
		for range rapid.IntRange(0, 4).Draw(t, "pairs") {
			set[someName.Draw(t, "name")] = someValue.Draw(t, "value")
		}
		return labelsOf(set)
	})
)

func labelsOf(set map[string]string) point.Labels {
	if set[point.MetricName] == "" {
		set[point.MetricName] = "m"
	}
	var pairs []string
	for n, v := range set {
		pairs = append(pairs, n, v)
	}
	return point.MakeLabels(pairs...)
}

// TestMatchIsBruteForce interns, retains, releases and sweeps at random, and compares every answer with one made by
// looking at all series.
func TestMatchIsBruteForce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x, held, counts := New(), map[Ref]point.Labels{}, map[Ref]int{}
		for i := range rapid.SampledFrom([]int{0, 0, 30, 600}).Draw(t, "wide") { // enough for bitmaps
			l := labelsOf(map[string]string{"a": "x", "b": []string{"y", "xy", "xyz"}[i%3], "n": fmt.Sprint("wide", i)})
			ref := x.Intern(l)
			held[ref], counts[ref] = l, counts[ref]+1
		}
		t.Repeat(map[string]func(*rapid.T){
			"intern": func(t *rapid.T) {
				for _, l := range rapid.SliceOfN(someLabels, 1, 10).Draw(t, "labels") {
					ref := x.Intern(l)
					if was, ok := held[ref]; ok && was != l {
						t.Fatalf("ref %d of %v is given to %v", ref, was, l)
					}
					held[ref], counts[ref] = l, counts[ref]+1
				}
			},
			"retain": func(t *rapid.T) {
				for ref := range held {
					x.Retain(ref)
					counts[ref]++
					return
				}
			},
			"release": func(t *rapid.T) {
				var refs []Ref
				for _, ref := range slices.Sorted(maps.Keys(held)) {
					if rapid.IntRange(0, 3).Draw(t, "keep") > 0 {
						continue
					}
					for range counts[ref] {
						refs = append(refs, ref)
					}
					delete(held, ref)
					delete(counts, ref)
				}
				x.Release(refs...)
				x.Sweep()
			},
			"match": func(t *rapid.T) {
				ms := rapid.SliceOfN(someMatcher, 0, 4).Draw(t, "matchers")
				if got, want := x.Match(ms).ToArray(), brute(held, ms); !slices.Equal(got, want) {
					t.Fatalf("%v:\n got %v\nwant %v", ms, got, want)
				}
			},
			"list": func(t *rapid.T) { checkLists(t, x, held) },
		})
	})
}

func checkLists(t *rapid.T, x *Index, held map[Ref]point.Labels) {
	if x.Len() != len(held) {
		t.Fatalf("%d series, want %d", x.Len(), len(held))
	}
	within := roaring.New()
	for ref, l := range held {
		if x.Labels(ref) != l {
			t.Fatalf("ref %d: %v, want %v", ref, x.Labels(ref), l)
		}
		if ref%3 == 0 {
			within.Add(uint32(ref))
		}
	}
	for _, w := range []*roaring.Bitmap{nil, within} {
		values := map[string]map[string]bool{}
		for ref, l := range held {
			if w != nil && !w.Contains(uint32(ref)) {
				continue
			}
			l.Range(func(n, v string) bool {
				if values[n] == nil {
					values[n] = map[string]bool{}
				}
				values[n][v] = true
				return true
			})
		}
		if got, want := x.LabelNames(w), slices.Sorted(maps.Keys(values)); !slices.Equal(got, want) {
			t.Fatalf("names %v, want %v", got, want)
		}
		for _, n := range []string{"a", "n", "zone", "absent"} {
			if got, want := x.LabelValues(n, w), slices.Sorted(maps.Keys(values[n])); !slices.Equal(got, want) {
				t.Fatalf("values of %s: %v, want %v", n, got, want)
			}
		}
	}
}

// TestMatchOverManyValues runs the paths of large indexes alone: filters against gathering, bitmaps, sections.
func TestMatchOverManyValues(t *testing.T) {
	x, held := New(), map[Ref]point.Labels{}
	for i := range 20_000 {
		set := map[string]string{"job": "node", "id": fmt.Sprintf("id-%d", i), "shard": fmt.Sprint(i % 10)}
		if i%7 == 0 {
			set["rare"] = fmt.Sprint(i % 49)
		}
		if i%2 == 0 {
			set["pod"] = fmt.Sprintf("pod-%d", i/2)
		}
		l := labelsOf(set)
		held[x.Intern(l)] = l
	}
	eq, ne, re, nre := labels.MatchEqual, labels.MatchNotEqual, labels.MatchRegexp, labels.MatchNotRegexp
	for _, ms := range [][]*labels.Matcher{
		{},
		{matcher(eq, "id", "id-77")},
		{matcher(eq, "job", "node"), matcher(eq, "shard", "3")},
		{matcher(eq, "job", "node"), matcher(re, "id", "id-.*7")},
		{matcher(re, "id", "id-19.*"), matcher(ne, "shard", "3")},
		{matcher(re, "id", ".+"), matcher(eq, "pod", "")},
		{matcher(eq, "rare", "")},
		{matcher(ne, "rare", ""), matcher(ne, "rare", "7")},
		{matcher(re, "rare", "7|14|"), matcher(re, "shard", "1|2|3")},
		{matcher(nre, "pod", "pod-[0-4].*")},
		{matcher(nre, "pod", "pod-1|pod-2|pod-3")},
		{matcher(nre, "pod", "|pod-1")},
		{matcher(re, "rare", "7"), matcher(nre, "pod", "pod-[0-4].*"), matcher(ne, "id", "id-7")},
		{matcher(eq, "absent", ""), matcher(re, "absent", ".*"), matcher(ne, "absent", "x"), matcher(eq, "shard", "1")},
		{matcher(eq, "absent", "x")},
		{matcher(ne, "absent", "")},
		{matcher(re, "pod", "(?i)POD-1.")},
	} {
		if got, want := x.Match(ms).ToArray(), brute(held, ms); !slices.Equal(got, want) {
			t.Errorf("%v: %d series, want %d", ms, len(got), len(want))
		}
	}
	for _, step := range []Ref{1, 2, 9, 5000} {
		within, want := roaring.New(), map[string]bool{}
		for ref := range held {
			if ref%step == 0 {
				within.Add(uint32(ref))
				if v := held[ref].Get("rare"); v != "" {
					want[v] = true
				}
			}
		}
		if got := x.LabelValues("rare", within); !slices.Equal(got, slices.Sorted(maps.Keys(want))) {
			t.Errorf("values of every %dth: %v", step, got)
		}
		if got := x.LabelNames(within); !slices.Equal(got, []string{"__name__", "id", "job", "pod", "rare", "shard"}) {
			t.Errorf("names of every %dth: %v", step, got)
		}
	}
}

func TestStats(t *testing.T) {
	x := New()
	for i := range 30 {
		x.Intern(point.MakeLabels("__name__", []string{"up", "load"}[i%3/2], "host", fmt.Sprintf("h%02d", i)))
	}
	st := x.Stats(2)
	want := peer.Stats{
		Series: 30, LabelPairs: 32,
		SeriesByName:  []peer.NameCount{{Name: "up", Count: 20}, {Name: "load", Count: 10}},
		ValuesByLabel: []peer.NameCount{{Name: "host", Count: 30}, {Name: "__name__", Count: 2}},
		BytesByLabel:  []peer.NameCount{{Name: "host", Count: 90}, {Name: "__name__", Count: 6}},
		SeriesByPair:  []peer.NameCount{{Name: "__name__=up", Count: 20}, {Name: "__name__=load", Count: 10}},
	}
	if fmt.Sprint(st) != fmt.Sprint(want) {
		t.Errorf("\n got %+v\nwant %+v", st, want)
	}
	if st := x.Stats(0); len(st.SeriesByName) != 0 || st.Series != 30 {
		t.Errorf("top 0: %+v", st)
	}
}

func TestPinKeepsRefsFromBeingReused(t *testing.T) {
	x := New()
	old := point.MakeLabels("__name__", "old")
	ref := x.Intern(old)
	pin := x.Pin()
	found := x.Match(nil)
	x.Release(ref)
	for range 5 {
		x.Sweep()
	}
	if x.Len() != 0 || !x.Match(nil).IsEmpty() {
		t.Fatal("the series is still found")
	}
	if next := x.Intern(point.MakeLabels("__name__", "new")); found.Contains(uint32(next)) {
		t.Fatalf("ref %d was given to another series under a pin", next)
	}
	if x.Labels(ref) != old {
		t.Fatalf("labels %v under a pin", x.Labels(ref))
	}
	pin.Unpin()
	x.Sweep()
	x.Sweep()
	if next := x.Intern(point.MakeLabels("__name__", "newer")); next != ref {
		t.Errorf("ref %d is not reused, the new series got %d", ref, next)
	}
}

// TestSeriesThatWaitAreSeenByEveryReader runs each kind of query as the first one after series came, and checks the
// senders' cost: no series enters the postings before a query runs, and no more than waitingMax wait.
func TestSeriesThatWaitAreSeenByEveryReader(t *testing.T) {
	host7 := []*labels.Matcher{matcher(labels.MatchEqual, "host", "h7")}
	some := roaring.New()
	some.AddRange(0, 2000)
	for name, ask := range map[string]func(x *Index) any{
		"Match":              func(x *Index) any { return x.Match(host7).GetCardinality() == 1 },
		"Match of all":       func(x *Index) any { return x.Match(nil).GetCardinality() == 3000 },
		"LabelNames":         func(x *Index) any { return len(x.LabelNames(nil)) == 2 },
		"LabelNames within":  func(x *Index) any { return len(x.LabelNames(some)) == 2 },
		"LabelValues":        func(x *Index) any { return len(x.LabelValues("host", nil)) == 3000 },
		"LabelValues within": func(x *Index) any { return len(x.LabelValues("host", some)) == 2000 },
		"Stats":              func(x *Index) any { st := x.Stats(1); return st.Series == 3000 && st.LabelPairs == 3001 },
		"Sweep":              func(x *Index) any { x.Sweep(); return x.mu.all.GetCardinality() == 3000 },
	} {
		t.Run(name, func(t *testing.T) {
			x := New()
			for i := range 3000 {
				x.Intern(point.MakeLabels("__name__", "up", "host", fmt.Sprint("h", i)))
			}
			if n := x.entered.Load(); n != 0 {
				t.Fatalf("%d series entered the postings before anybody asked", n)
			}
			if ask(x) != true {
				t.Error("series are missing")
			}
			if x.entered.Load() != 3000 || len(x.mu.waiting) != 0 {
				t.Errorf("%d entered, %d ranges wait", x.entered.Load(), len(x.mu.waiting))
			}
		})
	}
}

// TestSeriesEnterWithoutAReader: as many as were asked for, in the order in which they came, and no reader enters them again.
func TestSeriesEnterWithoutAReader(t *testing.T) {
	x := New()
	for i := range 1000 {
		x.Intern(point.MakeLabels("__name__", "up", "host", fmt.Sprint("h", i)))
	}
	before := x.Came()
	for i := range 500 {
		x.Intern(point.MakeLabels("__name__", "up", "host", fmt.Sprint("young", i)))
	}
	x.Enter(before)
	if n := x.mu.all.GetCardinality(); n < before || n >= before+internSection || x.Waiting() != 1500-int(n) {
		t.Errorf("%d entered of the %d that were meant, %d wait", n, before, x.Waiting())
	}
	x.Enter(x.Came())
	if x.Waiting() != 0 || len(x.mu.waiting) != 0 || x.mu.all.GetCardinality() != 1500 {
		t.Errorf("%d wait, %d entered of 1500", x.Waiting(), x.mu.all.GetCardinality())
	}
	if n := len(x.LabelValues("host", nil)); n != 1500 {
		t.Errorf("%d hosts are found, not 1500", n)
	}
}

func TestNoMoreWaitThanMay(t *testing.T) {
	x := New()
	ls := make([]point.Labels, 1000)
	for n := 0; n < waitingMax+5000; n += len(ls) {
		for i := range ls {
			ls[i] = point.MakeLabels("__name__", "up", "n", fmt.Sprint(n+i))
		}
		x.InternAll(ls, nil)
		if wait := x.came.Load() - x.entered.Load(); wait > waitingMax {
			t.Fatalf("%d wait", wait)
		}
	}
	if x.mu.all.GetCardinality() != uint64(x.Len())-waitingMax {
		t.Errorf("%d of %d entered at once", x.mu.all.GetCardinality(), x.Len())
	}
	if n := x.Match(nil).GetCardinality(); n != uint64(x.Len()) {
		t.Errorf("%d found of %d", n, x.Len())
	}
}

// TestSeriesGoWhileTheyWait: a series that is released before the first query is not found, and its ref then means another series.
func TestSeriesGoWhileTheyWait(t *testing.T) {
	x := New()
	gone := x.Intern(point.MakeLabels("__name__", "gone"))
	x.Intern(point.MakeLabels("__name__", "stays"))
	x.Release(gone)
	x.Sweep()
	if again := x.Intern(point.MakeLabels("__name__", "other")); again != gone {
		t.Fatalf("ref %d, not the free one %d", again, gone)
	}
	if got := x.LabelValues("__name__", nil); !slices.Equal(got, []string{"other", "stays"}) {
		t.Errorf("found %q", got)
	}
}

func TestIdleSeriesRevives(t *testing.T) {
	x := New()
	l := point.MakeLabels("__name__", "up")
	ref := x.Intern(l)
	x.Release(ref)
	if again := x.Intern(l); again != ref {
		t.Fatalf("ref %d became %d", ref, again)
	}
	x.Sweep()
	if x.Len() != 1 || x.Labels(ref) != l {
		t.Error("a series that is held again was freed")
	}
}

func TestReleasedTooOftenIsABug(t *testing.T) {
	for name, misuse := range map[string]func(*Index, Ref){
		"release": func(x *Index, ref Ref) { x.Release(ref) },
		"retain":  func(x *Index, ref Ref) { x.Retain(ref) },
	} {
		x := New()
		ref := x.Intern(point.MakeLabels("__name__", "up"))
		x.Release(ref)
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s of a series nobody holds passed", name)
				}
			}()
			misuse(x, ref)
		}()
	}
}

// TestEqualHashes has series that share a hash leave in every order.
func TestEqualHashes(t *testing.T) {
	for _, leave := range [][]int{{0, 1, 2}, {2, 1, 0}, {1, 0, 2}, {1, 2, 0}} {
		x := New()
		sh := &x.shards[0]
		var ls [3]point.Labels
		var refs [3]Ref
		for i := range ls {
			ls[i] = point.MakeLabels("__name__", fmt.Sprint("m", i))
			refs[i] = x.internNewLocked(42, ls[i])
		}
		gone := map[int]bool{}
		for _, i := range leave {
			for j := range ls {
				ref, ok := x.findLocked(sh, 42, ls[j])
				if ok == gone[j] || ok && ref != refs[j] {
					t.Fatalf("left %v: series %d is found %v as %d", gone, j, ok, ref)
				}
			}
			sh.remove(42, refs[i])
			gone[i] = true
		}
	}
}

// TestInternAllKnowsItsOwn gives a batch with existing, new and repeated series: each has one ref, with a reference for
// each time it was named, and is found by each of its labels, however long the runs are in which series entered.
func TestInternAllKnowsItsOwn(t *testing.T) {
	x := New()
	known := x.Intern(point.MakeLabels("__name__", "m", "host", "h0", "n", "0"))
	var ls []point.Labels
	for range 2 {
		for i := range 3000 {
			ls = append(ls, point.MakeLabels("__name__", "m", "host", fmt.Sprint("h", i/700), "n", fmt.Sprint(i)))
		}
	}
	refs := x.InternAll(ls, nil)
	if refs[0] != known || x.Len() != 3000 {
		t.Fatalf("first ref %d, want %d; %d series", refs[0], known, x.Len())
	}
	for i, ref := range refs {
		if refs[i%3000] != ref || x.Labels(ref) != ls[i] {
			t.Fatalf("series %d has ref %d and %d, labels %s", i, refs[i%3000], ref, x.Labels(ref))
		}
	}
	if none := x.Intern(""); x.Labels(none) != "" {
		t.Errorf("a set without labels is %s", x.Labels(none))
	} else {
		x.Release(none)
	}
	for h, want := range []int{700, 700, 700, 700, 200} {
		b := x.Match([]*labels.Matcher{labels.MustNewMatcher(labels.MatchEqual, "host", fmt.Sprint("h", h))})
		if int(b.GetCardinality()) != want {
			t.Errorf("host h%d has %d series, want %d", h, b.GetCardinality(), want)
		}
		for it := b.Iterator(); it.HasNext(); {
			if ref := Ref(it.Next()); x.Labels(ref).Get("host") != fmt.Sprint("h", h) {
				t.Errorf("host h%d: %s", h, x.Labels(ref))
			}
		}
	}
	x.Release(known)
	x.Release(refs...)
	x.Sweep()
	if b := x.Match(nil); x.Len() != 0 || !b.IsEmpty() || len(x.LabelNames(nil)) != 0 {
		t.Errorf("%d series, %d matched, names %v are left", x.Len(), b.GetCardinality(), x.LabelNames(nil))
	}
}

// A ref listed as idle twice may be freed, and given to another series that is made and released, before the second entry is processed.
func TestASeriesThatIsDismissedWhileItWaitsDoesNotComeBack(t *testing.T) {
	x := New()
	ref := x.Intern(point.MakeLabels("__name__", "short"))
	x.Release(ref)
	if gone := x.dismiss([]Ref{ref}); !slices.Equal(gone, []Ref{ref}) {
		t.Fatalf("dismissed %v", gone)
	}
	x.catchUp()
	if !x.mu.all.IsEmpty() || len(x.mu.waiting) != 0 {
		t.Errorf("in the postings %v, waiting %v", x.mu.all.ToArray(), x.mu.waiting)
	}
}

// TestConcurrentLives has writers acquire and release series while readers match: no reader may ever see a ref with
// labels that do not match, and at the end no series is left.
func TestConcurrentLives(t *testing.T) {
	x := New()
	anchor := point.MakeLabels("__name__", "anchor", "kind", "keep")
	x.Intern(anchor)
	var writers, readers sync.WaitGroup
	stop := make(chan struct{})
	for w := range 4 {
		writers.Add(1)
		go func() {
			defer writers.Done()
			rng := rand.New(rand.NewPCG(uint64(w), 1))
			for range 150 {
				var refs []Ref
				for range 20 {
					n := rng.IntN(500)
					l := point.MakeLabels("__name__", "m", "n", fmt.Sprint(n), "kind", []string{"odd", "even"}[n%2])
					ref := x.Intern(l)
					if x.Labels(ref) != l {
						t.Errorf("ref %d: %v, want %v", ref, x.Labels(ref), l)
					}
					refs = append(refs, ref)
				}
				x.Retain(refs[0])
				x.Release(refs...)
				x.Release(refs[0])
				if rng.IntN(8) == 0 {
					x.Sweep()
				}
			}
		}()
	}
	sets := [][]*labels.Matcher{
		{matcher(labels.MatchEqual, "kind", "odd"), matcher(labels.MatchNotRegexp, "n", "1.*")},
		{matcher(labels.MatchRegexp, "n", ".*[13]"), matcher(labels.MatchNotEqual, "kind", "even")},
		{matcher(labels.MatchNotEqual, "kind", "even"), matcher(labels.MatchEqual, "n", "")},
		{matcher(labels.MatchNotEqual, "kind", "odd"), matcher(labels.MatchNotRegexp, "n", "[0-4].*")},
	}
	for r := range 3 {
		readers.Add(1)
		go func() {
			defer readers.Done()
			for i := r; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				ms := sets[i%len(sets)]
				pin := x.Pin()
				found := x.Match(ms)
				for it := found.Iterator(); it.HasNext(); {
					l := x.Labels(Ref(it.Next()))
					if len(brute(map[Ref]point.Labels{0: l}, ms)) == 0 {
						t.Errorf("%v does not match %v", l, ms)
					}
				}
				x.LabelNames(found)
				x.LabelValues("n", found)
				x.Stats(3)
				pin.Unpin()
				if !x.Match(nil).Contains(0) {
					t.Error("the series that was always there is not found")
				}
			}
		}()
	}
	writers.Wait()
	close(stop)
	readers.Wait()
	x.Sweep()
	if x.Len() != 1 || x.Match(nil).GetCardinality() != 1 || !slices.Equal(x.LabelValues("kind", nil), []string{"keep"}) {
		t.Errorf("%d series are left, values %v", x.Len(), x.LabelValues("kind", nil))
	}
}
