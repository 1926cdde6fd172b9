package lease

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

// TestGuards shows in testdata/guards the writes of METADATA transaction 9 into the lease row of a partition.
//
//	guard row=(held,empty) list=(1,2) placements=(2,3) [dropped] [unused] [born] [mark=5]
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
				for _, v := range a.Vals {
					g.Placements = append(g.Placements, topology.Placement{ID: idOf(v), Server: topology.ServerID("s" + v)})
				}
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

func idOf(v string) (id point.PlacementID) {
	fmt.Sscan(v, &id)
	return id
}
