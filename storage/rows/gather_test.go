package rows_test

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/rows"
)

// TestGatheredRowsAreMergedOnes gathers runs of several series that follow each other, columns shared or not, some of them with room, and compares with Merge. Where
// a run does not follow, or has histograms, it must be refused.
func TestGatheredRowsAreMergedOnes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var merger rows.Merger
		var columns [][]point.Nanos
		gs := make([]rows.Gathered, rapid.IntRange(1, 6).Draw(t, "series"))
		all, from := make([][]rows.Run, len(gs)), make([]point.Nanos, len(gs))
		for i := range gs {
			var before *rows.Gathered
			if i > 0 {
				before = &gs[i-1]
			}
			gs[i].Reset(before, rapid.IntRange(0, 4).Draw(t, "columns"), rapid.IntRange(0, 4).Draw(t, "most"))
		}
		for k := range rapid.IntRange(0, 5).Draw(t, "places") {
			for i := range gs { // of a place all series come, one after the other
				g := &gs[i]
				n := rapid.IntRange(0, 3).Draw(t, "rows")
				ts := make([]point.Nanos, n)
				for j := range ts {
					from[i] += rapid.Int64Range(1, 2).Draw(t, "step")
					ts[j] = from[i]
				}
				for _, other := range columns { // a column of another series, by its address
					if slices.Equal(other, ts) {
						ts = other
					}
				}
				columns = append(columns, ts)
				r := rows.Run{Times: ts, StampLo: point.Stamp(rapid.IntRange(1, 9).Draw(t, "stamp"))}
				r.StampHi = r.StampLo
				r.Reserve(make([]float64, 0, n+rapid.IntRange(0, 9).Draw(t, "room")))
				for j, into := 0, r.Extend(n, 0); j < n; j++ {
					into[j] = float64(1000*i + 100*k + j)
				}
				copied := r
				copied.Values = slices.Clone(r.Values)
				all[i] = append(all[i], copied)
				if n > 0 && rapid.Bool().Draw(t, "in place") {
					if g.Empty() {
						g.Reserve(make([]float64, 0, rapid.IntRange(0, 9).Draw(t, "reserved")))
					}
					copy(g.Add(ts, r.StampLo, r.StampHi, 2), r.Values)
				} else if !g.AddRun(&r, k%3) {
					t.Fatal("a run that follows was refused")
				}
			}
		}
		for i := range gs {
			g := &gs[i]
			if len(all[i]) > 0 && from[i] > 0 {
				late := rows.Run{Times: []point.Nanos{from[i]}, Values: []float64{1}, StampLo: 1, StampHi: 1}
				hists := rows.Run{Hists: []peer.Hist{{Time: from[i] + 1, H: []byte{1}}}, StampLo: 1, StampHi: 1}
				if g.AddRun(&late, 0) || g.AddRun(&hists, 0) || g.Follows(from[i]) {
					t.Fatal("rows that do not follow were added")
				}
			}
			got, want := merger.Gather(g), rows.Merge(all[i])
			if !slices.Equal(got.Times, want.Times) || !slices.Equal(got.Values, want.Values) || got.StampLo != want.StampLo || got.StampHi != want.StampHi {
				t.Fatalf("gathered %v, want %v", got, want)
			}
		}
	})
}
