package rows_test

import (
	"bytes"
	"cmp"
	"math"
	"slices"
	"testing"

	"github.com/prometheus/prometheus/model/histogram"
	"pgregory.net/rapid"

	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/rows"
)

var (
	stale     = math.Float64frombits(point.StaleNaN)
	staleHist = point.AppendHistogram(nil, &histogram.Histogram{Sum: stale})
	// The marker of a float histogram differs in its bits, and is a marker all the same.
	staleFloatHist = point.AppendFloatHistogram(nil, &histogram.FloatHistogram{Sum: stale})
	smallHist      = point.AppendHistogram(nil, &histogram.Histogram{Count: 1, ZeroCount: 1, Sum: 1})
	largeHist      = point.AppendHistogram(nil, &histogram.Histogram{Count: 9, ZeroCount: 9, Sum: 1e9})
)

// row is a value at a time with a stamp of its own, which a Run drops and the model keeps.
type row struct {
	time  point.Nanos
	value float64
	hist  []byte // nil: a float
	stamp point.Stamp
}

// rank is the order of the package's promise, spelt as a list of questions.
func rank(a, b row) int {
	return cmp.Or(
		cmp.Compare(yes(!marker(a)), yes(!marker(b))),
		cmp.Compare(a.stamp, b.stamp),
		cmp.Compare(yes(a.hist != nil), yes(b.hist != nil)),
		bytes.Compare(a.hist, b.hist),
		cmp.Compare(math.Float64bits(a.value), math.Float64bits(b.value)),
	)
}

func marker(r row) bool {
	if r.hist != nil {
		return bytes.Equal(r.hist, staleHist) || bytes.Equal(r.hist, staleFloatHist)
	}
	return math.Float64bits(r.value) == point.StaleNaN
}

func yes(b bool) int {
	if b {
		return 1
	}
	return 0
}

// run makes a Run of rows with rising times, all of one stamp.
func run(stamp point.Stamp, rs ...row) rows.Run {
	var r rows.Run
	for _, x := range rs {
		if x.hist != nil {
			r.Hists = append(r.Hists, peer.Hist{Time: x.time, H: x.hist})
		} else {
			r.Times, r.Values = append(r.Times, x.time), append(r.Values, x.value)
		}
	}
	if r.Len() > 0 {
		r.StampLo, r.StampHi = stamp, stamp
	}
	return r
}

// flat returns a run's rows by time.
func flat(r rows.Run) []row {
	var out []row
	for i, t := range r.Times {
		out = append(out, row{time: t, value: r.Values[i]})
	}
	for _, h := range r.Hists {
		out = append(out, row{time: h.Time, hist: h.H})
	}
	slices.SortStableFunc(out, func(a, b row) int { return cmp.Compare(a.time, b.time) })
	return out
}

func same(a, b []row) bool {
	return slices.EqualFunc(a, b, func(x, y row) bool {
		return x.time == y.time && math.Float64bits(x.value) == math.Float64bits(y.value) &&
			(x.hist == nil) == (y.hist == nil) && bytes.Equal(x.hist, y.hist)
	})
}

var (
	anyValue = rapid.SampledFrom([]float64{0, math.Copysign(0, -1), 1, -1, math.NaN(), math.Inf(1), stale, stale})
	anyHist  = rapid.SampledFrom([][]byte{nil, nil, nil, smallHist, largeHist, staleHist, staleFloatHist})
	anyTime  = rapid.OneOf(rapid.Int64Range(0, 12), rapid.SampledFrom([]int64{math.MinInt64, math.MaxInt64, -1}))
	anyRow   = rapid.Custom(func(t *rapid.T) row {
		r := row{time: anyTime.Draw(t, "time"), hist: anyHist.Draw(t, "hist")}
		if r.hist == nil {
			r.value = anyValue.Draw(t, "value")
		}
		return r
	})
	anyRows = rapid.Custom(func(t *rapid.T) []row {
		rs := rapid.SliceOfNDistinct(anyRow, 0, 10, func(r row) point.Nanos { return r.time }).Draw(t, "rows")
		slices.SortFunc(rs, func(a, b row) int { return cmp.Compare(a.time, b.time) })
		return rs
	})
)

// TestMergeKeepsTheHighestOfEachTime compares Merge with a map from time to the row of highest rank.
func TestMergeKeepsTheHighestOfEachTime(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		best := map[point.Nanos]row{}
		var runs []rows.Run
		lo, hi := point.Stamp(math.MaxUint64), point.Stamp(0)
		for range rapid.IntRange(0, 6).Draw(t, "runs") {
			stamp := point.Stamp(rapid.Uint64Range(1, 4).Draw(t, "stamp"))
			rs := anyRows.Draw(t, "run")
			runs = append(runs, run(stamp, rs...))
			for _, r := range rs {
				r.stamp = stamp
				if was, ok := best[r.time]; !ok || rank(r, was) > 0 {
					best[r.time] = r
				}
				lo, hi = min(lo, stamp), max(hi, stamp)
			}
		}
		var want []row
		for _, r := range best {
			want = append(want, r)
		}
		slices.SortFunc(want, func(a, b row) int { return cmp.Compare(a.time, b.time) })

		before := make([][]row, len(runs))
		for i := range runs {
			before[i] = flat(runs[i])
		}
		got := rows.Merge(runs)
		if !same(flat(got), want) {
			t.Fatalf("merged\n%v\nwant\n%v", flat(got), want)
		}
		if len(want) == 0 {
			lo = 0
		}
		if got.StampLo != lo || got.StampHi != hi {
			t.Fatalf("stamps [%d, %d], want [%d, %d]", got.StampLo, got.StampHi, lo, hi)
		}
		for i := range runs {
			if !same(flat(runs[i]), before[i]) {
				t.Fatalf("run %d was changed", i)
			}
		}
		if again := rows.Merge(rapid.Permutation(runs).Draw(t, "order")); !same(flat(again), want) {
			t.Fatalf("in another order\n%v\nwant\n%v", flat(again), want)
		}
	})
}

// TestLateRowKeepsItsRankBetweenOthers has three sources: the oldest row of a time comes with a run that is merged with a newer
// one before the row of middle age is seen. A merged run has only the stamps' range, so the oldest would win.
func TestLateRowKeepsItsRankBetweenOthers(t *testing.T) {
	old := run(1, row{time: 10, value: 1}, row{time: 30, value: 1})
	newest := run(3, row{time: 20, value: 3})
	middle := run(2, row{time: 10, value: 2}, row{time: 40, value: 2})
	want := []row{{time: 10, value: 2}, {time: 20, value: 3}, {time: 30, value: 1}, {time: 40, value: 2}}
	if got := flat(rows.Merge([]rows.Run{old, newest, middle})); !same(got, want) {
		t.Errorf("merged %v, want %v", got, want)
	}
}

// TestWinners reads as the order's specification, two sources at one time.
func TestWinners(t *testing.T) {
	value, none := row{value: 5}, row{value: stale}
	hist, noHist := row{hist: smallHist}, row{hist: staleHist}
	for _, c := range []struct {
		name string
		a    row
		as   point.Stamp
		b    row
		bs   point.Stamp
		want row
	}{
		{"later value", value, 1, row{value: 4}, 2, row{value: 4}},
		{"value over a later marker", value, 1, none, 2, value},
		{"histogram over a later marker", hist, 1, none, 2, hist},
		{"value over a later histogram marker", value, 1, noHist, 2, value},
		{"histogram over a later histogram marker", hist, 1, noHist, 2, hist},
		{"later histogram over a value", value, 1, hist, 2, hist},
		{"later value over a histogram", hist, 1, value, 2, value},
		{"histogram over a value of its rank", hist, 1, value, 1, hist},
		{"later of two markers", noHist, 1, none, 2, none},
		{"histogram marker over a marker of its rank", none, 1, noHist, 1, noHist},
		{"greater bits", value, 1, row{value: -5}, 1, row{value: -5}},
		{"greater bytes", hist, 1, row{hist: largeHist}, 1, row{hist: max2(smallHist, largeHist)}},
	} {
		for _, runs := range [][]rows.Run{{run(c.as, c.a), run(c.bs, c.b)}, {run(c.bs, c.b), run(c.as, c.a)}} {
			if got := flat(rows.Merge(runs)); !same(got, []row{c.want}) {
				t.Errorf("%s: %v", c.name, got)
			}
		}
	}
}

func max2(a, b []byte) []byte {
	if bytes.Compare(a, b) > 0 {
		return a
	}
	return b
}

// TestBeatsIsATotalOrder: of two different rows exactly one wins, and winning is handed on.
func TestBeatsIsATotalOrder(t *testing.T) {
	type hand struct {
		float float64
		hist  []byte
		stamp point.Stamp
	}
	check := func(t *rapid.T, beats func(a, b hand) bool, differ func(a, b hand) bool) {
		hands := make([]hand, 3)
		for i := range hands {
			hands[i] = hand{
				float: anyValue.Draw(t, "value"),
				hist:  rapid.SampledFrom([][]byte{smallHist, largeHist, staleHist, staleFloatHist}).Draw(t, "hist"),
				stamp: point.Stamp(rapid.Uint64Range(1, 3).Draw(t, "stamp")),
			}
		}
		a, b, c := hands[0], hands[1], hands[2]
		if beats(a, b) && beats(b, a) {
			t.Fatalf("%v and %v beat each other", a, b)
		}
		if differ(a, b) != (beats(a, b) || beats(b, a)) {
			t.Fatalf("%v and %v: differ %v", a, b, differ(a, b))
		}
		if beats(a, b) && beats(b, c) && !beats(a, c) {
			t.Fatalf("%v beats %v beats %v, which does not lose to the first", a, b, c)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		check(t, func(a, b hand) bool { return rows.Beats(a.float, a.stamp, b.float, b.stamp) },
			func(a, b hand) bool {
				return a.stamp != b.stamp || math.Float64bits(a.float) != math.Float64bits(b.float)
			})
		check(t, func(a, b hand) bool { return rows.BeatsHist(a.hist, a.stamp, b.hist, b.stamp) },
			func(a, b hand) bool { return a.stamp != b.stamp || !bytes.Equal(a.hist, b.hist) })
	})
}

func TestMergeOfOneRunCostsNothing(t *testing.T) {
	runs := []rows.Run{{}, run(1, row{time: 1, value: 1}, row{time: 2, value: 2}), {}}
	got := rows.Merge(runs)
	if &got.Times[0] != &runs[1].Times[0] {
		t.Error("the only run with rows was copied")
	}
	if n := testing.AllocsPerRun(100, func() { rows.Merge(runs) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
	if r := rows.Merge([]rows.Run{{}, {}}); r.Len() != 0 || r.StampHi != 0 {
		t.Errorf("of nothing: %v", r)
	}
}

// TestMergeTakesMemoryOnceWhereRunsFollowEachOther: one list of spans, one column of times, one of values.
func TestMergeTakesMemoryOnceWhereRunsFollowEachOther(t *testing.T) {
	var runs []rows.Run
	for i := range 8 {
		t := int64(i * 10)
		runs = append(runs, run(point.Stamp(i+1), row{time: t, value: 1}, row{time: t + 1, value: 2}))
	}
	if n := testing.AllocsPerRun(100, func() { rows.Merge(runs) }); n > 3 {
		t.Errorf("%v allocations, want 3", n)
	}
}

// TestMergerSharesTimesAlone merges series after series, some of which have the times of the one before.
func TestMergerSharesTimesAlone(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var m rows.Merger
		var runs []rows.Run
		for range rapid.IntRange(1, 6).Draw(t, "series") {
			if len(runs) == 0 || rapid.Bool().Draw(t, "other times") {
				runs = nil
				at := int64(0)
				for i := range rapid.IntRange(0, 3).Draw(t, "runs") {
					var r []row
					for range rapid.IntRange(0, 3).Draw(t, "rows") {
						at += rapid.Int64Range(1, 3).Draw(t, "pause")
						r = append(r, row{time: at, hist: anyHist.Draw(t, "hist")})
					}
					at += rapid.Int64Range(-2, 1).Draw(t, "overlap")
					runs = append(runs, run(point.Stamp(i+1), r...))
				}
			}
			for i := range runs {
				runs[i].Values = slices.Clone(runs[i].Values)
				for j := range runs[i].Values {
					runs[i].Values[j] = anyValue.Draw(t, "value")
				}
			}
			got, want := m.Merge(runs), rows.Merge(runs)
			if !same(flat(got), flat(want)) || got.StampLo != want.StampLo || got.StampHi != want.StampHi {
				t.Fatalf("merged %v, want %v", got, want)
			}
		}
	})
}
