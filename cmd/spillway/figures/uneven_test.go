package figures

import (
	"testing"
	"time"

	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/point"
)

// inColumns is a map with partitions of n hours in columns of the weights, numbered by hour and then ring.
func inColumns(t *testing.T, weights []uint32, hours int) *topology.Map {
	t.Helper()
	m, err := topology.New("t", topology.Config{PartitionWidth: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	ranges, err := topology.Spread(nil, weights)
	if err != nil {
		t.Fatal(err)
	}
	if m, err = m.Apply(topology.SetColumns{Layout: topology.Layout{From: -1 << 63, Weights: weights, Ranges: ranges}}); err != nil {
		t.Fatal(err)
	}
	for h := range hours {
		m = m.Cover([]point.Nanos{int64(h) * int64(time.Hour)}, func(point.PartitionID) []topology.Placement { return []topology.Placement{{ID: 1, Server: "s1"}} })
	}
	return m
}

func TestAColumnWithFarMoreRowsThanItsShareIsNamed(t *testing.T) {
	f := func(weights []uint32, rows []uint64, want point.PartitionID, text string) {
		t.Helper()
		m, of := inColumns(t, weights, len(rows)/len(weights)), map[point.PartitionID]uint64{}
		for i, n := range rows {
			of[point.PartitionID(i+1)] = n
		}
		hot := Uneven(m, of)
		switch {
		case hot == nil && want == 0:
		case hot == nil || hot.Newest.ID != want || hot.String() != text:
			t.Errorf("weights %v, rows %v: %v, want %d: %s", weights, rows, hot, want, text)
		}
	}
	const k = 100_000
	f([]uint32{1}, []uint64{9 * k}, 0, "")
	f([]uint32{1, 1, 1, 1}, []uint64{k, k, k, k}, 0, "")
	f([]uint32{1, 1, 1, 1}, []uint64{k, 9 * k, k, k}, 2, "the column 25.0–50.0 % of the ring gets 3.0 times its share of the rows")
	f([]uint32{1, 1, 1, 1}, []uint64{1, 900, 1, 1}, 0, "") // too few to judge by
	f([]uint32{3, 1}, []uint64{3 * k, k}, 0, "")
	f([]uint32{3, 1}, []uint64{k, 3 * k}, 2, "the column 75.0–100.0 % of the ring gets 3.0 times its share of the rows")
	// The newest partition of the column is named, also where the one that begins now has no row yet.
	f([]uint32{1, 1, 1}, []uint64{k, k, 9 * k, k, k, 9 * k, 0, 0, 0}, 6, "the column 66.7–100.0 % of the ring gets 2.5 times its share of the rows")
}
