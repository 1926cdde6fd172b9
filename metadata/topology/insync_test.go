package topology_test

import (
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/metadata/topology/testdata/topologypb"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

func TestPlacementsInSyncFollowFromReplicasUnlessSet(t *testing.T) {
	f := func(replicas, set, want int) {
		t.Helper()
		if got := (topology.Config{Replicas: replicas, InSyncMin: set}).MinInSync(); got != want {
			t.Errorf("%d of %d replicas: %d", set, replicas, got)
		}
	}
	f(0, 0, 1)
	f(1, 0, 1)
	f(2, 0, 2)
	f(3, 0, 2)
	f(5, 0, 3)
	f(3, 1, 1)
	f(3, 3, 3)

	bad := func(replicas, set int) {
		t.Helper()
		if err := (topology.Config{PartitionWidth: time.Hour, Replicas: replicas, InSyncMin: set}).Validate(); !fault.Is(err, fault.Invalid) {
			t.Errorf("%d of %d replicas: %v", set, replicas, err)
		}
	}
	bad(3, 4)
	bad(0, 2)
	bad(3, -1)
}

// The minimum of a table's lists, and the one before, survive encoding; ops carry the present minimum alone, and other settings leave it.
func TestPlacementsInSyncSurviveTheirBytes(t *testing.T) {
	m, err := topology.New("cpu", topology.Config{PartitionWidth: time.Hour, Replicas: 3})
	if err != nil {
		t.Fatal(err)
	}
	seen := map[uint64]bool{m.Digest(): true}
	set := func(n int, want *topologypb.InSyncWas) {
		t.Helper()
		c := m.Config
		c.InSyncMin = n
		c.InSyncWas = topology.InSyncWas{Before: 99, Least: 1} // computed by each map for itself
		op := topology.SetConfig{Config: c, Notes: true}
		ops, err := topology.DecodeOps(topology.EncodeOps([]topology.Op{op}))
		if err != nil {
			t.Fatal(err)
		}
		direct, err := m.Apply(op)
		if err != nil {
			t.Fatal(err)
		}
		if m, err = m.Apply(ops...); err != nil {
			t.Fatal(err)
		}
		back, err := topology.Decode(m.Encode())
		if err != nil {
			t.Fatal(err)
		}
		if back.Config != m.Config || back.Digest() != m.Digest() || direct.Digest() != m.Digest() || m.Config.InSyncMin != n {
			t.Errorf("%+v came back as %+v", m.Config, back.Config)
		}
		if seen[m.Digest()] {
			t.Errorf("%+v has the digest of another", m.Config)
		}
		seen[m.Digest()] = true
		var pb topologypb.Map
		if err := proto.Unmarshal(m.Encode()[16:], &pb); err != nil {
			t.Fatal(err)
		}
		if int(pb.Config.InSyncMin) != n || !proto.Equal(pb.Config.InSyncWas, want) {
			t.Errorf("%+v is written as %v", m.Config, pb.Config)
		}
	}
	cover := func(at point.Nanos, id point.PartitionID) {
		t.Helper()
		var err error
		if m, err = m.Apply(topology.Create{Partitions: []topology.Partition{{ID: id, TimeLo: at, TimeHi: at + hour,
			Placements: []topology.Placement{{ID: point.PlacementID(id * 10), Server: "s1"}, {ID: point.PlacementID(id*10 + 1), Server: "s2"}, {ID: point.PlacementID(id*10 + 2), Server: "s3"}}}}}); err != nil {
			t.Fatal(err)
		}
		seen[m.Digest()] = true
	}
	cover(0, 1)
	set(1, &topologypb.InSyncWas{Most: 2})
	set(3, &topologypb.InSyncWas{Before: 2, Least: 1, Fewest: 1})
	cover(hour, 2)
	set(2, &topologypb.InSyncWas{Before: 3, Least: 1, Most: 3, Fewest: 1})
	c := m.Config
	c.Retention = 100 * time.Hour
	other, err := m.Apply(topology.SetConfig{Config: c})
	if err != nil || other.Config.InSyncWas != m.Config.InSyncWas {
		t.Errorf("another retention: %+v, %v", other.Config, err)
	}
	if m, err = m.Apply(topology.Drop{IDs: []point.PartitionID{1}}); err != nil {
		t.Fatal(err)
	}
	set(3, &topologypb.InSyncWas{Before: 3, Least: 1, Fewest: 1}) // p2 was before 3 as well
}
