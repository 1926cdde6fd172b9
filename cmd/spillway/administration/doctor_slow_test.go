package administration

import (
	"strings"
	"testing"

	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/point"
)

// TestDoctorNamesTheServerThatKeepsUpNoMore: a server with a slow disk runs, and its copies are not in sync. Only the partition was named, and one waited.
func TestDoctorNamesTheServerThatKeepsUpNoMore(t *testing.T) {
	member := func(id point.PlacementID, s topology.ServerID) lease.Member {
		return lease.Member{Placement: id, Server: s, Store: "d"}
	}
	p := &topology.Partition{ID: 1, Placements: []topology.Placement{{ID: 1, Server: "s1"}, {ID: 2, Server: "s2"}, {ID: 3, Server: "s3"}}}
	lack := map[topology.ServerID]bool{}
	lacking(p, lease.Lease{InSync: []lease.Member{member(1, "s1"), member(3, "s3")}}, lack)
	if got := copiesOn(lack); !strings.HasSuffix(got, " s2") {
		t.Errorf("%q, want s2", got)
	}
	e := examination{live: map[topology.ServerID]bool{"s1": true, "s2": true, "s3": true}}
	if got := e.fewCopiesDo(lack); !strings.Contains(got, "slow disk") {
		t.Errorf("%q does not say what may be slow", got)
	}
	e.live["s2"] = false
	if got := e.fewCopiesDo(lack); strings.Contains(got, "wait") || !strings.Contains(got, "bring back s2") {
		t.Errorf("%q, and s2 is dead: waiting is in vain", got)
	}
	if got := copiesOn(nil); got != "" {
		t.Errorf("%q, where no copy is placed that lacks rows", got)
	}
}
