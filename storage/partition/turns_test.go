package partition

import (
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/protocols/lane"
)

// TestRowsAreFlushedWhileACompactionWaitsForItsTurn: writes and a query have all turns. The compaction uses none of their processors, and flushes,
// without which there is soon no room for rows, do not wait behind it.
func TestRowsAreFlushedWhileACompactionWaitsForItsTurn(t *testing.T) {
	b := openBench(t, vfs.NewMem(), 1)
	defer b.close()
	b.deps.Lane = lane.New(func() bool { return true }, 1)
	for i := range 3 {
		b.must(b.put("a", int64(i), float64(i)))
		b.must(b.Flush(t.Context(), ByAge))
	}
	query := b.deps.Lane.Turn(&lane.Share{})
	b.must(query.Next(t.Context()))
	done := make(chan error, 1)
	go func() { done <- b.Compact(t.Context(), ByRequest) }()
	for waiting := 0; waiting == 0; {
		select {
		case err := <-done:
			t.Fatalf("the compaction ended, %v, without a turn", err)
		case <-time.After(time.Millisecond):
		}
		_, waiting = b.deps.Lane.InUse()
	}
	b.must(b.put("a", 3, 3))
	b.must(b.Flush(t.Context(), ByAge))
	query.End()
	b.must(<-done)
	b.want("a 0:0 1:1 2:2 3:3")
	if n := len(b.files()); n != 2 { // the major, and what was flushed meanwhile
		t.Errorf("%d segments are left", n)
	}
	if taken, waiting := b.deps.Lane.InUse(); taken != 0 || waiting != 0 {
		t.Errorf("%d turns are taken, %d wait", taken, waiting)
	}
}
