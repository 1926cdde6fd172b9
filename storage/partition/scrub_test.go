package partition

import (
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// TestACheckOfADroppedPartitionFindsNoDamage: a drop that removed the files between the list of segments and the read of one was reported as damage.
func TestACheckOfADroppedPartitionFindsNoDamage(t *testing.T) {
	b := openBench(t, vfs.NewMem(), 1)
	b.must(b.put("a", 1, 10))
	b.must(b.Flush(t.Context(), ByAge))
	id := b.Segments()[0].ID
	g := b.mu.segments[0]
	read := func() (Check, error) { return b.CheckSegment(t.Context(), id, func(int) error { return nil }) }
	got, err := read()
	if got != FoundWhole || err != nil {
		t.Fatalf("before the drop: %v %v", got, err)
	}
	b.must(b.Drop())
	b.must(b.brick.RemoveNow(ident.Placement))
	b.mu.segments = []*segmentRef{g.retain()} // as if it had been found just before
	got, err = read()
	b.mu.segments = nil
	if got != NotChecked || err != nil {
		t.Errorf("of a dropped partition: %v %v", got, err)
	}
	b.cache.Close()
	b.must(b.brick.Close())
}
