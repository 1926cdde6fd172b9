package rules

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/point"
)

// allOf are all actions of a server for a table: the machine works out only those that a change may have changed.
func allOf(v View) []Action {
	if v.Map == nil || v.Map.Seq < v.Seen {
		return v.doubt()
	}
	out, here := v.judge()
	for at := range v.Map.All() {
		if a, ok := v.serve(at, here); ok {
			out = append(out, a)
		}
	}
	return out
}

// TestPlan runs testdata/plan.txt. Commands:
//
//	table                          a new map; seq 1
//	create s1 s2 …                 partition N of 100 s after those before, on these servers; placement ids N1, N2, …
//	place N id server              another placement of partition N becomes live
//	join N id server               … is being filled
//	take N id                      a placement is removed
//	drop N · split N               in one transaction each; a split is finalized at once
//	plan server=s1 seen=3 [nomap]  the server's actions; the input has a line for each placement here:
//	                               partition placement [empty] [covered]
func TestPlan(t *testing.T) {
	var m *topology.Map
	var next int64
	apply := func(d *datadriven.TestData, ops ...topology.Op) string {
		changed, err := m.Apply(ops...)
		if err != nil {
			d.Fatalf(t, "%v", err)
		}
		m = changed
		return fmt.Sprintf("seq %d\n", m.Seq)
	}
	number := func(d *datadriven.TestData, i int) uint64 {
		n, err := strconv.ParseUint(d.CmdArgs[i].Key, 10, 64)
		if err != nil {
			d.Fatalf(t, "%v", err)
		}
		return n
	}
	id := func(d *datadriven.TestData) point.PartitionID { return point.PartitionID(number(d, 0)) }
	datadriven.RunTest(t, "testdata/plan.txt", func(t *testing.T, d *datadriven.TestData) string {
		switch d.Cmd {
		case "table":
			m, _ = topology.New("t", topology.Config{PartitionWidth: 100 * time.Second})
			next = 0
			return "seq 1\n"
		case "create":
			p := topology.Partition{ID: m.NextID, TimeLo: next, TimeHi: next + 100e9}
			next = p.TimeHi
			for i, s := range d.CmdArgs {
				p.Placements = append(p.Placements, topology.Placement{ID: point.PlacementID(10*int(p.ID) + i + 1), Server: topology.ServerID(s.Key)})
			}
			return apply(d, topology.Create{Partitions: []topology.Partition{p}})
		case "place", "join":
			pl := topology.Placement{ID: point.PlacementID(number(d, 1)), Server: topology.ServerID(d.CmdArgs[2].Key)}
			ops := []topology.Op{topology.Join{Partition: id(d), Placement: pl}, topology.JoinFinalize{Partition: id(d), Placement: pl.ID}}
			if d.Cmd == "join" {
				ops = ops[:1]
			}
			return apply(d, ops...)
		case "take":
			return apply(d, topology.Remove{Partition: id(d), Placement: point.PlacementID(number(d, 1))})
		case "drop":
			return apply(d, topology.Drop{IDs: []point.PartitionID{id(d)}})
		case "split":
			at, _ := m.ByID(id(d))
			low := m.NextID
			child := func(id point.PartitionID) topology.Child {
				c := topology.Child{ID: id}
				for i, pl := range at.Placements {
					c.Placements = append(c.Placements, topology.Placement{ID: point.PlacementID(10*int(id) + i + 1), Server: pl.Server})
				}
				return c
			}
			split := topology.Split{At: topology.AtRing(1 << 63), Low: child(low), High: child(low + 1)}
			return apply(d, topology.SplitBegin{Partition: at.ID, Split: split}, topology.SplitFinalize{Partition: at.ID, Low: low})
		case "plan":
			v := View{Map: m}
			for _, a := range d.CmdArgs {
				switch a.Key {
				case "server":
					v.Server = topology.ServerID(a.Vals[0])
				case "seen":
					v.Seen, _ = strconv.ParseUint(a.Vals[0], 10, 64)
				case "nomap":
					v.Map = nil
				}
			}
			for line := range strings.Lines(d.Input) {
				var h Held
				if _, err := fmt.Sscan(line, &h.Partition, &h.Placement); err != nil {
					d.Fatalf(t, "%q: %v", line, err)
				}
				h.Empty, h.Covered = strings.Contains(line, "empty"), strings.Contains(line, "covered")
				v.Held = append(v.Held, h)
			}
			var b strings.Builder
			for _, a := range allOf(v) {
				fmt.Fprintln(&b, a)
			}
			return b.String()
		}
		d.Fatalf(t, "no such command")
		return ""
	})
}
