package partition

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/prometheus/prometheus/model/labels"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/series"
)

// TestADeletionAfterAFailedFlushHidesEveryRowBeforeIt: it flushed only the head of the failed flush, and rows that came since stayed readable.
func TestADeletionAfterAFailedFlushHidesEveryRowBeforeIt(t *testing.T) {
	mem := vfs.NewMem()
	f := &failing{kind: errorfs.OpCreate, part: ".seg"}
	b := openBench(t, errorfs.Wrap(mem, f), 1)
	b.must(b.put("a", 1, 10))
	f.on.Store(true)
	if err := b.Flush(t.Context(), ByAge); err == nil {
		t.Fatal("the flush went well")
	}
	f.on.Store(false)
	b.must(b.put("a", 2, 20))
	b.must(b.put("b", 2, 20))
	b.must(b.Delete(t.Context(), 0, only("a"), 0, 100))
	b.want("b 2:20")
	b.must(b.put("a", 2, 30))
	b.close()
	b = openBench(t, mem, 2)
	b.must(b.Tidy(true))
	b.want("a 2:30; b 2:20")
	b.must(b.Compact(context.Background(), ByRequest))
	b.want("a 2:30; b 2:20")
	b.close()
}

// TestDeletedRowsStayDeletedAndOthersStay deletes between rows, flushes that fail, compactions, cooling, power cuts and restarts,
// while series leave memory as soon as they can, and compares every state with a model.
func TestDeletedRowsStayDeletedAndOthersStay(t *testing.T) {
	seeds, steps := uint64(8), 250
	if testing.Short() {
		seeds, steps = 3, 120
	}
	for seed := range seeds {
		rng := rand.New(rand.NewPCG(seed, 11))
		fs, f := vfs.NewCrashableMem(), &failing{kind: errorfs.OpCreate, part: ".seg"}
		epoch := point.Epoch(1)
		set := hushed
		if seed%2 == 0 {
			set.WarmSeriesMax = 1000
		}
		open := func() *bench {
			b := openBenchWith(t, errorfs.Wrap(fs, f), epoch, set)
			b.must(b.Tidy(true))
			return b
		}
		b := open()
		model := map[string]map[point.Nanos]float64{}
		for step := range steps {
			switch n := rng.IntN(24); {
			case n < 12:
				name := fmt.Sprint(rng.IntN(1 + step/8))
				at, v := point.Nanos(rng.IntN(100)), float64(step)
				b.must(b.put(name, at, v))
				if model[name] == nil {
					model[name] = map[point.Nanos]float64{}
				}
				model[name][at] = v
			case n < 15:
				b.deleteBoth(rng, model, step)
			case n < 17:
				b.must(b.Flush(t.Context(), ByAge))
			case n < 18:
				f.on.Store(true)
				_ = b.Flush(t.Context(), ByAge) // fails if there are rows
				f.on.Store(false)
			case n < 19:
				b.must(b.Flush(t.Context(), ByAge))
				b.must(b.Compact(t.Context(), ByRequest))
				b.lists(model)
			case n < 21:
				b.Cool(time.Now().Add(time.Hour), 0)
				b.index.Sweep()
			case n < 22:
				b.close()
				epoch++
				b = open()
			default:
				cut := fs.CrashClone(vfs.CrashCloneCfg{})
				b.close()
				fs, epoch = cut, epoch+1
				b = open()
			}
			b.reads(seed, step, model)
		}
		b.close()
	}
}

// lists compares the look-ups, as they are after a compaction, with the model: series without any rows left are gone.
func (b *bench) lists(model map[string]map[point.Nanos]float64) {
	b.t.Helper()
	var want []string
	for name, rows := range model {
		if len(rows) > 0 {
			want = append(want, name)
		}
	}
	slices.Sort(want)
	v, err := b.View()
	b.must(err)
	defer v.Close()
	for _, ms := range [][]*labels.Matcher{nil, {labels.MustNewMatcher(labels.MatchEqual, point.MetricName, "m")}} {
		got, err := LabelValues([]*View{v}, ms, "i", 0)
		b.must(err)
		if !slices.Equal(got, want) {
			b.t.Fatalf("label values %q, want %q", got, want)
		}
		ss, err := v.Match(ms)
		b.must(err)
		if len(ss) != len(want) {
			b.t.Fatalf("%d series match, want %d", len(ss), len(want))
		}
	}
}

// TestDeletedSeriesLeaveLookUpsWithTheNextCompaction: they were listed until retention dropped the day.
func TestDeletedSeriesLeaveLookUpsWithTheNextCompaction(t *testing.T) {
	for _, cold := range []bool{false, true} {
		mem := vfs.NewMem()
		b := openBench(t, mem, 1)
		lists := func(names, series string) {
			t.Helper()
			if cold {
				b.Cool(time.Now().Add(time.Hour), 0)
				b.index.Sweep()
			}
			v, err := b.View()
			b.must(err)
			defer v.Close()
			of, err := LabelNames([]*View{v}, nil)
			b.must(err)
			if got := strings.Join(of, " "); got != names {
				t.Errorf("cold %v: label names %q, want %q", cold, got, names)
			}
			of, err = LabelValues([]*View{v}, nil, "i", 0)
			b.must(err)
			if got := strings.Join(of, " "); got != series {
				t.Errorf("cold %v: series %q, want %q", cold, got, series)
			}
		}
		ref := b.index.Intern(point.MakeLabels(point.MetricName, "m", "i", "typo", "secret", "s3cr3t"))
		b.must(b.Append(&Rows{Stamp: 1024, Refs: []series.Ref{ref}, Times: []point.Nanos{1}, Values: []float64{1},
			ExemplarRefs: []series.Ref{ref}, Exemplars: []point.ExemplarRow{{Time: 1, Value: 1, Labels: "\x05trace\x03abc"}}}))
		b.index.Release(ref)
		b.must(b.put("a", 1, 10))
		b.must(b.Flush(t.Context(), ByAge))
		lists("__name__ i secret", "a typo")
		b.must(b.Delete(t.Context(), 0, only("typo"), 0, 100))
		b.must(b.Compact(t.Context(), ByRequest))
		lists("__name__ i", "a")
		b.close()
		b = openBench(t, mem, 2)
		b.must(b.Tidy(true))
		lists("__name__ i", "a")
		b.must(b.put("typo", 2, 20)) // another series of that value
		lists("__name__ i", "a typo")
		ref = b.index.Intern(point.MakeLabels(point.MetricName, "m", "i", "typo", "secret", "s3cr3t"))
		b.must(b.Append(&Rows{Stamp: 1 << 20, Refs: []series.Ref{ref}, Times: []point.Nanos{3}, Values: []float64{3}}))
		b.index.Release(ref)
		lists("__name__ i secret", "a typo")
		b.must(b.Flush(t.Context(), ByAge))
		lists("__name__ i secret", "a typo")
		b.must(b.Delete(t.Context(), 0, only("typo"), 0, 100))
		b.must(b.Compact(t.Context(), ByRequest))
		lists("__name__ i", "a")
		b.close()
	}
}

// deleteBoth deletes some rows from partition and model.
func (b *bench) deleteBoth(rng *rand.Rand, model map[string]map[point.Nanos]float64, step int) {
	b.t.Helper()
	lo := point.Nanos(rng.IntN(100))
	hi, name := lo+point.Nanos(rng.IntN(60)), fmt.Sprint(rng.IntN(1+step/8))
	ms := only(name)
	if rng.IntN(3) == 0 {
		ms = []peer.Matcher{{Name: "i", Type: 2, Value: ".*[13579]"}}
	}
	b.must(b.Delete(b.t.Context(), 0, ms, lo, hi))
	compiled, err := CompileMatchers(ms)
	b.must(err)
	for of, rows := range model {
		if matches(compiled, labelsOf(of)) {
			maps.DeleteFunc(rows, func(at point.Nanos, _ float64) bool { return at >= lo && at <= hi })
		}
	}
}

// reads compares the rows that are read with the model.
func (b *bench) reads(seed uint64, step int, model map[string]map[point.Nanos]float64) {
	b.t.Helper()
	var want []string
	for name, rows := range model {
		line := name
		for _, at := range slices.Sorted(maps.Keys(rows)) {
			line += fmt.Sprintf(" %d:%v", at, rows[at])
		}
		if len(rows) > 0 {
			want = append(want, line)
		}
	}
	slices.Sort(want)
	v, err := b.View()
	b.must(err)
	defer v.Close()
	got := strings.Split(text(b.t, v), "; ")
	got = slices.DeleteFunc(got, func(s string) bool { return !strings.Contains(s, ":") })
	slices.Sort(got)
	if !slices.Equal(got, want) {
		b.t.Fatalf("seed %d, step %d: read\n%s\nwant\n%s", seed, step, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestRowBeforeADeletedOneIsTheNewest: of a follower's frozen head, in which a deletion hides rows, the row before them is read.
func TestRowBeforeADeletedOneIsTheNewest(t *testing.T) {
	b := openBench(t, vfs.NewMem(), 1)
	defer b.close()
	b.must(b.put("a", 1, 10))
	b.must(b.put("a", 2, 20))
	b.must(b.put("b", 2, 20))
	v, err := b.View()
	b.must(err)
	defer v.Close()
	v.heads[0].hide(Tombstone{Matchers: only("a"), Lo: 2, Hi: 100})
	if got := text(t, v); got != "a 1:10; b 2:20" {
		t.Errorf("read %q", got)
	}
}

// TestOthersCommitWhileOneTableDeletesWithLongMatchers: deletions were bounded in number alone. The entry that each commit writes while the commits of
// all partitions wait had 23 MB after 40 of them.
func TestOthersCommitWhileOneTableDeletesWithLongMatchers(t *testing.T) {
	b := openBench(t, vfs.NewMem(), 1)
	defer b.close()
	for i := range 10 {
		b.must(b.put("a", point.Nanos(i+1), 1))
		b.must(b.Flush(t.Context(), ByAge))
	}
	long := func(i int) []peer.Matcher {
		return []peer.Matcher{{Type: peer.MatchRegexp, Name: "i", Value: fmt.Sprintf("a|%d%s", i, strings.Repeat("b", 60_000))}}
	}
	var err error
	n := 0
	for ; err == nil && n < 40; n++ {
		err = b.Delete(t.Context(), 0, long(n), 0, 100)
	}
	// The last one accepted may be in each of the ten segments.
	if size, most := len(b.State().encode()), 2*deletionsBytesMax; !fault.Is(err, fault.Throttled) || size > most {
		t.Fatalf("after %d deletions (%v) the entry has %d bytes, more than %d", n, err, size, most)
	}
	b.must(b.CompactIfDue(t.Context(), time.Now()))
	b.must(b.Delete(t.Context(), 0, long(n), 0, 100)) // there is room again
	if got := len(b.Segments()); got != 1 {
		t.Errorf("%d segments after a compaction", got)
	}
}

// TestMaintenanceOfOthersGoesOnWhileADeletionWaitsForACopy: the round of flushes waited for the deletion's partition, and so did all other partitions.
func TestMaintenanceOfOthersGoesOnWhileADeletionWaitsForACopy(t *testing.T) {
	b, c := leading(t, vfs.NewMem(), 1)
	defer b.close()
	b.must(b.put("a", 1, 1))
	b.must(b.Flush(t.Context(), ByAge))
	waits, back := make(chan struct{}), make(chan struct{})
	c.away = fault.Errorf(fault.Unavailable, "a copy is away")
	c.await = func(point.Serial) error {
		close(waits)
		<-back
		return nil
	}
	done := make(chan error, 2)
	go func() { done <- b.Delete(t.Context(), 0, only("a"), 0, 10) }()
	<-waits
	maintained := make(chan error, 1)
	go func() { maintained <- b.Maintain(t.Context(), time.Now(), ByMemory) }()
	select {
	case err := <-maintained:
		if !errors.Is(err, c.away) {
			t.Errorf("a flush that waits for no copy: %v", err)
		}
	case <-time.After(time.Minute):
		t.Error("maintenance waits for a copy")
	}
	close(back)
	b.must(<-done)
}

// TestADeletionOfNoTextDeletesNothingAfterARestart: the catalogue's entry is JSON, which made U+FFFD of bytes that are no UTF-8: a deletion that found nothing hid rows of
// a series with that character from the next start on.
func TestADeletionOfNoTextDeletesNothingAfterARestart(t *testing.T) {
	fs := vfs.NewMem()
	b := openBench(t, fs, 1)
	b.must(b.put("\ufffd", 1, 10))
	if err := b.DeleteLate(t.Context(), 1, only("\xff"), 0, 9); !fault.Is(err, fault.Invalid) {
		t.Errorf("%v, want invalid", err)
	}
	b.want("\ufffd 1:10")
	b.close()
	b = openBench(t, fs, 2)
	b.must(b.Tidy(true))
	b.want("\ufffd 1:10")
	b.close()
}
