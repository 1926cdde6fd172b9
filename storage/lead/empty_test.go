package lead

import (
	"context"
	"strconv"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

// fence ends the lease of an empty partition and prohibits its servers, as the master does before a move. It reports whether
// the partition was still empty by its lease row.
func (w *world) fence(id point.PartitionID) bool {
	w.t.Helper()
	p := lease.Partition{Table: "t", ID: id}
	l, rev := w.row(id)
	if !l.Empty {
		return false
	}
	writes := []coord.Write{{Key: lease.RowKey(p), Value: l.Vacated().Encode()}}
	m, _ := w.maps.Get("t")
	at, _ := m.ByID(id)
	for _, pl := range at.Placements {
		writes = append(writes, lease.Prohibit(p, pl.Server, lease.Note{Who: "master"}))
	}
	_, ok, err := w.store.Commit(context.Background(), []coord.Condition{{Key: lease.RowKey(p), Revision: rev}}, writes)
	w.must(err)
	return ok
}

// move places a partition on one server alone, and removes the fence.
func (w *world) move(id point.PartitionID, to topology.ServerID) {
	w.t.Helper()
	m, _ := w.maps.Get("t")
	at, _ := m.ByID(id)
	fresh := topology.Placement{ID: point.PlacementID(1000 + id), Server: to}
	ops := []topology.Op{topology.Join{Partition: id, Placement: fresh}, topology.JoinFinalize{Partition: id, Placement: fresh.ID}}
	var allow []coord.Write
	for _, pl := range at.Placements {
		ops = append(ops, topology.Remove{Partition: id, Placement: pl.ID})
		allow = append(allow, lease.Allow(lease.Partition{Table: "t", ID: id}, pl.Server))
	}
	w.change(ops...)
	_, _, err := w.store.Commit(context.Background(), nil, allow)
	w.must(err)
}

// TestEmptyPartitionIsLedByWhomTheMapNames: s1 leads three partitions alone and accepts a row for the first. The second is moved to
// s2 while s1 is live, which releases it; the third when it is dead. The first stays.
func TestEmptyPartitionIsLedByWhomTheMapNames(t *testing.T) {
	w := newWorld(t)
	s1, s2 := w.start("s1", vfs.NewMem()), w.start("s2", vfs.NewMem())
	ids := []point.PartitionID{w.create("s1"), w.create("s1"), w.create("s1")}
	for _, id := range ids {
		w.led(id)
		if l, _ := w.row(id); !l.Empty {
			t.Fatalf("nobody wrote to %d, and its row says nothing of that", id)
		}
	}
	w.must(s1.put(ids[0], 0, point.All))
	if l, _ := w.row(ids[0]); l.Empty {
		t.Error("a row was acked, and the lease row says that there is none")
	}
	if w.fence(ids[0]) {
		t.Error("what has rows may be moved")
	}

	if !w.fence(ids[1]) {
		t.Fatal("what is empty may not be moved")
	}
	w.until("s1 lets go", func() bool { return !s1.leads(ids[1]) })
	w.stale(s1.put(ids[1], 0, point.All))
	w.move(ids[1], "s2")
	w.until("s2 leads", func() bool { return s2.leads(ids[1]) })
	w.must(s2.put(ids[1], 1, point.All))
	s2.wantRows("7: 201", ids[1])

	s1.kill()
	if !w.fence(ids[2]) {
		t.Fatal("what is empty may not be moved away from the dead")
	}
	w.move(ids[2], "s2")
	w.until("s2 leads", func() bool { return s2.leads(ids[2]) })
	w.must(s2.put(ids[2], 2, point.All))
	s2.wantRows("7: 302", ids[2])
	if s2.leads(ids[0]) {
		t.Error("s2 leads what s1 alone has rows of")
	}
}

// TestRowsAckedWhileTheirPartitionMovesAreWhereItIsLed: a first row and a move coincide, again and again. Whichever comes
// first, an acked row is where the partition is led.
func TestRowsAckedWhileTheirPartitionMovesAreWhereItIsLed(t *testing.T) {
	w := newWorld(t)
	s1, s2 := w.start("s1", vfs.NewMem()), w.start("s2", vfs.NewMem())
	const partitions = 24
	acked, moved := 0, 0
	for i := range partitions {
		id := w.create("s1")
		w.until("s1 leads", func() bool { return s1.leads(id) })
		var wg sync.WaitGroup
		var put error
		gone := i%3 == 0 && w.fence(id)
		wg.Go(func() { put = s1.put(id, 1, point.All) })
		if i%3 == 1 {
			wg.Wait()
		}
		gone = gone || w.fence(id)
		wg.Wait()
		if gone {
			moved++
			w.move(id, "s2")
		}
		switch {
		case put == nil && gone:
			t.Fatalf("%d: a row was acked of what was moved as empty", id)
		case put == nil:
			acked++
			s1.wantRows("7: "+strconv.Itoa(int(id)*100+1), id)
		case !fault.Is(put, fault.Stale):
			t.Fatal(put)
		case gone:
			w.until("s2 leads", func() bool { return s2.leads(id) })
			w.must(s2.put(id, 1, point.All))
		}
	}
	t.Logf("%d rows were acked, %d partitions moved", acked, moved)
	if acked < partitions/3 || moved < partitions/3 {
		t.Errorf("%d rows acked, %d partitions moved", acked, moved)
	}
}
