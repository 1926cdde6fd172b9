package mapstore

import (
	"slices"
	"testing"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
)

// Two writers made the same table at once. The slower one read that there is no row, then metadata servers refused its file because the
// table had gone on meanwhile: its first write was answered 503 instead of looking at the row again, where the table is.
func TestAFirstWriteIsNotRefusedBecauseAnotherMadeTheTable(t *testing.T) {
	servers := []topology.ServerID{"s1", "s2", "s3"}
	m, err := topology.New("cpu", topology.Config{PartitionWidth: 1 << 40, Replicas: 1})
	if err != nil {
		t.Fatal(err)
	}
	slow := NewCreate(peer.TxnID{1}, m, servers)
	out := slow.Step(Begin{}, nil)
	out = slow.Step(RowRead{}, out[:0])
	stores := 0
	var next []Effect
	for _, e := range out {
		if s, ok := e.(Store); ok {
			stores++
			next = slow.Step(Stored{Round: s.Round, Server: s.Server, Err: fault.Errorf(fault.Stale, "transaction 3 is on this disk")}, next)
			for i, e := range next { // a server that has no base is sent the file whole; this one is refused again
				if w, ok := e.(Store); ok && i >= 0 {
					next = slow.Step(Stored{Round: w.Round, Server: w.Server, Err: fault.Errorf(fault.Stale, "transaction 3 is on this disk")}, next)
				}
			}
		}
	}
	if stores != 3 {
		t.Fatalf("%d servers were asked to store", stores)
	}
	if !slices.ContainsFunc(next, func(e Effect) bool { _, ok := e.(ReadRow); return ok }) {
		t.Fatalf("the row is not read again: %+v", next)
	}
	row := Row{Txn: peer.TxnID{9}, Seq: 3, Servers: servers}
	out = slow.Step(RowRead{OK: true, Row: coord.Row{Key: Key("cpu"), Value: row.Encode(), Revision: 7}}, nil)
	out = slow.Step(History{Links: []Link{{Txn: peer.TxnID{9}, Base: peer.TxnID{8}, Seq: 3}, {Txn: peer.TxnID{8}, Base: peer.TxnID{7}, Seq: 2}, {Txn: peer.TxnID{7}, Seq: 1}}}, out)
	i := slices.IndexFunc(out, func(e Effect) bool { _, ok := e.(Done); return ok })
	if i < 0 || !fault.Is(out[i].(Done).Err, fault.Stale) {
		t.Fatalf("%+v: want Stale, after which the writer fetches the table", out)
	}
}
