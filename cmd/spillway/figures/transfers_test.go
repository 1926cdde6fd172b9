package figures

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/spillwaydb/spillway/gateway/ui"
	"github.com/spillwaydb/spillway/metadata/registry"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
)

func TestTransfersSayWhereFromAndToAndHowLong(t *testing.T) {
	now := time.Unix(1_000_000, 0).UTC()
	pl := func(n byte, s topology.ServerID) topology.Placement {
		return topology.Placement{ID: point.PlacementID(n), Server: s}
	}
	p := &topology.Partition{ID: 7, Placements: []topology.Placement{pl(1, "s1"), pl(2, "s2")}, Joining: []topology.Placement{pl(3, "s3")}}
	since := func(d time.Duration) point.Nanos { return now.Add(-d).UnixNano() }
	all := []peer.Transfer{
		{To: "s3", Done: 100, Total: 400, BytesPerSecond: 50, Since: since(2 * time.Second)},
		{To: "s2", Done: 1, Total: 2, Since: since(time.Second)},                                // a moment behind
		{To: "", Done: 100, Total: 400, BytesPerSecond: 50, Since: since(time.Minute)},          // of an older map
		{To: "s1", Done: 399, Total: 400, BytesPerSecond: 0, Since: since(20 * behindFor / 10)}, // long behind, standing still
	}
	six := 6 * time.Second
	want := []ui.Transfer{
		{From: "s2", To: "s1", Done: 399, Total: 400, Since: now.Add(-2 * behindFor)},
		{From: "s2", To: "s3", Done: 100, Total: 400, BytesPerSecond: 50, Since: now.Add(-2 * time.Second), Left: &six},
	}
	got := Transfers(p, "s2", all, now)
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("transfers (-want +got):\n%s", d)
	}

	servers := map[topology.ServerID]registry.Server{"s1": {ID: "s1", Moves: []registry.Move{{Table: "t", Partition: 7, Placement: point.PlacementID(1), To: "s3"}}}, "s2": {ID: "s2"}}
	get := func(id topology.ServerID) (registry.Server, bool) { s, ok := servers[id]; return s, ok }
	if from := Leaves(p, "t", get); from != "s1" {
		t.Errorf("the partition leaves %q, want s1", from)
	}
	if from := Leaves(p, "other", get); from != "" {
		t.Errorf("a partition of another table leaves %q", from)
	}
	SetLeaving(got, p, "s1")
	if got[0].From != "s2" || got[1].From != "s1" {
		t.Errorf("from %q and %q, want s2, which fills s1, and s1, which it leaves", got[0].From, got[1].From)
	}

	p = &topology.Partition{ID: 7, State: topology.Unload, Into: []point.PartitionID{8, 9}, Placements: p.Placements}
	got = Transfers(p, "s1", []peer.Transfer{{Done: 500, Total: 400, BytesPerSecond: 50, Since: since(time.Minute)}}, now)
	if len(got) != 1 || got[0].Left == nil || *got[0].Left != 0 {
		t.Fatalf("an unload that is done: %+v", got)
	}
}
