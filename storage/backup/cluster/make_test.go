package cluster

import (
	"reflect"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/metadata/topology"
)

// TestATableOfAnotherWidthIsRestored: its columns began at a day, and its partitions were made weeks wide later. The restore refused the columns, and with them the backup.
func TestATableOfAnotherWidthIsRestored(t *testing.T) {
	const day = 24 * time.Hour
	was, err := topology.New("cpu", topology.Config{PartitionWidth: day, Retention: 30 * day})
	if err != nil {
		t.Fatal(err)
	}
	ranges := func(weights ...uint32) topology.Layout {
		r, err := topology.Spread(nil, weights)
		if err != nil {
			t.Fatal(err)
		}
		return topology.Layout{Weights: weights, Ranges: r}
	}
	for i, l := range []topology.Layout{ranges(1, 1), ranges(1, 2), ranges(3, 2, 1)} {
		l.From = []int64{int64(-3 * day), int64(4 * day), int64(15 * day)}[i]
		if was, err = was.Apply(topology.SetColumns{Layout: l}); err != nil {
			t.Fatal(err)
		}
	}
	if was, err = was.Apply(topology.SetConfig{Config: topology.Config{PartitionWidth: 7 * day, Retention: 60 * day, Replicas: 2}}); err != nil {
		t.Fatal(err)
	}
	for _, width := range []time.Duration{day, 7 * day} { // the target's own
		m, err := topology.New("cpu", topology.Config{PartitionWidth: width})
		if err != nil {
			t.Fatal(err)
		}
		got, err := m.Apply(settings(m, was, was.Config)...)
		if err != nil {
			t.Fatalf("the table is not made: %v", err)
		}
		if got.Config != was.Config || !reflect.DeepEqual(got.Layouts, was.Layouts) {
			t.Errorf("%+v %v, was %+v %v", got.Config, got.Layouts, was.Config, was.Layouts)
		}
	}
}
