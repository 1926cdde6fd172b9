package lead

import (
	"context"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

// createAt makes a partition of a second that begins so long from now, on s1 and s2.
func (w *world) createAt(from time.Duration) point.PartitionID {
	w.t.Helper()
	m, _ := w.maps.Get("t")
	id, lo := m.NextID, time.Now().Add(from).UnixNano()
	w.change(topology.Create{Partitions: []topology.Partition{{ID: id, TimeLo: lo, TimeHi: lo + 1e9,
		Placements: []topology.Placement{{ID: point.PlacementID(10 * id), Server: "s1"}, {ID: point.PlacementID(10*id + 1), Server: "s2"}}}}})
	return id
}

// hasRow reports whether a partition has a lease row.
func (w *world) hasRow(id point.PartitionID) bool {
	w.t.Helper()
	_, ok, err := w.store.Get(context.Background(), lease.RowKey(lease.Partition{Table: "t", ID: id}))
	w.must(err)
	return ok
}

// TestPartitionOfTheFutureIsLedOnceARowComes: the lease table has no row of the partition before. The first row that is sent to a placement makes
// it lead at once; the other placement then leads when that server dies, though the time has not come.
func TestPartitionOfTheFutureIsLedOnceARowComes(t *testing.T) {
	w := newWorld(t)
	s1, s2 := w.start("s1", vfs.NewMem()), w.start("s2", vfs.NewMem())
	far, asked := w.createAt(2*time.Hour), w.createAt(time.Hour)
	now := w.create("s1", "s2")
	w.led(now)                         // both have the map
	time.Sleep(300 * time.Millisecond) // time for the others to be led, if anything led them
	for _, p := range []point.PartitionID{far, asked} {
		if w.hasRow(p) {
			t.Fatalf("partition %d of the future has a lease row", p)
		}
	}

	early := int64(time.Now().Add(time.Hour).UnixNano())
	if err := s1.putAs(asked, 7, early, point.All); !fault.Is(err, fault.Stale) {
		t.Fatalf("the first row: %v, want Stale until it is led", err)
	}
	w.until("s1 leads what it was asked for", func() bool { return s1.leads(asked) })
	if l, _ := w.row(asked); len(l.InSync) != 2 {
		t.Errorf("in sync %v", l.InSync)
	}
	if w.hasRow(far) {
		t.Error("another partition of the future is led, too")
	}
	s1.kill()
	w.until("s2 leads it", func() bool { return s2.leads(asked) })
	w.until("a row is acked", func() bool { return s2.putAs(asked, 7, early, point.All) == nil })
}

// TestPartitionIsLedBeforeItsTime: without any request.
func TestPartitionIsLedBeforeItsTime(t *testing.T) {
	w := newWorld(t)
	s1 := w.start("s1", vfs.NewMem())
	w.start("s2", vfs.NewMem())
	soon, later := w.createAt(32*time.Second), w.createAt(2*time.Minute)
	w.until("the partition is led", func() bool { return w.led(soon) != nil })
	w.until("the map is known", func() bool { return s1.Why("t", later) != "it has no placement here" })
	m, _ := w.maps.Get("t")
	at, _ := m.ByID(later)
	if w.hasRow(later) && at.TimeLo > time.Now().Add(time.Minute).UnixNano() {
		t.Error("a partition is led more than a minute before its time")
	}
}
