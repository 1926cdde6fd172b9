package partition

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/rows"
)

// oneRow is a row of the model: what decides between it and another of its series and time.
type oneRow struct {
	rank  point.Stamp
	hist  bool
	stale bool
	value uint8
}

// beats is the order of rows, written down once more.
func (r oneRow) beats(o oneRow) bool {
	switch {
	case r.stale != o.stale:
		return o.stale
	case r.rank != o.rank:
		return r.rank > o.rank
	case r.hist != o.hist:
		return r.hist
	}
	return r.value > o.value
}

func (r oneRow) String() string {
	return fmt.Sprintf("%d/%v/%v by %d", r.value, map[bool]string{false: "float", true: "histogram"}[r.hist], map[bool]string{false: "value", true: "stale"}[r.stale], r.rank)
}

// histogram is not a real one: only its sum is looked at.
func (r oneRow) histogram() []byte {
	h := make([]byte, 20)
	h[0] = 1 // the version
	if r.stale {
		binary.LittleEndian.PutUint64(h[2:], point.StaleNaN)
	}
	h[15] = r.value
	return h
}

func (r oneRow) float() float64 {
	if r.stale {
		return math.Float64frombits(point.StaleNaN)
	}
	return float64(r.value)
}

const rankedSeries, rankedTimes = 4, 24

// rankedWorld is a leader, a placement that follows it, and every row that counts.
type rankedWorld struct {
	t     *testing.T
	rng   *rand.Rand
	disks [2]vfs.FS
	at    [2]*bench // the leader first
	model map[string]map[point.Nanos]oneRow
	past  []func() // foreign inserts, that may come again
	gone  []goneRows
	steps []string
}

type goneRows struct {
	name string
	rank point.Stamp
}

// TestOfTwoValuesTheHigherRankIsReadWhateverHappens inserts rows with rising ranks, and rows of ranks that were given out elsewhere, in any order and more than once, among flushes,
// compactions, deletions and restarts, and compares what the leader and a placement that follows read with the plain maximum. TEST_SEED says where to begin.
func TestOfTwoValuesTheHigherRankIsReadWhateverHappens(t *testing.T) {
	runs, seed := 60, rand.Uint64()
	if testing.Short() {
		runs = 10
	}
	if n, err := strconv.ParseUint(os.Getenv("TEST_SEED"), 10, 64); err == nil {
		seed = n
	}
	for i := range uint64(runs) {
		runRanked(t, seed+i)
		if t.Failed() {
			t.Fatalf("TEST_SEED=%d go test -run %s ./storage/partition", seed+i, t.Name())
		}
	}
}

func runRanked(t *testing.T, seed uint64) {
	w := &rankedWorld{t: t, rng: rand.New(rand.NewPCG(seed, 17)), model: map[string]map[point.Nanos]oneRow{}}
	for i := range w.disks {
		w.disks[i] = vfs.NewMem()
	}
	w.open(1)
	defer func() {
		for _, b := range w.at {
			b.close()
		}
		if t.Failed() {
			t.Log(w.steps)
		}
	}()
	for range 80 {
		w.step()
		w.check(w.at[0])
		if t.Failed() {
			return
		}
	}
}

func (w *rankedWorld) open(epoch point.Epoch) {
	l := openBenchWith(w.t, w.disks[0], 0, exact)
	l.must(l.LeadChain(epoch, &byHand{await: func(point.Serial) error { return w.at[1].catchUp(l, epoch) }}))
	f := openBenchWith(w.t, w.disks[1], 0, exact)
	f.must(f.FollowLeader(0))
	f.must(f.Tidy(true))
	f.must(f.FollowLeader(epoch))
	w.at = [2]*bench{l, f}
}

func (w *rankedWorld) step() {
	l := w.at[0]
	say := func(s string) { w.steps = append(w.steps, s) }
	switch n := w.rng.IntN(100); {
	case n < 30:
		w.insert(false)
	case n < 65:
		w.insert(true)
	case n < 70 && len(w.past) > 0:
		say("again")
		w.past[w.rng.IntN(len(w.past))]()
	case n < 82:
		say("flush")
		l.must(l.Flush(w.t.Context(), ByAge))
	case n < 88:
		say("compact")
		l.must(l.Compact(w.t.Context(), ByRequest))
	case n < 90:
		w.delete()
	case n < 94:
		say("restart")
		epoch := l.mu.epoch
		for _, b := range w.at {
			b.close()
		}
		w.open(epoch + 1)
	default:
		say("the other one reads")
		f := w.at[1]
		f.must(f.catchUp(l, l.mu.epoch))
		if w.rng.IntN(2) == 0 {
			f.must(f.fetch(l, l.mu.epoch))
		}
		w.check(f)
	}
}

// insert writes some rows of one rank: one that is new, or of the last minute.
func (w *rankedWorld) insert(foreign bool) {
	l := w.at[0]
	name := fmt.Sprint("s", w.rng.IntN(rankedSeries))
	stamp := max(l.highest(), ranked(0)) + point.Stamp(w.rng.IntN(3*second))&^1023
	if foreign {
		stamp -= point.Stamp(w.rng.IntN(60 * second))
	}
	stamp |= point.Stamp(w.rng.IntN(2)) * 77
	r := &Rows{Stamp: stamp, Foreign: foreign, Level: point.All}
	var ones []oneRow
	var times []point.Nanos
	for at := point.Nanos(w.rng.IntN(rankedTimes)); at < rankedTimes && len(times) < 6; at += 1 + point.Nanos(w.rng.IntN(4)) {
		one := oneRow{hist: w.rng.IntN(4) == 0, stale: w.rng.IntN(8) == 0, value: uint8(w.rng.IntN(256))}
		if one.stale && !one.hist {
			one.value = 0
		}
		ones, times = append(ones, one), append(times, at)
	}
	put := func() {
		l := w.at[0]
		ref := l.index.Intern(labelsOf(name))
		defer l.index.Release(ref)
		r.Refs, r.Times, r.Values, r.HistRefs, r.Hists = nil, nil, nil, nil, nil
		for i, one := range ones {
			if one.hist {
				r.HistRefs, r.Hists = append(r.HistRefs, ref), append(r.Hists, point.HistRow{Time: times[i], H: one.histogram()})
			} else {
				r.Refs, r.Times, r.Values = append(r.Refs, ref), append(r.Times, times[i]), append(r.Values, one.float())
			}
		}
		l.must(l.Append(r))
		rank := r.Stamp
		if !foreign {
			rank = l.highest()
		}
		w.steps = append(w.steps, fmt.Sprintf("%s %v %v at %d", name, times, ones, rank))
		w.take(name, times, ones, rank)
	}
	put()
	if foreign {
		w.past = append(w.past, put)
	}
}

// take makes rows part of the model.
func (w *rankedWorld) take(name string, times []point.Nanos, ones []oneRow, rank point.Stamp) {
	if slices.ContainsFunc(w.gone, func(g goneRows) bool { return g.name == name && hidesRank(g.rank, rank, deletedMargin) }) {
		return
	}
	if w.model[name] == nil {
		w.model[name] = map[point.Nanos]oneRow{}
	}
	for i, at := range times {
		one := ones[i]
		one.rank = rank
		if old, ok := w.model[name][at]; !ok || one.beats(old) {
			w.model[name][at] = one
		}
	}
}

func (w *rankedWorld) delete() {
	name := fmt.Sprint("s", w.rng.IntN(rankedSeries))
	w.steps = append(w.steps, "delete "+name)
	l := w.at[0]
	before := l.highest()
	l.must(l.Delete(w.t.Context(), 0, only(name), 0, rankedTimes))
	delete(w.model, name)
	if rank := l.highest(); rank > before { // else there is no such series: nothing is remembered
		w.gone = append(w.gone, goneRows{name, rank})
	}
}

// check compares reads of a placement with the model, with and without ranks.
func (w *rankedWorld) check(b *bench) {
	v, err := b.View()
	b.must(err)
	defer v.Close()
	ss, err := v.Match(nil)
	b.must(err)
	for _, ranks := range []bool{false, true} {
		got := map[string]map[point.Nanos]oneRow{}
		read := v.Read
		if ranks {
			read = v.ReadRanked
		}
		b.must(read(ss, 0, rankedTimes, func(i int, r rows.Run) error {
			got[ss[i].Labels.Get("i")] = rowsOf(&r)
			return nil
		}))
		for i := range rankedSeries {
			w.compare(fmt.Sprint("s", i), got, ranks)
		}
	}
}

func (w *rankedWorld) compare(name string, got map[string]map[point.Nanos]oneRow, ranks bool) {
	for at := range point.Nanos(rankedTimes) {
		want, ok := w.model[name][at]
		if !ranks {
			want.rank = 0
		}
		if has, found := got[name][at]; found != ok || has != want {
			w.t.Errorf("%s at %d: read %v (%v), want %v (%v)", name, at, has, found, want, ok)
		}
	}
}

// rowsOf gives the rows of a run, without ranks where it has none.
func rowsOf(r *rows.Run) map[point.Nanos]oneRow {
	out := map[point.Nanos]oneRow{}
	for i, at := range r.Times {
		one := oneRow{stale: point.IsStale(r.Values[i])}
		if !one.stale {
			one.value = uint8(r.Values[i])
		}
		if r.Ranks != nil {
			one.rank = r.Ranks[i]
		}
		out[at] = one
	}
	for i := range r.Hists {
		h := &r.Hists[i]
		one := oneRow{hist: true, stale: point.IsStaleHistogram(h.H), value: h.H[15]}
		if r.HistRanks != nil {
			one.rank = r.HistRanks[i]
		}
		out[h.Time] = one
	}
	return out
}
