package partition

import (
	"math/rand/v2"
	"testing"

	"github.com/spillwaydb/spillway/storage/segment"
)

// TestBytesAreRewrittenAFewTimesHoweverManyFlushes counts the bytes that the compactions of an open partition write beside those of its flushes: what DESIGN.md says of them.
// It wrote the whole major every twelve flushes, so that a byte was rewritten 60 times in a day of flushes a minute.
func TestBytesAreRewrittenAFewTimesHoweverManyFlushes(t *testing.T) {
	set := settings()
	f := func(flushes int, size func(i int) int64, want float64) {
		t.Helper()
		var c Chain
		var rewritten, flushed int64
		for i := range flushes {
			c.Segments = append(c.Segments, segment.Info{Meta: segment.Meta{Major: i == 0}, Size: size(i)})
			flushed += size(i)
			if len(c.Segments) > 1+set.MinorsMax {
				t.Fatalf("after %d flushes there are %d segments", i, len(c.Segments))
			}
			why, first := set.CompactDue(&c)
			if why == NotDue {
				continue
			}
			var all int64
			for _, g := range c.Segments[first:] {
				all += g.Size
			}
			rewritten += all
			c.Segments = append(c.Segments[:first], segment.Info{Meta: segment.Meta{Major: first == 0}, Size: all})
		}
		if got := float64(rewritten) / float64(flushed); got > want || got < want-0.1 {
			t.Errorf("of %d flushes each byte is rewritten %.2f times, want %.1f", flushes, got, want)
		}
	}
	hourly := func(int) int64 { return mib }
	f(24, hourly, 2.1)
	copies := func(int) int64 { return 6 << 20 * 9 / 10 } // copiedRowsMax
	f(48, copies, 1.0)
	f(100, copies, 1.6)
	f(190, copies, 1.9)
	f(500, copies, 2.5)
	f(1440, copies, 2.9)
	f(1440, hourly, 3.0)
	rng := rand.New(rand.NewPCG(1, 1))
	f(1440, func(int) int64 { return 100<<10 + rng.Int64N(8<<20) }, 3.0)
	f(1440, func(i int) int64 { return (1 + int64(i/10)) << 17 }, 3.45)
	f(1440, func(i int) int64 { return 4<<20 - int64(i)<<11 }, 3.3)
}
