package partition

import (
	"math/rand/v2"
	"testing"

	"github.com/spillwaydb/spillway/storage/segment"
)

// TestBytesAreRewrittenAFewTimesHoweverManyFlushes counts the bytes that the compactions of an open partition write beside those of its flushes, and the segments
// that there are after a flush on average: what DESIGN.md says of them. It wrote the whole major every twelve flushes, so that a byte was rewritten 60 times in a day
// of flushes a minute; and up to a major of 16 MiB each time that the minors weighed half of it, 2.8 times in 95 flushes.
func TestBytesAreRewrittenAFewTimesHoweverManyFlushes(t *testing.T) {
	set := settings()
	f := func(flushes int, size func(i int) int64, want, segments float64) {
		t.Helper()
		var c Chain
		var rewritten, flushed int64
		read := 0
		for i := range flushes {
			c.Segments = append(c.Segments, segment.Info{Meta: segment.Meta{Major: i == 0}, Size: size(i)})
			flushed += size(i)
			if len(c.Segments) > 1+set.MinorsMax {
				t.Fatalf("after %d flushes there are %d segments", i, len(c.Segments))
			}
			if why, first := set.CompactDue(&c); why != NotDue {
				var all int64
				for _, g := range c.Segments[first:] {
					all += g.Size
				}
				rewritten += all
				c.Segments = append(c.Segments[:first], segment.Info{Meta: segment.Meta{Major: first == 0}, Size: all})
			}
			read += len(c.Segments)
		}
		if got := float64(rewritten) / float64(flushed); got > want || got < want-0.1 {
			t.Errorf("of %d flushes each byte is rewritten %.2f times, want %.1f", flushes, got, want)
		}
		if got := float64(read) / float64(flushes); got > segments || got < segments-0.1 {
			t.Errorf("of %d flushes there are %.2f segments on average, want %.1f", flushes, got, segments)
		}
	}
	small := func(int) int64 { return 85_000 } // of three seconds at 30,000 rows/s
	f(24, small, 1.0, 4.6)
	f(48, small, 1.55, 4.9)
	f(95, small, 1.75, 5.3)
	f(190, small, 2.4, 5.6)
	f(500, small, 2.9, 6.6)
	f(1440, small, 3.5, 8.3)
	hourly := func(int) int64 { return mib }
	f(24, hourly, 1.0, 4.6)
	f(1440, hourly, 2.95, 9.2)
	copies := func(int) int64 { return 6 << 20 * 9 / 10 } // copiedRowsMax
	f(48, copies, 1.0, 6.8)
	f(100, copies, 1.7, 7.35)
	f(190, copies, 1.7, 7.8)
	f(500, copies, 2.55, 8.4)
	f(1440, copies, 2.95, 9.15)
	rng := rand.New(rand.NewPCG(1, 1))
	f(1440, func(int) int64 { return 100<<10 + rng.Int64N(8<<20) }, 3.35, 9.1)
	f(1440, func(i int) int64 { return (1 + int64(i/10)) << 17 }, 3.2, 8.8)
	f(1440, func(i int) int64 { return 4<<20 - int64(i)<<11 }, 3.4, 9.2)
}
