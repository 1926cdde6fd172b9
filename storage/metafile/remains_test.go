package metafile

import (
	"bytes"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
)

// TestRowsOfTheLogAloneFindTheirPartitionInAMap: placements are looked up in the newest file of their table that can be read, in those of
// children of a split too, and damage is passed over.
func TestRowsOfTheLogAloneFindTheirPartitionInAMap(t *testing.T) {
	part := func(id point.PartitionID, lo point.Nanos, at ...point.PlacementID) topology.Partition {
		p := topology.Partition{ID: id, TimeLo: lo, TimeHi: lo + 100}
		for _, one := range at {
			p.Placements = append(p.Placements, topology.Placement{ID: one})
		}
		return p
	}
	found, wanted := map[point.PlacementID]Site{}, map[point.PlacementID]bool{1: true, 2: true, 5: true, 9: true}
	p := part(7, 100, 1, 3)
	p.Joining = []topology.Placement{{ID: 2}}
	p.Split = &topology.Split{At: topology.Cut{ByTime: true, Time: 150}, Low: topology.Child{ID: 8, Placements: []topology.Placement{{ID: 4}}},
		High: topology.Child{ID: 9, Placements: []topology.Placement{{ID: 5}}}}
	note(found, wanted, "net", &p)
	for _, c := range p.Children() {
		note(found, wanted, "net", c)
	}
	for id, want := range map[point.PlacementID]point.PartitionID{1: 7, 2: 7, 5: 9} {
		if got, ok := found[id]; !ok || got.Table != "net" || got.Partition.ID != want {
			t.Errorf("placement %d: %+v, want partition %d", id, got, want)
		}
	}
	if len(found) != 3 || found[5].Partition.TimeLo != 150 {
		t.Errorf("found %+v", found)
	}
	bad := map[string][]byte{string(key(headPrefix, "net", peer.TxnID{1})): {3, 1, 2}, headPrefix: nil, headPrefix + "x": {}}
	if got := Sites(bad, wanted); len(got) != 0 {
		t.Errorf("of a damaged head: %+v", got)
	}

	// Links are walked down to the file that is whole, and a damaged one costs only what stands on it.
	b, d := open(t, vfs.NewMem())
	m := mapOf(t, "net", 1, 3)
	put(t, d, m)
	all := map[string][]byte{}
	if err := b.Scan([]byte("m/"), func(k, v []byte) error { all[string(k)] = bytes.Clone(v); return nil }); err != nil {
		t.Fatal(err)
	}
	wanted = map[point.PlacementID]bool{}
	for p := range m.All() {
		wanted[p.Placements[0].ID] = true
	}
	got := Sites(all, wanted)
	if len(got) != len(wanted) || len(got) == 0 {
		t.Errorf("%d placements of %d were found", len(got), len(wanted))
	}
	for p := range m.All() {
		if site := got[p.Placements[0].ID]; site.Table != "net" || site.Partition.ID != p.ID || site.Partition.TimeHi != p.TimeHi {
			t.Errorf("partition %d is taken for %+v", p.ID, site)
		}
	}
	for k := range all {
		if strings.HasPrefix(k, mapPrefix) {
			all[k] = all[k][:len(all[k])/2]
		}
	}
	if got := Sites(all, wanted); len(got) != 0 {
		t.Errorf("of half a map: %+v", got)
	}
}
