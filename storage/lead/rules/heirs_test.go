package rules

import (
	"slices"
	"testing"

	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/point"
)

// TestHalvesAreAssignedWithTheirParent on every server that has a placement of them, also where the parent is on others alone, so that all leave them to the parent's
// leader first; and without it once its rows have moved.
func TestHalvesAreAssignedWithTheirParent(t *testing.T) {
	for _, server := range []topology.ServerID{"s1", "s2"} {
		w := newWorld(false)
		apply := func(ops ...topology.Op) {
			t.Helper()
			if err := w.apply(ops...); err != nil {
				t.Fatal(err)
			}
		}
		on := func(id point.PartitionID, servers ...topology.ServerID) (out []topology.Placement) {
			for i, s := range servers {
				out = append(out, topology.Placement{ID: point.PlacementID(10*int(id) + i), Server: s})
			}
			return out
		}
		m := New(server, "dir1", Settings{}, nil, nil)
		now, asked := Time(0), uint64(0)
		parents := func(full bool) map[point.PartitionID][]point.PartitionID {
			got := map[point.PartitionID][]point.PartitionID{}
			now++
			out := m.Step(now, Round{Full: full, Tables: []Table{{Name: "cpu", Map: w.m, Row: 1}}}, nil)
			for i := 0; i < len(out); i++ {
				switch e := out[i].(type) {
				case Record:
					asked = e.ID
					out = m.Step(now, Recorded{ID: asked, OK: true}, out)
				case Assign:
					for _, a := range e.All {
						got[a.Partition.ID] = a.Parents
					}
				}
			}
			return got
		}
		m.Step(now, Clock{Now: 0}, nil)
		apply(topology.Create{Partitions: []topology.Partition{{ID: 1, TimeLo: 0, TimeHi: 100e9, Placements: on(1, "s1")}}})
		parents(true)
		apply(topology.SplitBegin{Partition: 1, Split: topology.Split{At: topology.AtRing(1 << 63), Low: topology.Child{ID: 2, Placements: on(2, "s1", "s2")}, High: topology.Child{ID: 3, Placements: on(3, "s2", "s1")}}})
		parents(false)
		apply(topology.SplitFinalize{Partition: 1, Low: 2})
		f := func(what string, got map[point.PartitionID][]point.PartitionID, want ...point.PartitionID) {
			t.Helper()
			for _, half := range []point.PartitionID{2, 3} {
				if of, assigned := got[half]; !assigned || !slices.Equal(of, want) {
					t.Errorf("%s, %s: %d comes from %v (assigned: %t), want %v", server, what, half, of, assigned, want)
				}
			}
		}
		f("split", parents(false), 1)
		f("a full round", parents(true), 1)
		apply(topology.UnloadFinal{Partition: 1})
		parents(false)
		f("its rows have moved", parents(true))
	}
}
