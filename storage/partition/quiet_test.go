package partition

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/RoaringBitmap/roaring/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/protocols/point"
)

// TestSeriesThatComeBackKeepTheirRows writes to series that come and go, with flushes, compactions, cooling and restarts between,
// while each series leaves memory as soon as it can, and compares every state with a model.
func TestSeriesThatComeBackKeepTheirRows(t *testing.T) {
	steps := 300
	if testing.Short() {
		steps = 100
	}
	for seed := range uint64(6) {
		rng := rand.New(rand.NewPCG(seed, 7))
		fs := vfs.NewMem()
		epoch := point.Epoch(1)
		b := openBenchWith(t, fs, epoch, hushed)
		model := map[string]map[point.Nanos]float64{}
		for step := range steps {
			switch n := rng.IntN(20); {
			case n < 12:
				name := fmt.Sprint(rng.IntN(1 + step/4))
				at, v := point.Nanos(rng.IntN(1000)), float64(step)
				b.must(b.put(name, at, v))
				if model[name] == nil {
					model[name] = map[point.Nanos]float64{}
				}
				model[name][at] = v
			case n < 16:
				b.must(b.Flush(context.Background(), ByAge))
			case n < 17:
				b.must(b.Compact(context.Background(), ByRequest))
			case n < 18:
				b.Cool(time.Now(), 0)
			case n < 19:
				b.index.Sweep()
			default:
				b.close()
				epoch++
				b = openBenchWith(t, fs, epoch, hushed)
			}
			if step%10 == 0 || step == steps-1 {
				b.agrees(seed, step, model)
			}
		}
		b.close()
	}
}

// agrees compares the rows that are read with the model, by all series, by one, and by labels.
func (b *bench) agrees(seed uint64, step int, model map[string]map[point.Nanos]float64) {
	b.t.Helper()
	lines := make([]string, 0, len(model))
	for name, rows := range model {
		line := name
		for _, at := range slices.Sorted(maps.Keys(rows)) {
			line += fmt.Sprintf(" %d:%v", at, rows[at])
		}
		lines = append(lines, line)
	}
	slices.Sort(lines)
	v, err := b.View()
	b.must(err)
	defer v.Close()
	got := strings.Split(text(b.t, v), "; ")
	slices.Sort(got)
	if len(model) > 0 && !slices.Equal(got, lines) {
		b.t.Fatalf("seed %d, step %d: read\n%s\nwant\n%s", seed, step, strings.Join(got, "\n"), strings.Join(lines, "\n"))
	}
	values, err := LabelValues([]*View{v}, nil, "i", 0)
	b.must(err)
	names, err := LabelNames([]*View{v}, nil)
	b.must(err)
	if want := slices.Sorted(maps.Keys(model)); !slices.Equal(values, want) || len(model) > 0 && len(names) != 2 {
		b.t.Fatalf("seed %d, step %d: %d values of %d, names %v", seed, step, len(values), len(model), names)
	}
	for name := range model {
		ms, err := CompileMatchers(only(name))
		b.must(err)
		ss, err := v.Match(ms)
		if err != nil || len(ss) != 1 || ss[0].Labels != labelsOf(name) {
			b.t.Fatalf("seed %d, step %d: series %s is found as %v, %v", seed, step, name, ss, err)
		}
		break
	}
}

// TestADayOfSeriesThatComeAndGoStaysSmall: a partition kept every series of its day in memory until it got no more rows, 280 bytes each.
func TestADayOfSeriesThatComeAndGoStaysSmall(t *testing.T) {
	fs := vfs.NewMem()
	set := hushed
	set.QuietSeriesMin, set.WarmSeriesMax = 100, 1000
	b := openBenchWith(t, fs, 1, set)
	const hours, series = 20, 500
	for hour := range hours {
		for i := range series {
			b.must(b.put(fmt.Sprintf("%d-%d", hour, i), point.Nanos(hour), float64(i)))
		}
		b.must(b.Flush(context.Background(), ByAge))
		b.index.Sweep()
		if live := b.index.Len(); live > 3*series {
			t.Fatalf("hour %d: %d series in memory, %d are written to", hour, live, series)
		}
	}
	if x := b.ids.Load(); x.len() != hours*series || x.bytes() > 60*hours*series {
		t.Errorf("%d series of %d take %d bytes", x.len(), hours*series, x.bytes())
	}
	b.must(b.put("0-0", 50, 1))
	if n := b.ids.Load().len(); n != hours*series {
		t.Errorf("a series that came back is defined anew: %d", n)
	}
	b.close()
	b = openBenchWith(t, fs, 2, set)
	b.must(b.put("1-1", 51, 1))
	if live, n := b.index.Len(), b.ids.Load().len(); live > 10 || n != hours*series {
		t.Errorf("after a restart %d series are in memory, %d defined of %d", live, n, hours*series)
	}
	b.close()
}

func TestQuietFindsWhatWasPut(t *testing.T) {
	q := newQuiet()
	const n = 5000
	for i := range point.DenseID(n) {
		q.put(labelsOf(fmt.Sprint(i)), i)
		q.put(labelsOf(fmt.Sprint(i)), i+1) // put before: it stays
	}
	for i := range point.DenseID(2 * n) {
		id, ok := q.find(labelsOf(fmt.Sprint(i)))
		if ok != (i < n) || ok && id != i {
			t.Fatalf("series %d: %d %v", i, id, ok)
		}
	}
	if got := q.bytes(); got > 50*n {
		t.Errorf("%d bytes for %d series", got, n)
	}
}

// TestAProcessThatEndsDoesNotWalkOverItsSeries: the walk that removes quiet series from memory went on for seconds after SIGTERM. One that
// is given up leaves every series found by its name and by its rows, once.
func TestAProcessThatEndsDoesNotWalkOverItsSeries(t *testing.T) {
	b := openBenchWith(t, vfs.NewMem(), 1, hushed)
	defer b.close()
	const series = 3 * giveUpEvery
	for i := range series {
		b.must(b.put(fmt.Sprint(i), 1, float64(i)))
	}
	set := b.settings
	b.settings.QuietAfter = time.Hour // not at this flush
	b.must(b.Flush(context.Background(), ByAge))
	b.settings = set
	ended, end := context.WithCancel(context.Background())
	end()
	before := b.ids.Load()
	b.silence.written = roaring.New()
	b.flushMu.Lock()
	b.hush(ended, series, time.Now())
	b.flushMu.Unlock()
	if b.ids.Load() != before || int(before.live.Load()) != series {
		t.Fatalf("%d of %d series are live after a walk that was given up", b.ids.Load().live.Load(), series)
	}
	b.silence.written = roaring.New()
	b.index.Sweep()
	if n := b.index.Len(); n != series {
		t.Errorf("%d of %d series are in the index", n, series)
	}
	b.flushMu.Lock()
	b.hush(context.Background(), series, time.Now())
	b.flushMu.Unlock()
	b.index.Sweep()
	if live := b.ids.Load().live.Load(); live != 0 || b.index.Len() != 0 {
		t.Errorf("%d series are live, %d in the index: a given up walk kept references", live, b.index.Len())
	}
	v, err := b.View()
	b.must(err)
	defer v.Close()
	ss, err := v.Match(nil)
	if err != nil || len(ss) != series {
		t.Errorf("%d of %d series are found, %v", len(ss), series, err)
	}
}
