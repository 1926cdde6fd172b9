package tables_test

import (
	"context"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/metadata/tables"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

// placeOn makes a partition of a day on s1, if there is none.
func placeOn(at int64) tables.Plan {
	return func(m *topology.Map) ([]topology.Op, error) {
		c := m.Covering([]point.Nanos{at}, func(p point.PartitionID) []topology.Placement {
			return []topology.Placement{{ID: point.PlacementID(p), Server: "s1"}}
		})
		if len(c.Partitions) == 0 {
			return nil, nil
		}
		return []topology.Op{c}, nil
	}
}

// TestAChangeThatWasGivenUpIsNotMadeLater: two of three metadata servers are away, one change hangs and one waits behind it.
// Both are given up and ruled out while the servers are still away. When they come back neither is made, although the
// coordinators of the first still try.
func TestAChangeThatWasGivenUpIsNotMadeLater(t *testing.T) {
	site := newSite(t, 3)
	tb := site.open(tables.Settings{CreateOnWrite: true})
	if _, err := tb.Ensure(t.Context(), "t"); err != nil {
		t.Fatal(err)
	}
	before, _ := tb.Get("t")
	if err := tb.Ready(t.Context(), "t"); err != nil {
		t.Fatal(err)
	}
	site.setAway(true, "s2", "s3")
	if err := tb.Ready(t.Context(), "t"); !fault.Is(err, fault.Unavailable) {
		t.Fatalf("ready: %v, want unavailable", err)
	}
	ctx, giveUp := context.WithCancel(t.Context())
	planned, proposed := make(chan struct{}), make(chan error, 2)
	first := placeOn(day)
	go func() {
		_, err := tb.Change(ctx, "t", func(m *topology.Map) ([]topology.Op, error) {
			select {
			case <-planned:
			default:
				close(planned)
			}
			return first(m)
		})
		proposed <- err
	}()
	<-planned // and is being proposed; later proposals wait
	late := 0
	go func() {
		_, err := tb.Change(ctx, "t", func(m *topology.Map) ([]topology.Op, error) { late++; return placeOn(2 * day)(m) })
		proposed <- err
	}()
	time.Sleep(20 * time.Millisecond) // for the first to reach a coordinator; nothing depends on it
	giveUp()
	for range 2 {
		if err := <-proposed; !fault.Is(err, fault.Canceled) {
			t.Fatalf("given up: %v", err)
		}
	}
	calls := late
	seq, err := tb.RuleOut(t.Context(), "t")
	if err != nil || seq != before.Seq {
		t.Fatalf("ruled out at %d, %v; the map is at %d", seq, err, before.Seq)
	}
	site.setAway(false, "s2", "s3")
	m, err := tb.Change(t.Context(), "t", placeOn(3*day)) // its turn comes after theirs
	if err != nil {
		t.Fatal(err)
	}
	if late != calls {
		t.Errorf("a plan ran %d times after it was given up", late-calls)
	}
	for d, want := range map[point.Nanos]bool{1: false, 2: false, 3: true} {
		if _, there := m.Find(0, d*day); there != want {
			t.Errorf("a partition for day %d: %t, want %t", d, there, want)
		}
	}
}
