package head

import (
	"math/rand/v2"
	"testing"

	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/rows"
)

// TestOneRowTakesNoMoreThanAFewKilobytes: four thousand partitions of one row each used the memory of all heads together,
// 66 kB each, and the rows of all tables were refused.
func TestOneRowTakesNoMoreThanAFewKilobytes(t *testing.T) {
	h := New(Settings{})
	defer h.Free()
	h.Append(1, []point.DenseID{3}, []point.Nanos{1}, []float64{1})
	if got := h.Bytes(); got > 4<<10 {
		t.Errorf("one row takes %d bytes", got)
	}
	late := New(Settings{}) // one row of a series that came late to a large partition
	defer late.Free()
	late.Append(1, []point.DenseID{123_456}, []point.Nanos{1}, []float64{1})
	if got := late.Bytes(); got > 40<<10 {
		t.Errorf("one row of series 123,456 takes %d bytes", got)
	}
}

// TestRowsSurviveTheGrowthOfAHead writes to series in an order that makes the head outgrow each of its sizes, in the midst
// of an append, and reads all rows back.
func TestRowsSurviveTheGrowthOfAHead(t *testing.T) {
	edges := []point.DenseID{0, 5, 31, 32, 33, 127, 128, 511, 512, 513, 1023, 1024, 1025, 5000}
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 1))
		h := New(Settings{onHeap: seed%2 == 0})
		want := map[point.DenseID][]float64{}
		top := 1 + rng.IntN(len(edges))
		for step := range 40 {
			if step%10 == 9 {
				top = min(top+rng.IntN(4), len(edges))
			}
			var ids []point.DenseID
			var times []point.Nanos
			var values []float64
			for range 1 + rng.IntN(200) {
				id := edges[rng.IntN(top)]
				v := rng.Float64()
				ids, times, values = append(ids, id), append(times, point.Nanos(len(want[id]))), append(values, v)
				want[id] = append(want[id], v)
			}
			h.Append(point.Stamp(step+1), ids, times, values)
		}
		for id, values := range want {
			var run rows.Run
			if !h.Read(id, 0, 1<<62, &run) || len(run.Values) != len(values) {
				t.Fatalf("seed %d, series %d: %d rows of %d", seed, id, run.Len(), len(values))
			}
			for i := range values {
				if run.Values[i] != values[i] {
					t.Fatalf("seed %d, series %d, row %d: %v, want %v", seed, id, i, run.Values[i], values[i])
				}
			}
		}
		late := h.SeriesSince(3)
		for id, values := range want {
			if late.Contains(uint32(id)) != (len(values) > 3) {
				t.Fatalf("seed %d, series %d: %d rows from 0 on, and since 3 it is listed: %v", seed, id, len(values), late.Contains(uint32(id)))
			}
		}
		if h.Series() != len(want) || int(h.SeriesIDs().GetCardinality()) != len(want) {
			t.Fatalf("seed %d: %d series and %d ids of %d", seed, h.Series(), h.SeriesIDs().GetCardinality(), len(want))
		}
		h.Free()
	}
}
