package partition

import (
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
