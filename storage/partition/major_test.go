package partition

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/segment"
)

// TestAMajorIsTheSameInHoweverManyStretches: compaction held the labels of all series, 620 bytes each. With less memory it
// must write the same bytes.
func TestAMajorIsTheSameInHoweverManyStretches(t *testing.T) {
	var want segment.Info
	for _, size := range []int{0, 100, 1000, 7000} {
		b := openBenchWith(t, vfs.NewMem(), 1, Settings{CompactBytes: size})
		rng := rand.New(rand.NewPCG(1, 2))
		for flush := range 3 {
			for range 300 {
				b.must(b.put(fmt.Sprint(rng.IntN(400)), point.Nanos(rng.IntN(1000)), float64(flush)))
			}
			b.must(b.Flush(context.Background(), ByAge))
		}
		v, err := b.View()
		b.must(err)
		before := text(t, v)
		v.Close()
		b.must(b.Compact(context.Background(), ByRequest))
		b.want(before)
		got := b.Segments()
		if len(got) != 1 {
			t.Fatalf("%d segments", len(got))
		}
		if size == 0 {
			want = got[0]
		}
		if got[0].Checksum != want.Checksum || got[0].Size != want.Size || got[0].Series != want.Series {
			t.Errorf("stretches of %d bytes: %+v, want %+v", size, got[0], want)
		}
		b.close()
	}
}
