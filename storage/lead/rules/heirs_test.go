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
		f("its rows have moved", parents(false))
		f("and a full round", parents(true))
	}
}

// TestParentsAreInOrderOfTheirIDs in rounds of changes and full ones alike, so that all servers name one heir, and a full round, which meets partitions in the order of their
// times, assigns nothing anew.
func TestParentsAreInOrderOfTheirIDs(t *testing.T) {
	w := newWorld(false)
	on := func(id point.PartitionID) []topology.Placement {
		return []topology.Placement{{ID: point.PlacementID(10 * id), Server: "s1"}}
	}
	m := New("s1", "dir1", Settings{}, nil, nil)
	round := func(full bool, ops ...topology.Op) {
		t.Helper()
		if len(ops) > 0 {
			if err := w.apply(ops...); err != nil {
				t.Fatal(err)
			}
		}
		out := m.Step(0, Round{Full: full, Tables: []Table{{Name: "cpu", Map: w.m, Row: 1}}}, nil)
		for i := 0; i < len(out); i++ {
			if e, ok := out[i].(Record); ok {
				out = m.Step(0, Recorded{ID: e.ID, OK: true}, out)
			}
		}
	}
	m.Step(0, Clock{Now: 500e9}, nil)
	round(true, topology.Create{Partitions: []topology.Partition{ // the later id has the earlier time
		{ID: 1, TimeLo: 100e9, TimeHi: 200e9, Placements: on(1)},
		{ID: 2, TimeLo: 0, TimeHi: 100e9, Placements: on(2)},
	}})
	merge := topology.Merge{Partitions: []point.PartitionID{2, 1}, Into: topology.Child{ID: 3, Placements: on(3)}, ClosedBefore: 300e9}
	for _, c := range []struct {
		what string
		full bool
		ops  []topology.Op
		want []point.PartitionID
	}{
		{"merged", false, []topology.Op{merge}, []point.PartitionID{1, 2}},
		{"a full round", true, nil, []point.PartitionID{1, 2}},
		{"the rows of 1 have moved", false, []topology.Op{topology.UnloadFinal{Partition: 1}}, []point.PartitionID{2}},
		{"a full round later", true, nil, []point.PartitionID{2}},
		{"all rows have moved", false, []topology.Op{topology.UnloadFinal{Partition: 2}}, nil},
	} {
		round(c.full, c.ops...)
		if got := m.tables["cpu"].assigned[3].assigned.Parents; !slices.Equal(got, c.want) {
			t.Errorf("%s: 3 comes from %v, want %v", c.what, got, c.want)
		}
	}
}
