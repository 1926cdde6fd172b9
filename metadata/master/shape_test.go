package master

import (
	"fmt"
	"math/rand/v2"
	"strings"
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

// TestWritesDoNotStayOnAServerAtTheEdgeOfAPartitionThatMoved: s2 was added late. An empty partition moved there in the round in which the partition behind it was made there, too.
func TestWritesDoNotStayOnAServerAtTheEdgeOfAPartitionThatMoved(t *testing.T) {
	for _, x := range []struct{ name, cpu string }{
		{"ahead", "now 2026-11-21T12:55:00Z\ntable cpu width=1h\np1 [2026-11-21T12:00, 2026-11-21T13:00) s1 | led by s1, in sync s1, empty"},
		{"presplit", `now 2026-11-21T12:00:00Z
table cpu width=2h
p1 [2026-11-21T11:00, 2026-11-21T12:15) s1 | led by s1, in sync s1, 256 MiB to 2026-11-21T12:00:00Z
p2 [2026-11-21T12:15, 2026-11-21T13:23) s1
grows cpu 250 rows/s of 1048 B for 1h`},
	} {
		t.Run(x.name, func(t *testing.T) {
			w := newWorld()
			w.lines(t, x.cpu+"\nserver s1\nserver s2")
			for i := range 8 {
				w.lines(t, fmt.Sprintf("table quiet%d width=24h\np1 [2026-11-21, 2026-11-22) s1 | led by s1, in sync s1, 1 MiB to 2026-11-21T11:00:00Z", i))
			}
			steps := Plan(w.State, w.set, w.rng)
			if made := Format(steps); !strings.Contains(made, "create p2 ") && !strings.Contains(made, "lay out") {
				t.Fatalf("nothing is made:\n%s", made)
			}
			if err := w.apply(steps); err != nil {
				t.Fatal(err)
			}
			before := topology.ServerID("s1")
			for p := range w.Tables[0].All() {
				if p.Placements[0].Server == before && before != "s1" {
					t.Errorf("%s follows one on the same server:\n%s%s", p, Format(steps), w.draw())
				}
				before = p.Placements[0].Server
			}
		})
	}
}
