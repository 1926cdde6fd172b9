package route_test

import (
	"fmt"
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/spillwaydb/spillway/gateway/route"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/point"
)

func place(point.PartitionID) []topology.Placement {
	return []topology.Placement{{ID: 1, Server: "s1"}}
}

// empty is a map with partitions that will be cut into ring columns.
func empty(t *rapid.T, columns int) *topology.Map {
	m, err := topology.New("t", topology.Config{PartitionWidth: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	if columns == 1 {
		return m
	}
	weights := make([]uint32, columns)
	for i := range weights {
		weights[i] = uint32(i + 1)
	}
	ranges, err := topology.Spread(nil, weights)
	if err != nil {
		t.Fatal(err)
	}
	if m, err = m.Apply(topology.SetColumns{Layout: topology.Layout{From: math.MinInt64, Weights: weights, Ranges: ranges}}); err != nil {
		t.Fatal(err)
	}
	return m
}

// Against the naive way, row by row: every row is in exactly the share of its partition, in its old order, or its time
// is handed back; also with a cutter that has cut other batches before.
func TestCutLosesAndDoublesNothing(t *testing.T) {
	d := point.NewDict(0)
	var ids []point.SeriesID
	for i := range 5 {
		l := point.MakeLabels(point.MetricName, "m", "i", fmt.Sprint(i))
		id, err := d.Intern(d.Hash([]byte(l)), l)
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, id)
	}
	rapid.Check(t, func(t *rapid.T) {
		var c route.Cutter
		for range 3 {
			m := empty(t, rapid.IntRange(1, 4).Draw(t, "columns"))
			span := rapid.Int64Range(1, 60).Draw(t, "span")
			at := rapid.Int64Range(-span*1e9, span*1e9)
			m = m.Cover(rapid.SliceOfN(at, 0, 4).Draw(t, "covered"), place)
			b := point.GetBatch(d)
			want := map[point.PartitionID][]string{}
			lost := 0
			note := func(id point.SeriesID, at point.Nanos, v any) {
				if p, ok := m.Find(d.Labels(id).RingPoint(), at); ok {
					want[p.ID] = append(want[p.ID], fmt.Sprint(id, at, v))
				} else {
					lost++
				}
			}
			for range rapid.IntRange(0, 20).Draw(t, "rows") {
				id, ts, v := rapid.SampledFrom(ids).Draw(t, "id"), at.Draw(t, "t"), rapid.Float64().Draw(t, "v")
				b.Append(id, ts, v)
				note(id, ts, v)
			}
			for range rapid.IntRange(0, 3).Draw(t, "hists") {
				h := point.HistRow{ID: rapid.SampledFrom(ids).Draw(t, "id"), Time: at.Draw(t, "t"), H: []byte{1}}
				b.Hists = append(b.Hists, h)
				note(h.ID, h.Time, h.H)
			}
			for range rapid.IntRange(0, 3).Draw(t, "exemplars") {
				e := point.ExemplarRow{ID: rapid.SampledFrom(ids).Draw(t, "id"), Time: at.Draw(t, "t"), Value: 1}
				b.Exemplars = append(b.Exemplars, e)
				note(e.ID, e.Time, "exemplar")
			}
			shares, uncovered := c.Cut(m, b)
			if len(uncovered) != lost {
				t.Fatalf("%d rows lie nowhere, %d were handed back", lost, len(uncovered))
			}
			for _, s := range shares {
				var got []string
				for i := range s.IDs {
					got = append(got, fmt.Sprint(s.IDs[i], s.Times[i], s.Values[i]))
				}
				for _, h := range s.Hists {
					got = append(got, fmt.Sprint(h.ID, h.Time, h.H))
				}
				for _, e := range s.Exemplars {
					got = append(got, fmt.Sprint(e.ID, e.Time, "exemplar"))
				}
				if fmt.Sprint(got) != fmt.Sprint(want[s.Partition.ID]) {
					t.Fatalf("partition %d got %v, want %v", s.Partition.ID, got, want[s.Partition.ID])
				}
				delete(want, s.Partition.ID)
			}
			if len(want) > 0 && lost == 0 {
				t.Fatalf("rows went nowhere: %v", want)
			}
			b.Put()
		}
	})
}

func BenchmarkCutOnePartition(b *testing.B) {
	d := point.NewDict(0)
	m, _ := topology.New("t", topology.Config{PartitionWidth: 24 * time.Hour})
	m = m.Cover([]point.Nanos{0}, place)
	batch := point.GetBatch(d)
	for i := range 2000 {
		batch.Append(point.SeriesID(i), int64(i), 1)
	}
	var c route.Cutter
	b.ReportAllocs()
	for b.Loop() {
		c.Cut(m, batch)
	}
}
