package head

import (
	"fmt"
	"math"
	"testing"

	"pgregory.net/rapid"

	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/rows"
)

// TestThinPagesReadWhatAModelReads sends rounds of rising ids, as scrapes do, some of which come again, late, with older ranks, or
// so often that pages widen.
func TestThinPagesReadWhatAModelReads(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h, m := New(Settings{FewRows: true, onHeap: rapid.Bool().Draw(t, "onHeap")}), &model{}
		defer h.Free()
		used := map[point.Stamp]bool{}
		for round := range rapid.IntRange(1, 7).Draw(t, "rounds") {
			from := rapid.IntRange(1000, 1100).Draw(t, "from")
			for range rapid.IntRange(1, 5).Draw(t, "frames") {
				stamp := point.Stamp(rapid.IntRange(1, 10_000).Draw(t, "stamp"))
				if used[stamp] {
					continue
				}
				used[stamp] = true
				var ids []point.DenseID
				var times []point.Nanos
				var values []float64
				at := rapid.Int64Range(0, 5).Draw(t, "time")
				for range rapid.IntRange(1, 200).Draw(t, "rows") {
					from += rapid.IntRange(1, 9).Draw(t, "step") / 4 // mostly the next one, or the same
					ids, times, values = append(ids, point.DenseID(from)), append(times, at), append(values, float64(round*1000+len(ids)))
					if rapid.IntRange(0, 30).Draw(t, "other host") == 0 {
						at++
					}
					if rapid.IntRange(0, 50).Draw(t, "stale") == 0 {
						values[len(values)-1] = stale
					}
					m.append(ids[len(ids)-1], row{time: times[len(times)-1], stamp: stamp, value: values[len(values)-1]})
				}
				h.Append(stamp, ids, times, values)
			}
		}
		if rapid.Bool().Draw(t, "histogram") {
			h.AppendHist(20_000, 1100, 3, []byte{1})
			m.append(1100, row{time: 3, stamp: 20_000, hist: []byte{1}})
		}
		var run rows.Run
		for id := range m.rows {
			want := m.read(id, 1, 4)
			if ok := h.Read(id, 1, 4, &run); ok != (len(want) > 0) || !sameRows(flat(&run), want) {
				t.Fatalf("series %d:\n got %v\nwant %v", id, flat(&run), want)
			}
			if h.ReadRanked(id, math.MinInt64, math.MaxInt64, &run); len(run.Ranks) != len(run.Times) {
				t.Fatalf("series %d: %d ranks of %d rows", id, len(run.Ranks), len(run.Times))
			}
			for i, at := range run.Times {
				if want := winner(m.rows[id][at]); run.Ranks[i] != want.stamp {
					t.Fatalf("series %d at %d: rank %d, want %d", id, at, run.Ranks[i], want.stamp)
				}
			}
			checkStamps(t, id, m, &run, h)
		}
		checkIDs(t, h, m)
	})
}

// TestFewRowsTakeFewBytes pins the memory of a partition that is a few seconds wide.
func TestFewRowsTakeFewBytes(t *testing.T) {
	const series = 200_000
	for rounds, most := range map[int]float64{1: 9.5, 2: 9.5, 4: 9.5, 5: 40} {
		l, h := newLoad(series), New(Settings{FewRows: true})
		for r := range rounds {
			for from := 0; from < series; from += frameRows {
				l.frame(r, from, func(i int) int { return i })
				h.Append(point.Stamp(r*series+from), l.ids, l.times, l.vals)
			}
		}
		if got := float64(h.Bytes()-slabBytes) / float64(h.Rows()); got > most { // a slab may just have begun
			t.Errorf("%d rows a series: %.1f B a row, want at most %.1f", rounds, got, most)
		}
		h.Free()
		if h.Bytes() != 0 {
			t.Errorf("%d bytes after Free", h.Bytes())
		}
	}
}

// BenchmarkFewRows appends a row or more of each of a million series and reads them all, in the order of labels.
func BenchmarkFewRows(b *testing.B) {
	const series = 1_000_000
	for _, thin := range []bool{false, true} {
		for _, rounds := range []int{1, 4, 5} {
			b.Run(fmt.Sprintf("thin %v, %d rows", thin, rounds), func(b *testing.B) {
				fs := frames(series, rounds, func(i int) int { return i })
				order := make([]point.DenseID, series)
				for i := range order {
					order[i] = point.DenseID(i%10_000*100%series + i/10_000)
				}
				n, bytes := 0, 0
				var cpu cpu
				cpu.start(b)
				for b.Loop() {
					h := New(Settings{FewRows: thin})
					for i := range fs {
						h.Append(point.Stamp(i), fs[i].ids, fs[i].times, fs[i].vals)
					}
					_ = h.Drain(order, func(_ point.DenseID, r *rows.Run) error { n += r.Len(); return nil })
					bytes = h.Bytes()
					h.Free()
				}
				cpu.report(b, n)
				b.ReportMetric(float64(bytes)/float64(series*rounds), "B/row")
			})
		}
	}
}
