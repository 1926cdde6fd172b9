package mapstore

import (
	"context"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
)

func (w *world) propose(name string, ops ...topology.Op) *running {
	return w.begin(name, w.servers[0], NewChange(&peer.Change{Table: cpu, Base: w.row().Txn, Txn: w.id(name), Round: w.row().Round + 1, Ops: topology.EncodeOps(ops)}))
}

func (w *world) lease(t *testing.T, id point.PartitionID) (lease.Lease, coord.Revision) {
	t.Helper()
	row, ok, _ := w.store.Get(context.Background(), lease.RowKey(lease.Partition{Table: cpu, ID: id}))
	if !ok {
		return lease.Lease{}, 0
	}
	l, err := lease.DecodeLease(row.Value)
	if err != nil {
		t.Fatal(err)
	}
	return l, row.Revision
}

// led writes a lease row as its leader does.
func (w *world) led(t *testing.T, id point.PartitionID, l lease.Lease) {
	t.Helper()
	_, rev := w.lease(t, id)
	p := lease.Partition{Table: cpu, ID: id}
	_, ok, err := w.store.Commit(context.Background(), []coord.Condition{{Key: lease.RowKey(p), Revision: rev}},
		[]coord.Write{{Key: lease.RowKey(p), Value: l.Encode()}, {Key: lease.BornKey(p), Value: []byte(`{"v":1}`)}})
	if !ok || err != nil {
		t.Fatal(ok, err)
	}
}

// days makes a world with partitions for n days.
func days(t *testing.T, n int) *world {
	t.Helper()
	w := newWorld(3, 3)
	m := w.mapOf(w.row().Txn)
	var at []point.Nanos
	for i := range n {
		at = append(at, int64(i)*int64(24*time.Hour))
	}
	w.propose("days", m.Covering(at, func(p point.PartitionID) []topology.Placement {
		return []topology.Placement{{ID: point.PlacementID(p), Server: "s1"}}
	}))
	w.run()
	if w.row().Seq != 2 || w.broken != "" {
		t.Fatal(w.broken, w.draw())
	}
	return w
}

func moves(id point.PartitionID) []topology.Op {
	to := topology.Placement{ID: point.PlacementID(1000 + id), Server: "s3"}
	return []topology.Op{topology.Join{Partition: id, Placement: to}, topology.JoinFinalize{Partition: id, Placement: to.ID},
		topology.Remove{Partition: id, Placement: point.PlacementID(id)}}
}

func TestAMoveAndItsLeaseRowAreOneTransaction(t *testing.T) {
	w := days(t, 2)
	r := w.propose("move", moves(1)...)
	w.run()
	if l, rev := w.lease(t, 1); r.done.Err != nil || l.Seq != 3 || l.State != lease.Free || !l.Empty || rev != r.done.Revision {
		t.Fatalf("%+v at %d, %+v", l, rev, r.done)
	}
	if _, rev := w.lease(t, 2); rev != 0 {
		t.Error("a partition that did not change has a row now")
	}
}

// A server acquires the partition between the look at its row and the swap: the swap looks again, and both come true in some order. Where rows came besides, which only that server has, the
// partition would have no leader after the move.
func TestATakeBetweenLookAndSwapIsSeen(t *testing.T) {
	for _, empty := range []bool{true, false} {
		w := days(t, 1)
		r := w.propose("move", moves(1)...)
		for r.t.phase != swapping {
			w.perform(0, performed)
		}
		w.led(t, 1, lease.Lease{State: lease.Held, Holder: "s1", Boot: "b", Epoch: 9, Empty: empty, InSync: []lease.Member{{Placement: 1, Server: "s1"}}})
		w.run()
		l, _ := w.lease(t, 1)
		if empty && (r.done.Err != nil || l.Seq != 3 || l.Holder != "s1" || len(l.InSync) != 0) {
			t.Fatalf("%+v, %v", l, r.done.Err)
		}
		if !empty && (!fault.Is(r.done.Err, fault.Invalid) || l.Seq != 0 || len(l.InSync) != 1) {
			t.Fatalf("%+v, %v", l, r.done.Err)
		}
	}
}

func TestAPresplitOfWhatMayHoldRowsIsRefused(t *testing.T) {
	for name, l := range map[string]*lease.Lease{"no row": nil, "moved": {State: lease.Free, Empty: true, Seq: 2}, "empty": {State: lease.Held, Holder: "s1", Boot: "b", Epoch: 9, Empty: true},
		"led": {State: lease.Free, Holder: "s1", Boot: "b", Epoch: 9}} {
		w := days(t, 2)
		if l != nil {
			w.led(t, 2, *l)
		}
		half := int64(36 * time.Hour)
		m := w.mapOf(w.row().Txn)
		r := w.propose("presplit", m.Presplitting(1, []topology.Edge{{At: half}}, func(p point.PartitionID) []topology.Placement {
			return []topology.Placement{{ID: point.PlacementID(p), Server: "s2"}}
		}))
		w.run()
		if name == "led" {
			if !fault.Is(r.done.Err, fault.Stale) || w.row().Seq != 2 {
				t.Errorf("%s: %v", name, r.done.Err)
			}
			continue
		}
		if now, _ := w.lease(t, 2); r.done.Err != nil || now.Seq != 3 || len(now.InSync) > 0 {
			t.Errorf("%s: %v, %+v", name, r.done.Err, now)
		}
	}
}

// Guards that do not fit into the swap are marked before it, and a row that changes meanwhile holds up only its batch.
func TestThousandsAreMarkedBeforeTheSwap(t *testing.T) {
	const n = 10*guardsMax + 1
	w := days(t, n)
	var ids []point.PartitionID
	for id := point.PartitionID(1); id <= n; id++ {
		ids = append(ids, id)
		if id%2 == 0 {
			w.led(t, id, lease.Lease{State: lease.Free, Holder: "s1", Boot: "b", Epoch: 9})
		}
	}
	r := w.propose("drop", topology.Drop{IDs: ids})
	marks := 0
	for len(w.pending) > 0 {
		if mark, ok := w.pending[0].e.(MarkRows); ok {
			marks++
			if len(mark.Conditions) > 128 || len(mark.Writes) > 128 {
				t.Fatalf("%d conditions, %d writes", len(mark.Conditions), len(mark.Writes))
			}
			if marks == 3 {
				w.led(t, 2*guardsMax+2, lease.Lease{State: lease.Held, Holder: "s1", Boot: "b", Epoch: 10})
			}
		}
		w.perform(0, performed)
	}
	if r.done == nil || r.done.Err != nil || marks != 12 {
		t.Fatalf("%+v, %d marks", r.done, marks)
	}
	for _, id := range ids {
		if l, rev := w.lease(t, id); l.Seq != 3 || rev >= r.done.Revision {
			t.Fatalf("%d: %+v at %d", id, l, rev)
		}
	}
}

// TestRepairOfTenThousandIsOneSwap: a server that is lost for good is removed from thousands of partitions. All rows are marked before the map changes, in
// transactions that the store accepts, and the map changes once.
func TestRepairOfTenThousandIsOneSwap(t *testing.T) {
	n := point.PartitionID(10_000)
	if testing.Short() {
		n = 1000
	}
	w := days(t, int(n))
	var ops []topology.Op
	for id := point.PartitionID(1); id <= n; id++ {
		w.led(t, id, lease.Lease{State: lease.Held, Holder: "s1", Boot: "b", Epoch: 9})
		pl := topology.Placement{ID: point.PlacementID(1_000_000 + id), Server: "s9"}
		ops = append(ops, topology.Join{Partition: id, Placement: pl}, topology.JoinFinalize{Partition: id, Placement: pl.ID})
	}
	before := w.row().Seq
	r := w.propose("repair", ops...)
	marks, swaps := 0, 0
	for len(w.pending) > 0 {
		switch e := w.pending[0].e.(type) {
		case MarkRows:
			marks++
			if len(e.Conditions) > 128 || len(e.Writes) > 128 || swaps > 0 {
				t.Fatalf("%d conditions, %d writes, after %d swaps", len(e.Conditions), len(e.Writes), swaps)
			}
		case Swap:
			swaps++
			if len(e.Conditions) > 128 || len(e.Writes) > 128 {
				t.Fatalf("the swap has %d conditions and %d writes", len(e.Conditions), len(e.Writes))
			}
		}
		w.perform(0, performed)
	}
	if r.done == nil || r.done.Err != nil || swaps != 1 || marks != int(n+guardsMax-1)/guardsMax || w.row().Seq != before+1 {
		t.Fatalf("%v: %d marks, %d swaps, map %d after %d", r.done != nil && r.done.Err == nil, marks, swaps, w.row().Seq, before)
	}
	for id := point.PartitionID(1); id <= n; id++ {
		if l, rev := w.lease(t, id); l.Seq != w.row().Seq || l.Holder != "s1" || l.Epoch != 9 || rev >= r.done.Revision {
			t.Fatalf("%d: %+v at %d", id, l, rev)
		}
	}
}

// A coordinator that marks rows and finds the table moved on ends; nothing is left that a newer map does not undo.
func TestMarksOfAnOvertakenTransaction(t *testing.T) {
	w := days(t, guardsMax+1)
	var ids []point.PartitionID
	for id := range point.PartitionID(guardsMax + 1) {
		ids = append(ids, id+1)
	}
	r := w.propose("drop", topology.Drop{IDs: ids})
	for r.t.marked == 0 {
		w.perform(0, performed)
	}
	held := w.pending
	w.pending = nil
	other := w.propose("other", w.coverOps(w.mapOf(w.row().Txn), 5000)...)
	w.run()
	w.pending = append(w.pending, held...)
	w.run()
	if other.done.Err != nil || !fault.Is(r.done.Err, fault.Stale) || w.broken != "" {
		t.Fatal(other.done.Err, r.done.Err, w.broken)
	}
	if l, _ := w.lease(t, 1); l.Seq != w.row().Seq || l.State != lease.Free {
		t.Errorf("%+v", l)
	}
}
