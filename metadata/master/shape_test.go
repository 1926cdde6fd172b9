package master

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/point"
)

// TestAPartitionThatAnotherUnloadsIntoIsNotInterruptedInVain: p1 has rows and unloads into p2 and p3, which have none and are past. They
// cannot be removed from the map before p1 is, so a plan to merge them, or to finish p2, is refused each time, after both were fenced and
// their leaders stopped: every five seconds, for ever.
func TestAPartitionThatAnotherUnloadsIntoIsNotInterruptedInVain(t *testing.T) {
	w := newWorld()
	for _, line := range []string{"now 2026-11-21T12:00:00Z", "server s1", "table cpu width=1h", "p1 [2026-11-21T01:00, 2026-11-21T02:00) s1 | led by s1"} {
		w.line(t, line)
	}
	child := func(id point.PartitionID) topology.Child {
		return topology.Child{ID: id, Placements: []topology.Placement{{ID: point.PlacementID(id), Server: "s1"}}}
	}
	p1, _ := w.Tables[0].ByID(1)
	apply := func(ops ...topology.Op) {
		t.Helper()
		next, err := w.Tables[0].Apply(ops...)
		if err != nil {
			t.Fatal(err)
		}
		w.Tables[0] = next
	}
	apply(topology.SplitBegin{Partition: 1, Split: topology.Split{At: topology.AtTime(p1.TimeLo + int64(30*time.Minute)), Low: child(2), High: child(3)}},
		topology.SplitFinalize{Partition: 1, Low: 2})
	if steps := Plan(w.State, w.set, rand.New(rand.NewPCG(1, 1))); len(steps) > 0 {
		t.Errorf("planned:\n%s", Format(steps))
	}
	apply(topology.SplitBegin{Partition: 2, Split: topology.Split{At: topology.AtTime(p1.TimeLo + int64(15*time.Minute)), Low: child(4), High: child(5)}})
	if steps := Plan(w.State, w.set, rand.New(rand.NewPCG(1, 1))); len(steps) > 0 {
		t.Errorf("planned:\n%s", Format(steps))
	}
	w.Leases[lease.Partition{Table: "cpu", ID: 1}] = lease.Lease{State: lease.Free, Epoch: 7, Empty: true}
	w.converge(t)
	if steps := Plan(w.State, w.set, rand.New(rand.NewPCG(1, 1))); len(steps) > 0 || w.Tables[0].Len() != 1 {
		t.Errorf("p1 has no rows, and yet:\n%s%d partitions", Format(steps), w.Tables[0].Len())
	}
}
