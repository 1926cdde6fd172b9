package segment

import (
	"slices"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/rows"
)

// sparse is a segment of a row of each of n series, whose ids are step apart: they are in n·step/1024 pages of places.
func sparse(t *testing.T, fs vfs.FS, cache *Cache, name string, n, step int) *Reader {
	t.Helper()
	s := &source{meta: Meta{Table: "t", Partition: 1, ID: point.SegmentID{Epoch: 1, Seq: 1}, Major: true}}
	for i := range n {
		id := point.DenseID(i * step)
		s.defs = append(s.defs, definition{id, point.MakeLabels("__name__", "m", "n", string(rune('a'+i%26))+name)})
		s.add(id, rows.Run{Times: []point.Nanos{1}, Values: []float64{float64(i)}})
	}
	return openSegment(t, fs, name, s.write(t, fs, name), cache)
}

// valuesOf reads the only row of each series.
func valuesOf(t *testing.T, r *Reader, ids []point.DenseID) []float64 {
	t.Helper()
	out := make([]float64, len(ids))
	m := r.cache.Memory()
	defer m.Close()
	check(t, r.ReadInto(m, ids, nil, 0, 10, 0, func(i int, run rows.Run) error {
		out[i] = run.Values[0]
		return nil
	}))
	return out
}

// TestASecondReadNeedsNoFile: of rows that were in the cache the places were read from the file again by each query, a seek for each series of another page than the one before.
func TestASecondReadNeedsNoFile(t *testing.T) {
	fs, cache := vfs.NewMem(), openCache(t, 8<<20)
	cache.LimitFiles(1)
	r, other := sparse(t, fs, cache, "s", 40, 500), sparse(t, fs, cache, "other", 40, 500)
	ids, want := []point.DenseID{}, []float64{}
	for i := range 40 { // to and fro between pages
		k := i * 17 % 40
		ids, want = append(ids, point.DenseID(k*500)), append(want, float64(k))
	}
	opened := int64(0)
	for turn := range 3 {
		if got := valuesOf(t, r, ids); !slices.Equal(got, want) {
			t.Fatalf("read %d: %v, want %v", turn, got, want)
		}
		valuesOf(t, other, ids) // closes the file of the first
		_, _, now, _ := cache.FileStats()
		if turn > 0 && now != opened {
			t.Errorf("read %d opened files: %d, before it %d", turn, now, opened)
		}
		opened = now
	}
}

// TestPlacesThatDoNotStayAreRightToo: with a cache without room, and in a read that leaves nothing there, pages come and go in memory that is used again.
func TestPlacesThatDoNotStayAreRightToo(t *testing.T) {
	fs, cache := vfs.NewMem(), openCache(t, 4<<10)
	r := sparse(t, fs, cache, "s", 300, 700)
	var ids []point.DenseID
	for i := range 300 {
		ids = append(ids, point.DenseID(i*7%300*700))
	}
	ids = append(ids, 1, 1500, 1<<31) // have no rows; of the last there is no page
	for range 2 {
		got := valuesOf(t, r, ids)
		for i, id := range ids[:300] {
			if want := float64(id / 700); got[i] != want {
				t.Errorf("series %d: %v, want %v", id, got[i], want)
			}
		}
		if tail := got[300:]; !slices.Equal(tail, []float64{0, 0, 0}) {
			t.Errorf("series without rows: %v", tail)
		}
	}
	wide := openCache(t, 8<<20)
	again := sparse(t, fs, wide, "t", 300, 700)
	check(t, again.ReadOnce(ids, false, 0, 10, 0, func(i int, run rows.Run) error {
		if want := float64(ids[i] / 700); run.Values[0] != want {
			t.Errorf("read once, series %d: %v, want %v", ids[i], run.Values[0], want)
		}
		return nil
	}))
	wide.mu.Lock()
	defer wide.mu.Unlock()
	for k := range wide.mu.pages {
		if k.group == placesGroup {
			t.Errorf("page %d of places stays after a read of rows that are not read again", k.page)
		}
	}
}
