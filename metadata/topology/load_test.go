package topology_test

import (
	"math"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/smear"
)

// TestTheLoadIsThatOfThePartitionsOfNow: width and columns are those of the partitions there are, and else of those that rows would make.
func TestTheLoadIsThatOfThePartitionsOfNow(t *testing.T) {
	m, err := topology.New("cpu", topology.Config{PartitionWidth: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	f := func(what string, at point.Nanos, width time.Duration, columns int) {
		t.Helper()
		if got, want := m.LoadAt(at, 3), (smear.Load{Width: point.Nanos(width), Columns: columns, Servers: 3}); got != want {
			t.Errorf("%s: %+v, want %+v", what, got, want)
		}
	}
	change := func(ops ...topology.Op) {
		t.Helper()
		if m, err = m.Apply(ops...); err != nil {
			t.Fatal(err)
		}
	}
	f("an empty table", 5, time.Hour, 1)
	ranges, err := topology.Spread(nil, []uint32{1, 1})
	if err != nil {
		t.Fatal(err)
	}
	change(topology.SetColumns{Layout: topology.Layout{From: math.MinInt64, Weights: []uint32{1, 1}, Ranges: ranges}})
	f("two columns to come", 5, time.Hour, 2)
	part := func(id point.PartitionID, lo, hi uint64, until time.Duration) topology.Partition {
		return topology.Partition{ID: id, PointLo: lo, PointHi: hi, TimeHi: point.Nanos(until), Placements: []topology.Placement{{ID: 1, Server: "s1"}}}
	}
	change(topology.Create{Partitions: []topology.Partition{part(1, 0, 1<<63, time.Minute), part(2, 1<<63, 0, 10*time.Second)}})
	f("columns of their own width", 5, 10*time.Second, 2)
	f("where one has ended", point.Nanos(20*time.Second), time.Minute, 1)
	if w := topology.Width(&topology.Partition{TimeLo: math.MinInt64, TimeHi: 5}); w != math.MaxInt64 {
		t.Errorf("a partition from ever is %d wide", w)
	}
}
