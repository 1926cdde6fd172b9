package partition

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/brick"
	"github.com/spillwaydb/spillway/storage/segment"
)

// TestDeletedRowsStayDeletedAfterARepair loses the newest catalogue entries, or all of them, while the log still holds every frame.
// A repair went on from the older entry: rows and the deletion after them were replayed, and deletions are of rows in segments, so
// that the rows came back.
func TestDeletedRowsStayDeletedAfterARepair(t *testing.T) {
	seeds, steps := uint64(8), 200
	if testing.Short() {
		seeds, steps = 4, 120
	}
	for seed := range seeds {
		rng := rand.New(rand.NewPCG(seed, 13))
		fs, epoch := vfs.NewMem(), point.Epoch(1)
		b := openBenchWith(t, fs, epoch, hushed)
		model := map[string]map[point.Nanos]float64{}
		var old *State
		for step := range steps {
			switch n := rng.IntN(22); {
			case n < 11:
				name := fmt.Sprint(rng.IntN(1 + step/8))
				at, v := point.Nanos(rng.IntN(100)), float64(step)
				b.must(b.put(name, at, v))
				if model[name] == nil {
					model[name] = map[point.Nanos]float64{}
				}
				model[name][at] = v
			case n < 15:
				b.deleteBoth(rng, model, step)
			case n < 17:
				b.must(b.Flush(t.Context(), ByAge))
			case n < 18:
				b.must(b.Compact(t.Context(), ByRequest))
			case n < 19:
				b.Cool(time.Now().Add(time.Hour), 0)
			case n < 20:
				old = b.mu.state
			default:
				known := old
				if rng.IntN(2) == 0 {
					known = nil
				}
				last, any := b.mu.last.Seq, len(b.mu.state.Segments) > 0
				b.close()
				if any {
					rebuildEntry(t, fs, known, last)
				}
				epoch++
				b = openBenchWith(t, fs, epoch, hushed)
				b.must(b.Tidy(true))
			}
			b.reads(seed, step, model)
		}
		b.close()
	}
}

// rebuildEntry rebuilds the entry of the partition from a given one; the log ends at last.
func rebuildEntry(t *testing.T, fs vfs.FS, known *State, last uint64) {
	t.Helper()
	br, err := brick.Open(brick.Deps{FS: fs, Log: slog.New(slog.DiscardHandler)}, brick.Settings{DataDir: "data", FreeBytesMin: 1})
	if err != nil {
		t.Fatal(err)
	}
	cache := segment.NewCache(1 << 20)
	defer cache.Close()
	r := Rebuild(fs, br.SegmentDir(ident.Placement), ident.Placement, known, false, cache, func(seq uint64) (to, end uint64) { return max(seq, last), last })
	if r.Problem != nil || r.State == nil {
		t.Fatalf("rebuilt %+v", r)
	}
	batch := br.NewBatch()
	batch.Set(r.State.Entry())
	if err := batch.Commit(true); err != nil {
		t.Fatal(err)
	}
	if err := br.Close(); err != nil {
		t.Fatal(err)
	}
}
