package view

import (
	"slices"
	"testing"

	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/point"
)

// TestThePageShowsWhichCopiesAreInSync: a placement that is new on a server which left is not the one in the list, and an unknown list is not "none".
func TestThePageShowsWhichCopiesAreInSync(t *testing.T) {
	pl := func(id point.PlacementID, s topology.ServerID) topology.Placement {
		return topology.Placement{ID: id, Server: s}
	}
	p := &topology.Partition{ID: 7, Placements: []topology.Placement{pl(1, "s1"), pl(2, "s2"), pl(9, "s3")}}
	l := lease.Lease{State: lease.Held, Holder: "s2", Epoch: 4, InSync: []lease.Member{{Placement: 2, Server: "s2"}, {Placement: 3, Server: "s3"}}}
	in, behind := inSyncOf(l, p)
	if !slices.Equal(in, []string{"s2", "s3"}) || !slices.Equal(behind, []string{"s1", "s3"}) {
		t.Errorf("in sync %v, behind %v", in, behind)
	}
	l.InSync = []lease.Member{{Placement: 9, Server: "s3"}, {Placement: 1, Server: "s1"}, {Placement: 2, Server: "s2"}}
	if in, behind = inSyncOf(l, p); len(in) != 3 || behind == nil || len(behind) != 0 {
		t.Errorf("all are in sync: %v, behind %v", in, behind)
	}
	if in, behind = inSyncOf(lease.Lease{State: lease.Free, Empty: true}, p); in != nil || behind != nil {
		t.Errorf("of a partition that was never led nothing is known: %v, behind %v", in, behind)
	}
}
