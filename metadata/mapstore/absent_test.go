package mapstore_test

import (
	"testing"
	"time"

	coordmem "github.com/spillwaydb/spillway/metadata/coord/mem"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
)

// TestAServerThatWasAbsentCatchesUp: one of three metadata servers misses a hundred transactions, and gets the changes since its
// own; then it misses more than are remembered, and gets the file whole. Until then it keeps its own, and an older
// file that arrives late replaces nothing.
func TestAServerThatWasAbsentCatchesUp(t *testing.T) {
	set := quick()
	set.CacheBytes = 1 << 10
	c := newCluster(t, coordmem.New(), 3, set)
	c.create("cpu", "s1", "s2", "s3")
	if err := c.cover(c.nodes[0], "cpu", 1); err != nil {
		t.Fatal(err)
	}
	absent := c.nodes[2]
	width := time.Hour
	changes := func(n int) {
		t.Helper()
		for range n {
			row := c.row("cpu")
			width += time.Hour
			ops := topology.EncodeOps([]topology.Op{topology.SetConfig{Config: topology.Config{PartitionWidth: width}}})
			s := c.nodes[0].server
			if _, err := s.Change(t.Context(), &peer.Change{Table: "cpu", Base: row.Txn, Txn: s.NewTxnID(), Ops: ops}); err != nil {
				t.Fatal(err)
			}
		}
	}
	sent := func() (whole, steps int64) {
		for _, n := range c.nodes[:2] {
			whole, steps = whole+n.whole.Load(), steps+n.steps.Load()
		}
		return whole, steps
	}
	away := func(n int) (whole, steps int64) {
		t.Helper()
		c.converged("cpu")
		before, beforeSteps := sent()
		old := c.row("cpu")
		absent.away.Store(true)
		absent.stop()
		changes(n)
		if _, _, err := absent.disk.Get("cpu", old.Txn); err != nil {
			t.Fatalf("what it had is gone: %v", err)
		}
		c.start(absent)
		absent.away.Store(false)
		for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
			if _, _, err := absent.disk.Get("cpu", c.row("cpu").Txn); err == nil {
				break
			}
			if time.Now().After(deadline) {
				t.Fatal("it does not catch up")
			}
		}
		after, afterSteps := sent()
		return after - before, afterSteps - beforeSteps
	}
	if whole, steps := away(100); whole != 0 || steps == 0 {
		t.Errorf("after 100 transactions: %d files came whole, %d as ops", whole, steps)
	}
	if whole, _ := away(peer.StepsMax + 100); whole == 0 {
		t.Errorf("after more than are remembered %d files came whole", whole)
	}
	c.converged("cpu")

	// A file from before, sent by a coordinator that was paused for as long, is refused or kept beside; the newest stays.
	newest := c.row("cpu")
	m, err := topology.New("cpu", topology.Config{PartitionWidth: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	late := &peer.File{Table: "cpu", Txn: peer.TxnID{0xee}, Base: peer.TxnID{0xef}, Seq: 1, Digest: m.Digest(), Map: m.Encode()}
	if err := absent.Store(t.Context(), late); err != nil && !fault.Is(err, fault.Stale) {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		list, err := absent.disk.List()
		if err == nil && len(list) <= set.KeepFiles+2 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d files stay, %v", len(list), err)
		}
	}
	if _, _, err := absent.disk.Get("cpu", newest.Txn); err != nil {
		t.Fatalf("the newest file is gone: %v", err)
	}
}
