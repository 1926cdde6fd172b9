package leaders

import (
	"slices"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/point"
)

// TestHoldersAreThoseOfOneMomentAfterATakeover: a is the new leader of partition 1. Partition 9 is none to ask about.
func TestHoldersAreThoseOfOneMomentAfterATakeover(t *testing.T) {
	b := newBoard(time.Second)
	rev := coord.Revision(0)
	row := func(table string, id point.PartitionID, l lease.Lease) coord.Row {
		rev++
		return coord.Row{Key: lease.RowKey(lease.Partition{Table: table, ID: id}), Value: l.Encode(), Revision: rev}
	}
	held := func(by topology.ServerID, epoch point.Epoch) lease.Lease {
		return lease.Lease{State: lease.Held, Holder: by, Boot: "b", Epoch: epoch}
	}
	one := lease.Partition{Table: "t", ID: 1}
	expect := func(what string, known bool, want ...topology.ServerID) {
		t.Helper()
		got, ok := b.holders(one, "a", 7, func(id point.PartitionID) bool { return id != 9 })
		slices.Sort(got)
		if ok != known || !slices.Equal(got, want) {
			t.Errorf("%s: %v, %t", what, got, ok)
		}
	}
	b.learn(row("t", 2, held("b", 3)))
	b.learn(row("t", 3, held("b", 4)))
	b.learn(row("t", 4, held("a", 4)))
	b.learn(row("t", 5, lease.Lease{State: lease.Free, Holder: "free", Epoch: 4}))
	b.learn(row("t", 9, held("other", 4)))
	b.learn(row("u", 2, held("elsewhere", 4)))
	expect("its own row was not seen", false)
	b.learn(row("t", 1, held("a", 6)))
	expect("an earlier row of its own", false)
	b.learn(row("t", 1, held("a", 7)))
	expect("its own row", true, "a", "b")
	gone := row("t", 2, lease.Lease{})
	b.change(time.Now(), []coord.Event{{Row: coord.Row{Key: gone.Key, Revision: gone.Revision}, Deleted: true}})
	expect("a row was deleted", false)
	b.learn(row("t", 2, held("c", 8)))
	expect("another leads", true, "a", "b", "c")
	b.learn(coord.Row{Key: lease.RowKey(lease.Partition{Table: "t", ID: 3}), Value: []byte("{"), Revision: rev + 1})
	expect("a row cannot be read", false)
}
