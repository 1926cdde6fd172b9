package follow

import (
	"math"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/point"
)

const hour = point.Nanos(time.Hour)

// hours is a table with a partition for each of some hours.
func hours(t *testing.T, c topology.Config, at ...point.Nanos) *topology.Map {
	t.Helper()
	c.PartitionWidth = time.Hour
	m, err := topology.New("t", c)
	if err != nil {
		t.Fatal(err)
	}
	for i := range at {
		at[i] *= hour
	}
	return m.Cover(at, func(point.PartitionID) []topology.Placement { return []topology.Placement{{ID: 1, Server: "n1"}} })
}

func TestDoubt(t *testing.T) {
	const never, always = math.MinInt64, math.MaxInt64
	now := 105*hour - 2*ahead // late in the hour 104
	f := func(what string, m *topology.Map, lo, hi point.Nanos, age time.Duration, from, to point.Nanos) {
		t.Helper()
		gotFrom, gotTo, ok := Doubt(m, lo, hi, now, age)
		if ok != (from < to) || ok && (gotFrom != from || gotTo != to) {
			t.Errorf("%s: doubts %d to %d (%t), want %d to %d", what, gotFrom, gotTo, ok, from, to)
		}
	}
	known := hours(t, topology.Config{}, 100, 101, 103, 104)
	f("the store is followed", known, never, always, 0, 0, 0)
	f("lately", known, 90*hour, 110*hour, DoubtAge-1, 0, 0)
	f("all is covered", known, 103*hour, 105*hour-1, DoubtAge, 0, 0)
	f("the partition of now is there", known, 103*hour, always, DoubtAge, 0, 0)
	f("a hole", known, 100*hour, 104*hour, DoubtAge, 102*hour, 103*hour-1)
	f("before all", known, never, 101*hour, DoubtAge, never, 100*hour-1)
	f("nothing but the past", known, 10*hour, 20*hour, DoubtAge, 10*hour, 20*hour)
	f("times that have not come", known, 106*hour, always, DoubtAge, 0, 0)

	behind := hours(t, topology.Config{}, 100, 101)
	f("time passed the newest partition", behind, 100*hour, always, DoubtAge, 102*hour, now+ahead)
	f("and nobody asks for it", behind, 100*hour, 102*hour-1, DoubtAge, 0, 0)
	f("and a part is asked for", behind, 101*hour, 103*hour, DoubtAge, 102*hour, 103*hour)
	if from, to, ok := Doubt(behind, 103*hour, 103*hour, now, DoubtAge); !ok || from != 103*hour || to != from {
		t.Errorf("a moment: %d %d %t", from, to, ok)
	}
	f("without partitions", hours(t, topology.Config{}), 103*hour, always, DoubtAge, 103*hour, now+ahead)

	kept := hours(t, topology.Config{Retention: 4 * time.Hour}, 101, 102, 103, 104)
	f("what is older than the retention", kept, never, always, DoubtAge, now-4*hour, 101*hour-1)

	// The map has half of the ring of the hour 104: its other half was dropped, and may be covered again.
	halved, err := known.Apply(topology.SplitBegin{Partition: 4, Split: topology.Split{At: topology.AtRing(1 << 63),
		Low:  topology.Child{ID: 5, Placements: []topology.Placement{{ID: 1, Server: "n1"}}},
		High: topology.Child{ID: 6, Placements: []topology.Placement{{ID: 1, Server: "n1"}}}}})
	if err == nil {
		f("being split", halved, 104*hour, 105*hour-1, DoubtAge, 0, 0)
		halved, err = halved.Apply(topology.SplitFinalize{Partition: 4, Low: 5})
	}
	if err != nil {
		t.Fatal(err)
	}
	f("both halves", halved, 104*hour, 105*hour-1, DoubtAge, 0, 0)
	if halved, err = halved.Apply(topology.UnloadFinal{Partition: 4}); err != nil {
		t.Fatal(err)
	}
	if halved, err = halved.Apply(topology.Drop{IDs: []point.PartitionID{6}}); err != nil {
		t.Fatal(err)
	}
	f("one half", halved, 104*hour, 105*hour-1, DoubtAge, 104*hour, now+ahead)
}
