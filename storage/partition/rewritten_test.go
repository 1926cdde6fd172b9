package partition

import (
	"testing"

	"github.com/spillwaydb/spillway/storage/segment"
)

// TestBytesRewrittenGrowWithFlushes counts the bytes that the compactions of an open partition write beside those of its flushes, all of one size: what DESIGN.md says of them. Up to some
// two dozens of flushes the weight of the minors decides, and a byte is written a few times. Beyond, their number does, and it is written once more for each 24 flushes.
func TestBytesRewrittenGrowWithFlushes(t *testing.T) {
	set := settings()
	f := func(flushes int, most float64) {
		t.Helper()
		const size = mib
		var c Chain
		var rewritten int64
		for range flushes {
			c.Segments = append(c.Segments, segment.Info{Size: size})
			if set.CompactDue(&c) == NotDue {
				continue
			}
			var all int64
			for _, g := range c.Segments {
				all += g.Size
			}
			rewritten += all
			c.Segments = []segment.Info{{Meta: segment.Meta{Major: true}, Size: all}}
		}
		if got := float64(rewritten) / float64(flushes*size); got > most || got < most-0.3 {
			t.Errorf("of %d flushes each byte is rewritten %.2f times, want %.1f", flushes, got, most)
		}
	}
	f(24, 1.8)
	f(100, 4.9)
	f(500, 21)
	f(1440, 59.8)
}
