package partition

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/protocols/rank"
)

// ranked is a rank so many seconds after noon.
func ranked(seconds point.Nanos) point.Stamp { return rank.At(noon + seconds*second) }

// exact keeps all ranks: those of tests are of any time.
var exact = Settings{ExactRanksFor: 100 * 365 * 24 * time.Hour}

// TestAStagedOverwriteThatComesAfterNewerRowsOfTheSeriesWereFlushedIsRead: x=1 is acked, then x=2 by a server that stages it because the leader is away, then
// rows of other times at the leader. These are flushed with x=1 before the staged row is forwarded. And the other way round: a staged row that is older than the
// overwrite here does not replace it, though newer rows come with it.
func TestAStagedOverwriteThatComesAfterNewerRowsOfTheSeriesWereFlushedIsRead(t *testing.T) {
	restart := func(b *bench, fs vfs.FS) *bench {
		epoch := b.mu.epoch
		b.close()
		return openBenchWith(b.t, fs, epoch+1, exact)
	}
	steps := map[string]func(b *bench, fs vfs.FS) *bench{
		"nothing": func(b *bench, _ vfs.FS) *bench { return b },
		"flush":   func(b *bench, _ vfs.FS) *bench { b.must(b.Flush(t.Context(), ByAge)); return b },
		"restart": restart,
		"compaction": func(b *bench, fs vfs.FS) *bench {
			b.must(b.Flush(t.Context(), ByAge))
			b.must(b.putAs(ranked(60), "other", 1, 1))
			b.must(b.Flush(t.Context(), ByAge))
			b.must(b.Compact(t.Context(), ByRequest))
			return restart(b, fs)
		},
	}
	for before, first := range steps {
		for after, last := range steps {
			t.Run(before+" before, "+after+" after", func(t *testing.T) {
				fs := vfs.NewMem()
				b := openBenchWith(t, fs, 1, exact)
				b.must(b.putAs(ranked(5), "a", 1, 1))
				b.must(b.putAs(ranked(15), "a", 2, 30))
				b.must(b.putAs(ranked(20), "a", 3, 40))
				b = first(b, fs)
				b.must(b.forward(ranked(10), "a", 1, 2)) // staged after 1
				b.must(b.forward(ranked(10), "a", 2, 3)) // staged before 30
				b.must(b.forward(ranked(25), "a", 3, 50))
				b = last(b, fs)
				defer func() { b.close() }()
				b.reads(0, 0, map[string]map[point.Nanos]float64{"a": {1: 2, 2: 30, 3: 50}, "other": others(before, after)})
			})
		}
	}
}

func others(steps ...string) map[point.Nanos]float64 {
	for _, s := range steps {
		if s == "compaction" {
			return map[point.Nanos]float64{1: 1}
		}
	}
	return nil
}

// TestAStagedOverwriteIsReadThoughTheClockOfItsLeaderIsYearsAhead: a compaction by a clock that is years ahead of the servers'
// left the ranks of all rows out, and an overwrite that was acked before it and forwarded after it lost to the older value for
// good. Here the machine's clock is ahead: by the servers' it is soon after noon.
func TestAStagedOverwriteIsReadThoughTheClockOfItsLeaderIsYearsAhead(t *testing.T) {
	b := openBench(t, vfs.NewMem(), 1)
	defer b.close()
	b.deps.Now = func() point.Nanos { return noon + 30*second }
	b.must(b.putAs(ranked(5), "a", 1, 1))
	b.must(b.putAs(ranked(20), "a", 2, 30)) // a neighbour that ranks above the staged row
	b.must(b.Flush(t.Context(), ByAge))
	b.must(b.putAs(ranked(25), "a", 3, 40))
	b.must(b.Flush(t.Context(), ByAge))
	if c, _ := b.chain(time.Now()); c.OldRanks != 0 {
		t.Errorf("%d bytes of ranks are old within the minute", c.OldRanks)
	}
	b.must(b.Compact(t.Context(), ByRequest))
	b.must(b.forward(ranked(10), "a", 1, 2))
	b.reads(0, 0, map[string]map[point.Nanos]float64{"a": {1: 2, 2: 30, 3: 40}})
}

// TestAClosedPartitionIsWrittenOnceMoreWithoutOldRanks, and its rows stay the same.
func TestAClosedPartitionIsWrittenOnceMoreWithoutOldRanks(t *testing.T) {
	fs := vfs.NewMem()
	b := openBenchWith(t, fs, 1, exact)
	for i := range point.Nanos(40) {
		b.must(b.putAs(rank.At((i*i*7%40+i*100)*second), "a", i, float64(i))) // in 1970
	}
	b.must(b.Flush(t.Context(), ByAge))
	want := func() { b.reads(0, 0, map[string]map[point.Nanos]float64{"a": counted(40)}) }
	want()
	b.close()
	b = openBench(t, fs, 2) // ranks are kept for three days after their time
	defer func() { b.close() }()
	if n := b.mu.segments[0].reader.Info().RankedRows; n != 40 {
		t.Fatalf("%d rows have ranks, want 40", n)
	}
	later := time.Unix(0, 0).Add(1000 * time.Hour)
	b.mu.lastWrite = later.Add(-25 * time.Hour)
	soon := later.Add(-950 * time.Hour)
	if c, _ := b.chain(soon); c.OldRanks != 0 {
		t.Errorf("%d bytes of ranks are old after 50 hours", c.OldRanks)
	}
	b.must(b.CompactIfDue(t.Context(), later))
	if info := b.mu.segments[0].reader.Info(); info.RankedRows != 0 || !info.Major {
		t.Errorf("%d rows have ranks, major: %v", info.RankedRows, info.Major)
	}
	want()
	id := b.Segments()[0].ID
	b.must(b.CompactIfDue(t.Context(), later))
	if b.Segments()[0].ID != id {
		t.Error("it was written twice")
	}
}

// counted are rows 0 to n-1 with their numbers.
func counted(n int) map[point.Nanos]float64 {
	out := map[point.Nanos]float64{}
	for i := range n {
		out[point.Nanos(i)] = float64(i)
	}
	return out
}

// TestRowsThatComeTooLateForTheirRanksAreNamed in the log, once a minute: an overwrite among them may lose.
func TestRowsThatComeTooLateForTheirRanksAreNamed(t *testing.T) {
	b := openBench(t, vfs.NewMem(), 1)
	defer b.close()
	var log strings.Builder
	b.log = slog.New(slog.NewTextHandler(&log, nil))
	logged := func() int { return strings.Count(log.String(), "received long ago") }
	now := time.Now()
	b.must(b.forward(rank.At(now.Add(-71*time.Hour).UnixNano()), "a", 1, 1))
	b.must(b.inherit(rank.At(now.Add(-80*time.Hour).UnixNano()), "a", map[point.Nanos]float64{2: 1}))
	if logged() != 0 {
		t.Errorf("the log says\n%s", log.String())
	}
	for range 3 {
		b.must(b.forward(rank.At(now.Add(-73*time.Hour).UnixNano()), "a", 1, 1))
	}
	if logged() != 1 {
		t.Errorf("the log names late rows %d times:\n%s", logged(), log.String())
	}
}
