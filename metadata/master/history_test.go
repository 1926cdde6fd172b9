package master

import (
	"log/slog"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/coord/mem"
	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/tables"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/point"
)

// TestAnOldMapCannotTake: s1 has the map as it was before the master moved, dropped or swept p1, which was never led. It sees no lease
// row, and its acquisition is under way: the rows that it compares have changed by then.
func TestAnOldMapCannotTake(t *testing.T) {
	p := lease.Partition{Table: "cpu", ID: 1}
	for _, c := range []struct {
		what  string
		steps func(pl topology.Placement) []Step
	}{
		{"nothing", func(topology.Placement) []Step { return nil }},
		{"moved from s1 to s3", func(pl topology.Placement) []Step {
			return []Step{{Kind: Balance, Table: "cpu", Fences: []Fence{{p, []topology.ServerID{"s1"}}}, Ops: []topology.Op{
				topology.Join{Partition: 1, Placement: topology.Placement{ID: 99, Server: "s3"}}, topology.JoinFinalize{Partition: 1, Placement: 99}, topology.Remove{Partition: 1, Placement: pl.ID}}}}
		}},
		{"dropped by retention", func(topology.Placement) []Step {
			return []Step{{Kind: Retention, Table: "cpu", Ops: []topology.Op{topology.Drop{IDs: []point.PartitionID{1}}}}}
		}},
		{"dropped, and its row swept", func(topology.Placement) []Step {
			return []Step{{Kind: Retention, Table: "cpu", Ops: []topology.Op{topology.Drop{IDs: []point.PartitionID{1}}}}, {Kind: Sweep, Table: "cpu", Sweep: []lease.Partition{p}}}
		}},
	} {
		ctx, store := t.Context(), mem.New()
		lib := newLibrary(t, store, "s1", "s2", "s3")
		tabs, err := tables.Open(ctx, tables.Deps{Store: store, Log: slog.New(slog.DiscardHandler), Rand: rand.New(rand.NewPCG(1, 1)), Metadata: lib.peer,
			Servers: func() []topology.ServerID { return []topology.ServerID{"s1", "s2", "s3"} },
			Place:   func(string, point.PartitionID) []topology.ServerID { return []topology.ServerID{"s1"} }}, tables.Settings{New: topology.Config{PartitionWidth: time.Hour}})
		if err != nil {
			t.Fatal(err)
		}
		defer tabs.Close()
		if _, err := tabs.Create(ctx, "cpu", topology.Config{PartitionWidth: time.Hour}); err != nil {
			t.Fatal(err)
		}
		m, err := tabs.Cover(ctx, "cpu", []point.Nanos{0})
		if err != nil {
			t.Fatal(err)
		}
		at, _ := m.ByID(1)
		for _, s := range c.steps(at.Placements[0]) { // one round of the master after the other
			m, _ := tabs.Get("cpu")
			rows := NewRows(func() time.Duration { return 0 }, time.Second)
			list, rev, err := store.List(ctx, lease.Prefix)
			if err != nil || rows.Listed(list, rev) != nil {
				t.Fatal(err)
			}
			x := &executor{store: store, tables: tabs, rows: rows, log: slog.New(slog.DiscardHandler), metrics: newMetrics(nil)}
			x.carryOut(ctx, []*topology.Map{m}, []Step{s})
		}
		take := lease.Lease{State: lease.Held, Holder: "s1", Boot: "b", Store: "d", Epoch: 9, InSync: []lease.Member{{Placement: at.Placements[0].ID, Server: "s1", Store: "d"}}, Empty: true}
		_, taken, err := store.Commit(ctx, []coord.Condition{{Key: lease.RowKey(p)}, {Key: lease.BornKey(p)}, {Key: lease.SweptKey("cpu")}, {Key: lease.ProhibitKey(p, "s1")}},
			[]coord.Write{{Key: lease.RowKey(p), Value: take.Encode()}})
		if err != nil || taken != (c.what == "nothing") {
			t.Errorf("%s: s1 takes it by its old map: %v %v", c.what, taken, err)
		}
		if no, _, err := store.List(ctx, lease.Prefix+"no/"); err != nil || len(no) != 0 {
			t.Errorf("%s: fences are left: %v %v", c.what, no, err)
		}
	}
}
