package lease

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

// TestGuards shows in testdata/guards the writes of METADATA transaction 9 into the lease row of a partition.
//
//	guard row=(held,empty) list=(1,2) placements=(2,3) [left=(1)] [dropped] [unused] [born] [mark=5]
func TestGuards(t *testing.T) {
	datadriven.RunTest(t, "testdata/guards/rows.txt", func(t *testing.T, d *datadriven.TestData) string {
		g := Guard{Partition: Partition{"cpu", 7}, Dropped: d.HasArg("dropped") || d.HasArg("unused"), Unused: d.HasArg("unused")}
		rows := map[string]coord.Row{}
		var mark coord.Revision
		l := Lease{State: Free}
		for _, a := range d.CmdArgs {
			switch a.Key {
			case "born":
				rows[bornKey(g.Partition)] = coord.Row{Key: bornKey(g.Partition), Revision: 4, Value: []byte(`{"v":1}`)}
			case "mark":
				mark = 5
			case "placements":
				g.Placements = placementsOf(a.Vals)
			case "left":
				g.Left = placementsOf(a.Vals)
			case "list":
				for _, v := range a.Vals {
					l.InSync = append(l.InSync, Member{idOf(v), topology.ServerID("s" + v), "d"})
				}
			case "row":
				for _, v := range a.Vals {
					switch v {
					case "held":
						l.State, l.Holder, l.Boot, l.Epoch, l.Nonce = Held, "s1", "b1", 40, "n"
					case "led":
						l.Epoch, l.Holder, l.Boot = 40, "s1", "b1"
					case "gone":
						l.State = Gone
					case "empty":
						l.Empty = true
					case "marked":
						l.Seq = 9
					}
				}
				rows[RowKey(g.Partition)] = coord.Row{Key: RowKey(g.Partition), Revision: 6}
			}
		}
		if row, ok := rows[RowKey(g.Partition)]; ok {
			row.Value = l.Encode()
			if strings.Contains(d.Input, "damaged") {
				row.Value = []byte("{")
			}
			rows[row.Key] = row
		}
		conditions, writes, err := g.Write(9, rows, mark)
		if err != nil {
			return fmt.Sprintf("%v: %v\n", fault.KindOf(err), err)
		}
		var b strings.Builder
		for _, c := range conditions {
			fmt.Fprintf(&b, "if %s is at %d\n", c.Key, c.Revision)
		}
		for _, w := range writes {
			fmt.Fprintf(&b, "%s\n", w.Value)
		}
		if len(writes) == 0 {
			return "nothing\n"
		}
		return b.String()
	})
}

func placementsOf(vals []string) (out []topology.Placement) {
	for _, v := range vals {
		out = append(out, topology.Placement{ID: idOf(v), Server: topology.ServerID("s" + v)})
	}
	return out
}

func idOf(v string) (id point.PlacementID) {
	fmt.Sscan(v, &id)
	return id
}

// TestRowsHaveALeaderAfterALateChange: a master has s1 and s2 in sync, s2 leading, and removes s1. Its change is late: s1 leads by then, and alone has the rows acked since. It is refused,
// since s1 could not lead any more. ForceJoin, by which a person gives up the rows on s1, is not refused.
func TestRowsHaveALeaderAfterALateChange(t *testing.T) {
	on := func(ids ...point.PlacementID) (out []topology.Placement) {
		for _, id := range ids {
			out = append(out, topology.Placement{ID: id, Server: topology.ServerID(fmt.Sprintf("s%d", id))})
		}
		return out
	}
	m, err := topology.New("cpu", topology.Config{PartitionWidth: time.Hour, Replicas: 1})
	if err != nil {
		t.Fatal(err)
	}
	apply := func(m *topology.Map, ops ...topology.Op) *topology.Map {
		next, err := m.Apply(ops...)
		if err != nil {
			t.Fatal(err)
		}
		return next
	}
	base := apply(m, topology.Create{Partitions: []topology.Partition{{ID: 1, TimeHi: 1000, Placements: on(1, 2)}}})
	p := Partition{"cpu", 1}
	for _, c := range []struct {
		op      topology.Op
		list    []Member
		refused bool
	}{
		{topology.Unjoin{Partition: 1, Placement: 1}, []Member{{1, "s1", "d"}, {2, "s2", "d"}}, false},
		{topology.Unjoin{Partition: 1, Placement: 1}, []Member{{1, "s1", "d"}}, true},
		{topology.Remove{Partition: 1, Placement: 1}, []Member{{1, "s1", "d"}}, true},
		{topology.Unjoin{Partition: 1, Placement: 2}, []Member{{1, "s1", "d"}}, false},
		{topology.ForceJoin{Partition: 1, Placement: on(2)[0], By: "ann", Reason: "the disk is lost"}, []Member{{1, "s1", "d"}}, false},
	} {
		ops := []topology.Op{c.op}
		guards := Guards(base, apply(base, ops...), ops)
		if len(guards) != 1 {
			t.Fatalf("%v: %v", c.op, guards)
		}
		l := Lease{State: Held, Holder: "s1", Boot: "b1", Store: "d", Epoch: 40, InSync: c.list}
		rows := map[string]coord.Row{RowKey(p): {Key: RowKey(p), Revision: 6, Value: l.Encode()}}
		if _, _, err := guards[0].Write(9, rows, 0); fault.Is(err, fault.Invalid) != c.refused || err != nil && !c.refused {
			t.Errorf("%v with %v: %v", c.op, c.list, err)
		}
	}
}
