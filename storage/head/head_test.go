package head

import (
	"cmp"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"unsafe"

	"github.com/prometheus/prometheus/model/histogram"
	"pgregory.net/rapid"

	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/rows"
)

var (
	stale     = math.Float64frombits(point.StaleNaN)
	staleHist = point.AppendHistogram(nil, &histogram.Histogram{Sum: stale})
)

// model is the head in one sentence: of all rows of a series and time, the winner.
type model struct {
	rows map[point.DenseID]map[point.Nanos][]row // in the order of appends
}

func (m *model) append(id point.DenseID, r row) {
	if m.rows == nil {
		m.rows = map[point.DenseID]map[point.Nanos][]row{}
	}
	if m.rows[id] == nil {
		m.rows[id] = map[point.Nanos][]row{}
	}
	m.rows[id][r.time] = append(m.rows[id][r.time], r)
}

// winner is written from the rules alone, for stamps that no two appends share.
func winner(rs []row) row {
	best := rs[0]
	for _, r := range rs[1:] {
		bestStale := best.hist == nil && point.IsStale(best.value) || string(best.hist) == string(staleHist)
		rStale := r.hist == nil && point.IsStale(r.value) || string(r.hist) == string(staleHist)
		if bestStale && !rStale || bestStale == rStale && r.stamp >= best.stamp {
			best = r
		}
	}
	return best
}

func (m *model) read(id point.DenseID, lo, hi point.Nanos) []row {
	var out []row
	for t, rs := range m.rows[id] {
		if t >= lo && t <= hi {
			out = append(out, winner(rs))
		}
	}
	slices.SortFunc(out, func(a, b row) int {
		if a.time < b.time {
			return -1
		}
		return 1
	})
	return out
}

func flat(r *rows.Run) []row {
	var out []row
	for i, t := range r.Times {
		out = append(out, row{time: t, value: r.Values[i]})
	}
	for _, h := range r.Hists {
		out = append(out, row{time: h.Time, hist: h.H})
	}
	slices.SortFunc(out, func(a, b row) int {
		if a.time < b.time {
			return -1
		}
		return 1
	})
	return out
}

func sameRows(a, b []row) bool {
	return slices.EqualFunc(a, b, func(x, y row) bool {
		return x.time == y.time && math.Float64bits(x.value) == math.Float64bits(y.value) && string(x.hist) == string(y.hist)
	})
}

func rising(r *rows.Run) bool {
	for i := 1; i < len(r.Times); i++ {
		if r.Times[i] <= r.Times[i-1] {
			return false
		}
	}
	return true
}

var (
	anyBits = rapid.Uint64()
	anyID   = rapid.OneOf(
		rapid.Custom(func(t *rapid.T) point.DenseID { return point.DenseID(rapid.IntRange(0, 40).Draw(t, "near")) }),
		rapid.Custom(func(t *rapid.T) point.DenseID { return point.DenseID(rapid.IntRange(0, 5000).Draw(t, "far")) }),
	)
	anyTime = rapid.OneOf(
		rapid.Int64Range(0, 30),
		rapid.Custom(func(t *rapid.T) int64 { return rapid.Int64Range(0, 100).Draw(t, "s") * 1e9 }),
		rapid.Custom(func(t *rapid.T) int64 { return 1e18 + rapid.Int64Range(0, 1e6).Draw(t, "ms")*1e6 }),
		rapid.Custom(func(t *rapid.T) int64 { return 1e18 + rapid.Int64Range(0, 1e6).Draw(t, "us")*1e3 }),
		rapid.Int64(),
		rapid.SampledFrom([]int64{math.MinInt64, math.MaxInt64, -1}),
	)
	anyValue = rapid.OneOf(
		rapid.Custom(func(t *rapid.T) float64 { return float64(rapid.IntRange(-40, 40).Draw(t, "small")) }),
		rapid.Custom(func(t *rapid.T) float64 { return float64(rapid.Int64().Draw(t, "int")) }),
		rapid.Custom(func(t *rapid.T) float64 { return math.Float64frombits(anyBits.Draw(t, "bits")) }),
		rapid.Float64(),
		rapid.SampledFrom([]float64{
			0, math.Copysign(0, -1), math.Inf(1), math.Inf(-1), math.NaN(), stale, math.Float64frombits(0x7ff8000000000001),
			1 << 52, -(1 << 52), 1<<52 + 1, 1 << 53, -(1 << 53), math.MaxInt64, math.MinInt64, math.MaxFloat64, 5e-324,
		}),
	)
)

// TestReadsWhatAModelReads appends frames in any order of stamps and compares every series, in whole and in part.
func TestReadsWhatAModelReads(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h, m := New(Settings{onHeap: rapid.Bool().Draw(t, "onHeap"), FewRows: rapid.Bool().Draw(t, "fewRows")}), &model{}
		defer h.Free()
		stamp, used := point.Stamp(1000), map[point.Stamp]bool{}
		count := 0
		for range rapid.IntRange(1, 40).Draw(t, "frames") {
			s := stamp + 10
			if rapid.IntRange(0, 3).Draw(t, "late") == 0 {
				s = point.Stamp(rapid.Uint64Range(1, uint64(stamp)).Draw(t, "stamp"))
			}
			if used[s] {
				continue
			}
			used[s] = true
			stamp = max(stamp, s)
			var ids []point.DenseID
			var times []point.Nanos
			var values []float64
			for range rapid.IntRange(0, 30).Draw(t, "rows") {
				ids = append(ids, anyID.Draw(t, "id"))
				times = append(times, anyTime.Draw(t, "time"))
				values = append(values, anyValue.Draw(t, "value"))
				m.append(ids[len(ids)-1], row{time: times[len(times)-1], stamp: s, value: values[len(values)-1]})
			}
			h.Append(s, ids, times, values)
			count += len(ids)
			for range rapid.IntRange(-4, 3).Draw(t, "hists") {
				id, tm := anyID.Draw(t, "id"), anyTime.Draw(t, "time")
				hist := rapid.SampledFrom([][]byte{{1}, {2}, {3}, staleHist}).Draw(t, "hist")
				h.AppendHist(s, id, tm, hist)
				m.append(id, row{time: tm, stamp: s, hist: hist})
				count++
			}
		}
		if h.Rows() != count {
			t.Fatalf("%d rows, want %d", h.Rows(), count)
		}
		lo, hi := anyTime.Draw(t, "lo"), anyTime.Draw(t, "hi")
		var run rows.Run
		for id := range m.rows {
			for _, r := range [][2]point.Nanos{{math.MinInt64, math.MaxInt64}, {lo, hi}} {
				want := m.read(id, r[0], r[1])
				if ok := h.Read(id, r[0], r[1], &run); ok != (len(want) > 0) {
					t.Fatalf("series %d in %v: found %v, want %d rows", id, r, ok, len(want))
				}
				if got := flat(&run); !sameRows(got, want) || !rising(&run) {
					t.Fatalf("series %d in %v:\n got %v\nwant %v", id, r, got, want)
				}
				checkNewest(t, h, id, r, want)
				if h.ReadRanked(id, r[0], r[1], &run) != (len(want) > 0) || !sameRows(flat(&run), want) {
					t.Fatalf("series %d in %v with ranks:\n got %v\nwant %v", id, r, flat(&run), want)
				}
				checkRanks(t, id, m, &run)
			}
			checkStamps(t, id, m, &run, h)
			if len(m.read(id, lo, math.MaxInt64)) > 0 && !h.SeriesSince(lo).Contains(uint32(id)) {
				t.Fatalf("series %d has rows at %d or later, and is left out", id, lo)
			}
		}
		checkIDs(t, h, m)
	})
}

// checkNewest reads the last rows of want, at least the newest.
func checkNewest(t *rapid.T, h *Head, id point.DenseID, in [2]point.Nanos, want []row) {
	var all, run rows.Run
	h.Read(id, in[0], in[1], &all)
	ok := h.ReadNewest(id, in[0], in[1], &run)
	got := flat(&run)
	if ok != (len(want) > 0) || len(got) > len(want) || ok && len(got) == 0 || !sameRows(got, want[len(want)-len(got):]) {
		t.Fatalf("newest of series %d in %v:\n got %v (%v)\nwant the end of %v", id, in, got, ok, want)
	}
	if ok && (run.StampLo != all.StampLo || run.StampHi != all.StampHi) {
		t.Fatalf("newest of series %d in %v: stamps %d…%d, want %d…%d", id, in, run.StampLo, run.StampHi, all.StampLo, all.StampHi)
	}
}

// TestALateRowLeavesTheNewestAtHand: beside late rows, in the chain and aside, the newest row is read alone as soon as one came on time.
func TestALateRowLeavesTheNewestAtHand(t *testing.T) {
	for _, at := range []struct {
		name  string
		time  point.Nanos
		stamp point.Stamp
		alone bool // also before the next row
	}{
		{"received later, of an earlier time", 25, 101, false},
		{"received earlier, of an earlier time", 25, 50, true},
		{"received earlier, of a later time", 1005, 50, false},
		{"once more", 1000, 101, true},
	} {
		t.Run(at.name, func(t *testing.T) {
			h := New(Settings{})
			defer h.Free()
			const id = 7
			add := func(stamp point.Stamp, at point.Nanos) {
				h.Append(stamp, []point.DenseID{id}, []point.Nanos{at}, []float64{float64(at)})
			}
			for i := range 100 {
				add(point.Stamp(i+1), point.Nanos(10*(i+1)))
			}
			add(at.stamp, at.time)
			read := func(want point.Nanos, alone bool) {
				t.Helper()
				var run rows.Run
				if !h.ReadNewest(id, 0, 2000, &run) || run.Times[run.Len()-1] != want || run.Values[run.Len()-1] != float64(want) {
					t.Fatalf("the newest is %v, want %d", run.Times, want)
				}
				if alone != (run.Len() == 1) {
					t.Errorf("%d rows were read, want the newest alone: %v", run.Len(), alone)
				}
			}
			read(max(1000, at.time), at.alone)
			add(102, 1010)
			read(1010, true)
		})
	}
}

func checkStamps(t *rapid.T, id point.DenseID, m *model, run *rows.Run, h *Head) {
	lo, hi := point.Stamp(math.MaxUint64), point.Stamp(0)
	for _, rs := range m.rows[id] {
		for _, r := range rs {
			lo, hi = min(lo, r.stamp), max(hi, r.stamp)
		}
	}
	h.Read(id, math.MinInt64, math.MaxInt64, run)
	if run.StampLo != lo || run.StampHi != hi {
		t.Fatalf("series %d: stamps %d…%d, want %d…%d", id, run.StampLo, run.StampHi, lo, hi)
	}
}

func checkIDs(t *rapid.T, h *Head, m *model) {
	ids := h.SeriesIDs()
	if int(ids.GetCardinality()) != len(m.rows) || h.Series() != len(m.rows) {
		t.Fatalf("%d series (%d by count), want %d", ids.GetCardinality(), h.Series(), len(m.rows))
	}
	var order []point.DenseID
	for id := range m.rows {
		if !ids.Contains(uint32(id)) {
			t.Fatalf("series %d is not listed", id)
		}
		order = append(order, id)
	}
	order = append(order, 9999)
	slices.Sort(order)
	slices.Reverse(order)
	var seen []point.DenseID
	err := h.Drain(order, func(id point.DenseID, r *rows.Run) error {
		seen = append(seen, id)
		if got, want := flat(r), m.read(id, math.MinInt64, math.MaxInt64); !sameRows(got, want) {
			t.Fatalf("drained series %d:\n got %v\nwant %v", id, got, want)
		}
		checkRanks(t, id, m, r)
		return nil
	})
	if err != nil || !slices.Equal(seen, order[1:]) {
		t.Fatalf("drained %v (%v), want %v", seen, err, order[1:])
	}
}

// checkRanks compares the ranks of rows with those of the model.
func checkRanks(t *rapid.T, id point.DenseID, m *model, r *rows.Run) {
	if !r.Ranked() {
		t.Fatalf("series %d: %d and %d ranks of %d rows and %d histograms", id, len(r.Ranks), len(r.HistRanks), len(r.Times), len(r.Hists))
	}
	for i, at := range r.Times {
		if want := winner(m.rows[id][at]); r.Ranks[i] != want.stamp {
			t.Fatalf("series %d at %d: rank %d, want %d", id, at, r.Ranks[i], want.stamp)
		}
	}
	for i := range r.Hists {
		if want := winner(m.rows[id][r.Hists[i].Time]); r.HistRanks[i] != want.stamp {
			t.Fatalf("series %d at %d: rank %d of a histogram, want %d", id, r.Hists[i].Time, r.HistRanks[i], want.stamp)
		}
	}
}

// TestLongChains has each kind of row cross many ends of blocks, in every phase.
func TestLongChains(t *testing.T) {
	kinds := map[string]func(i int) (point.Nanos, float64){
		"one byte a row":   func(i int) (point.Nanos, float64) { return int64(i) * 1e10, float64(i) },
		"same value":       func(i int) (point.Nanos, float64) { return int64(i) * 1e10, 0.1 },
		"large steps":      func(i int) (point.Nanos, float64) { return int64(i) * 1e10, float64(i * i * 1000) },
		"fractions":        func(i int) (point.Nanos, float64) { return int64(i) * 1e10, math.Sqrt(float64(i)) },
		"jitter in ms":     func(i int) (point.Nanos, float64) { return int64(i)*1e10 + int64(i*7919%30)*1e6, float64(i) },
		"jitter in ns":     func(i int) (point.Nanos, float64) { return int64(i)*1e10 + int64(i*7919%30_000_011), float64(i) },
		"wrapping times":   func(i int) (point.Nanos, float64) { return int64(i) * (math.MaxInt64/5 + 3), float64(i) },
		"signs and limits": func(i int) (point.Nanos, float64) { return int64(i), float64((i%3 - 1) << 52) },
		"widest rows": func(i int) (point.Nanos, float64) {
			return int64(uint64(i) * 0x9e3779b97f4a7c15), math.Pi * float64(i)
		},
	}
	for name, kind := range kinds {
		for _, bystanders := range []int{0, 1, 200} {
			h, m := New(Settings{}), &model{}
			for i := range 1000 {
				tm, v := kind(i)
				h.Append(point.Stamp(2*i+1), []point.DenseID{3}, []point.Nanos{tm}, []float64{v})
				m.append(3, row{time: tm, stamp: point.Stamp(2*i + 1), value: v})
				for j := range i * 31 % (bystanders + 1) { // frames of the group that do not hold the series
					h.Append(point.Stamp(2*i+2), []point.DenseID{point.DenseID(4 + j%20)}, []point.Nanos{tm}, []float64{v})
				}
			}
			h.Append(7, []point.DenseID{3}, []point.Nanos{5}, []float64{5}) // goes aside: the stamps are read back too
			m.append(3, row{time: 5, stamp: 7, value: 5})
			var run rows.Run
			h.Read(3, math.MinInt64, math.MaxInt64, &run)
			if !sameRows(flat(&run), m.read(3, math.MinInt64, math.MaxInt64)) {
				t.Errorf("%s, %d bystanders: rows differ", name, bystanders)
			}
			h.Free()
		}
	}
}

// TestSeriesThatMissesManyFrames crosses the width of the state's count of frames passed: 5 must not be read as 65,541.
func TestSeriesThatMissesManyFrames(t *testing.T) {
	h := New(Settings{})
	defer h.Free()
	const quiet, busy = 3, 4
	stamp, want := point.Stamp(0), []row(nil)
	frame := func(id point.DenseID, t point.Nanos, v float64) {
		stamp += 2
		h.Append(stamp, []point.DenseID{id}, []point.Nanos{t}, []float64{v})
	}
	for i, skip := range []int{1, 5, 1<<16 + 5, 5, 1 << 16, 1<<16 - 1, 1<<16 - 1, 1<<16 - 2, 1<<16 - 2, 1 << 16, 1} {
		for range skip - 1 {
			frame(busy, 0, 0)
		}
		frame(quiet, int64(i), 7)
		want = append(want, row{time: int64(i), value: 7, stamp: stamp})
	}
	for i := range want { // a row aside below each stamp loses, one above it wins
		id, at := []point.DenseID{quiet}, []point.Nanos{want[i].time}
		h.Append(want[i].stamp-1, id, at, []float64{-1})
		if i%2 == 0 && i < len(want)-1 {
			h.Append(want[i].stamp+1, id, at, []float64{-2})
			want[i].value = -2
		}
	}
	var run rows.Run
	h.Read(quiet, math.MinInt64, math.MaxInt64, &run)
	if got := flat(&run); !sameRows(got, want) {
		t.Errorf("\n got %v\nwant %v", got, want)
	}
}

func TestLaterWriteWinsWhateverPathItTook(t *testing.T) {
	const series = 7
	f := func(want float64, appends ...[3]float64) { // stamp, time, value
		t.Helper()
		h := New(Settings{})
		defer h.Free()
		for _, a := range appends {
			h.Append(point.Stamp(a[0]), []point.DenseID{series}, []point.Nanos{int64(a[1])}, []float64{a[2]})
		}
		var run rows.Run
		h.Read(series, 10, 10, &run)
		if len(run.Values) != 1 || math.Float64bits(run.Values[0]) != math.Float64bits(want) {
			t.Errorf("%v: got %v, want %v", appends, run.Values, want)
		}
	}
	f(2, [3]float64{100, 10, 1}, [3]float64{200, 10, 2})
	f(2, [3]float64{200, 10, 2}, [3]float64{100, 10, 1})
	// A staged correction arrives after the next scrape: it lost its place in the chain, but keeps its rank.
	f(2, [3]float64{100, 10, 1}, [3]float64{200, 20, 9}, [3]float64{150, 10, 2})
	f(1, [3]float64{160, 10, 1}, [3]float64{200, 20, 9}, [3]float64{150, 10, 2})
	// A stale marker never beats a value.
	f(1, [3]float64{100, 10, 1}, [3]float64{200, 10, stale})
	f(1, [3]float64{200, 10, stale}, [3]float64{100, 10, 1})
	f(stale, [3]float64{100, 10, stale}, [3]float64{200, 10, stale})
	// Rows of one stamp: the later; a frame delivered twice changes nothing.
	f(1, [3]float64{100, 10, 2}, [3]float64{100, 10, 1})
	f(1, [3]float64{100, 10, 2}, [3]float64{100, 10, 1}, [3]float64{200, 20, 9}, [3]float64{100, 10, 2}, [3]float64{100, 10, 1})
}

func TestHistogramAndFloatAtOneTime(t *testing.T) {
	h := New(Settings{})
	defer h.Free()
	ids, at := []point.DenseID{1}, []point.Nanos{10}
	var run rows.Run
	read := func() string {
		h.Read(1, 0, 100, &run)
		if len(run.Hists) == 1 && len(run.Times) == 0 {
			return string(run.Hists[0].H)
		}
		if len(run.Hists) == 0 && len(run.Times) == 1 {
			return "float"
		}
		return "both or none"
	}
	for _, step := range []struct {
		append func()
		want   string
	}{
		{func() { h.Append(100, ids, at, []float64{1}) }, "float"},
		{func() { h.AppendHist(100, 1, 10, []byte("b")) }, "b"},
		{func() { h.AppendHist(90, 1, 10, []byte("c")) }, "b"},
		{func() { h.Append(200, ids, at, []float64{1}) }, "float"},
		{func() { h.AppendHist(300, 1, 10, []byte("a")) }, "a"},
		{func() { h.Append(400, ids, at, []float64{stale}) }, "a"},
	} {
		step.append()
		if got := read(); got != step.want {
			t.Errorf("got %s, want %s", got, step.want)
		}
	}
}

func TestDrainStopsAtAnError(t *testing.T) {
	h := New(Settings{})
	defer h.Free()
	h.Append(1, []point.DenseID{1, 2}, []point.Nanos{1, 1}, []float64{1, 1})
	full, calls := errors.New("disk full"), 0
	err := h.Drain([]point.DenseID{2, 1}, func(point.DenseID, *rows.Run) error { calls++; return full })
	if err != full || calls != 1 {
		t.Errorf("%v after %d calls", err, calls)
	}
}

func TestFreedHeadIsEmpty(t *testing.T) {
	h := New(Settings{})
	h.Append(1, []point.DenseID{1}, []point.Nanos{1}, []float64{1})
	if least := h.few.bytes(); h.Bytes() < least || least == 0 {
		t.Errorf("%d bytes where the state of series takes %d", h.Bytes(), least)
	}
	h.Free()
	var run rows.Run
	if _, _, ok := h.TimeBounds(); ok || h.Read(1, 0, 9, &run) || h.SeriesIDs().Contains(1) || h.Bytes() != 0 {
		t.Error("something is left")
	}
}

func TestBounds(t *testing.T) {
	h := New(Settings{})
	defer h.Free()
	h.Append(50, []point.DenseID{1, 5000}, []point.Nanos{-7, 9}, []float64{1, 1})
	h.AppendHist(20, 3, 11, []byte("h"))
	if lo, hi, ok := h.TimeBounds(); lo != -7 || hi != 11 || !ok {
		t.Errorf("times %d…%d", lo, hi)
	}
}

func TestExemplars(t *testing.T) {
	h := New(Settings{ExemplarsMax: 4})
	defer h.Free()
	a := point.MakeLabels("__name__", "x", "trace_id", "a")
	for i, e := range []Exemplar{{Time: 30, Value: 3, Labels: a}, {Time: 10, Value: 1, Labels: a}, {Time: 30, Value: 3, Labels: a}, {Time: 20, Value: 2, Labels: a}} {
		if h.AppendExemplar(point.DenseID(4-i/3*3), e) {
			t.Fatalf("exemplar %d took another's place", i)
		}
	}
	if got := h.Exemplars(4, 10, 30, nil); len(got) != 2 || got[0].Time != 10 || got[1].Time != 30 {
		t.Errorf("series 4: %v", got)
	}
	var order []point.Nanos
	_ = h.EachExemplar(func(_ point.DenseID, e Exemplar) error { order = append(order, e.Time); return nil })
	if !slices.Equal(order, []point.Nanos{20, 10, 30}) {
		t.Errorf("order %v", order)
	}
}

// TestNewestExemplarsStay: of all series together the last to come stay, regardless of their times, and memory does not grow.
func TestNewestExemplarsStay(t *testing.T) {
	const most = 10
	h := New(Settings{ExemplarsMax: most})
	defer h.Free()
	rng := rand.New(rand.NewPCG(1, 2))
	type one struct {
		id point.DenseID
		at point.Nanos
	}
	var came []one
	full := 0
	for i := range 1000 {
		x := one{point.DenseID(rng.IntN(4)), point.Nanos(1000 - i)}
		came = append(came, x)
		if evicted := h.AppendExemplar(x.id, Exemplar{Time: x.at, Labels: "\x01a\x01b"}); evicted != (i >= most) {
			t.Fatalf("exemplar %d: evicted %t", i, evicted)
		}
		if i == most-1 {
			full = h.Bytes()
		}
		want := came[max(0, len(came)-most):]
		want = slices.SortedFunc(slices.Values(want), func(a, b one) int { return cmp.Or(cmp.Compare(a.id, b.id), cmp.Compare(a.at, b.at)) })
		var got []one
		_ = h.EachExemplar(func(id point.DenseID, e Exemplar) error { got = append(got, one{id, e.Time}); return nil })
		if !slices.Equal(got, want) {
			t.Fatalf("after %d: %v, want %v", i, got, want)
		}
	}
	if n := h.Bytes(); n != full {
		t.Errorf("%d bytes, after the first ten %d", n, full)
	}
}

// TestReadersBesideAppends checks that a reader sees a prefix of the appended rows, whole rows only. Under -race the
// arena lies where the detector sees it.
func TestReadersBesideAppends(t *testing.T) {
	const series, rounds = 300, 200
	h := New(Settings{onHeap: true})
	var done sync.WaitGroup
	stop := make(chan struct{})
	for r := range 3 {
		done.Add(1)
		go func() {
			defer done.Done()
			var run rows.Run
			for i := r; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				id := point.DenseID(i % series)
				if !h.Read(id, math.MinInt64, math.MaxInt64, &run) {
					continue
				}
				for k, tm := range run.Times {
					if tm != int64(k)*1e9 || run.Values[k] != float64(k*int(id)) {
						t.Errorf("series %d row %d: (%d, %v)", id, k, tm, run.Values[k])
						return
					}
				}
				if h.SeriesIDs().GetCardinality() > series || h.Rows() > series*rounds || h.Bytes() == 0 {
					t.Error("counts are wrong")
				}
			}
		}()
	}
	ids, times, values := make([]point.DenseID, series), make([]point.Nanos, series), make([]float64, series)
	for k := range rounds {
		for i := range ids {
			ids[i], times[i], values[i] = point.DenseID(i), int64(k)*1e9, float64(k*i)
		}
		h.Append(point.Stamp(k+1), ids, times, values)
		h.AppendExemplar(1, Exemplar{Time: int64(k)})
	}
	close(stop)
	done.Wait()
	h.Free()
}

// TestLargeHeadsUseSlabs fills a head beyond where slabs begin: rows come back, all memory is counted, and all is freed.
func TestLargeHeadsUseSlabs(t *testing.T) {
	const series = 100_000 // 6.5 MB of state, and as much of blocks
	h := New(Settings{})
	ids, times, values := make([]point.DenseID, series), make([]point.Nanos, series), make([]float64, series)
	for i := range ids {
		ids[i] = point.DenseID(i)
	}
	for at := range 3 {
		for i := range ids {
			times[i], values[i] = point.Nanos(at), float64(i+at)
		}
		h.Append(point.Stamp(at+1), ids, times, values)
	}
	const least = series * (64 + blockBytes)
	if n := h.Bytes(); n < least || n > least+least/4+2*slabBytes {
		t.Errorf("%d bytes for %d series of a line and a block each", n, series)
	}
	if len(h.arena.maps) > 40 {
		t.Errorf("%d mappings: pages still come one by one", len(h.arena.maps))
	}
	var run rows.Run
	for i := range ids {
		if !h.Read(point.DenseID(i), 0, 9, &run) || run.Len() != 3 || run.Values[2] != float64(i+2) {
			t.Fatalf("series %d reads %v", i, run)
		}
	}
	h.Free()
	if h.Bytes() != 0 || len(h.arena.maps) != 0 {
		t.Errorf("%d bytes in %d mappings after Free", h.Bytes(), len(h.arena.maps))
	}
}

// TestSlabsLieOnHugePages checks that a slab is one page of the system.
func TestSlabsLieOnHugePages(t *testing.T) {
	var a arena
	defer a.free()
	for range 2*regionBytes/slabBytes + 1 {
		s := a.slab()
		if s == nil {
			t.Skip("no mappings here")
		}
		if at := uintptr(unsafe.Pointer(&s[0])); at%slabBytes != 0 || len(s) != slabBytes {
			t.Fatalf("a slab of %d bytes at %x", len(s), at)
		}
		s[0], s[len(s)-1] = 1, 1
	}
}
