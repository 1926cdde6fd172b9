package segment

import (
	"bytes"
	"math"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/rows"
)

// TestTheSizeOfAGroupsRowsIsThatInMemory: a series of a day at 1 s among short-lived ones counted as 84 MiB of histograms, so that a compaction read few series at
// a time and opened blocks again and again; and a large histogram of each series as 24 bytes, so that 256 MiB were read into no account.
func TestTheSizeOfAGroupsRowsIsThatInMemory(t *testing.T) {
	floats := func(n int) (r rows.Run) {
		r.StampLo, r.StampHi = 1, 1
		for k := range n {
			r.Times, r.Values = append(r.Times, point.Nanos(k)), append(r.Values, float64(k%7))
		}
		return r
	}
	hists := func(n, size int) (r rows.Run) {
		r.StampLo, r.StampHi = 1, 1
		for k := range n {
			r.Hists = append(r.Hists, peer.Hist{Time: point.Nanos(k), H: bytes.Repeat([]byte{byte(k)}, size)})
		}
		return r
	}
	for name, c := range map[string]struct {
		series func(id int) rows.Run
		most   float64 // of the real size
	}{
		"a long one among short-lived ones": {func(id int) rows.Run {
			if id == 0 {
				return floats(86400)
			}
			return floats(5)
		}, 1.1},
		"one large histogram each":      {func(int) rows.Run { return hists(1, 100_000) }, 1.1},
		"histograms of many blocks":     {func(int) rows.Run { return hists(200, 2000) }, 1.5},
		"large histograms, many blocks": {func(int) rows.Run { return hists(5, 100_000) }, 1.1},
		"floats":                        {func(int) rows.Run { return floats(700) }, 1.1},
	} {
		t.Run(name, func(t *testing.T) {
			s := &source{meta: Meta{Table: "t", Partition: 1}}
			real, got := 0., 0.
			for id := range 32 {
				r := c.series(id)
				real += float64(r.Len() * rowBytes)
				for k := range r.Hists {
					real += float64(len(r.Hists[k].H))
				}
				s.add(point.DenseID(id), r)
			}
			fs := vfs.NewMem()
			r := openSegment(t, fs, "seg", s.write(t, fs, "seg"), openCache(t, 0))
			check(t, r.EachGroup(func(ids []point.DenseID, bytes int64) error {
				got += float64(len(ids)) * float64(bytes)
				return nil
			}))
			if got < 0.99*real || got > c.most*real {
				t.Errorf("%.0f bytes, not %.0f", got, real)
			}
		})
	}
}

// TestReadOnceKeepsNoBlocks: reads of a compaction pushed the parts for queries out of the cache.
func TestReadOnceKeepsNoBlocks(t *testing.T) {
	for _, ranked := range []bool{false, true} {
		fs, cache := vfs.NewMem(), openCache(t, 0)
		s := &source{meta: Meta{Table: "t", Partition: 1}}
		for id := range 32 {
			run := rows.Run{StampLo: 1, StampHi: 1}
			for k := range 600 {
				run.Times, run.Values = append(run.Times, point.Nanos(k)), append(run.Values, float64(id*k))
			}
			s.add(point.DenseID(id), run)
		}
		r := openSegment(t, fs, "seg", s.write(t, fs, "seg"), cache)
		read := 0
		check(t, r.ReadOnce([]point.DenseID{7}, ranked, math.MinInt64, math.MaxInt64, 0, func(_ int, run rows.Run) error {
			read += run.Len()
			if ranked != (len(run.Ranks) > 0) {
				t.Errorf("%d ranks", len(run.Ranks))
			}
			return nil
		}))
		if read != 600 {
			t.Errorf("%d rows, not 600", read)
		}
		for _, e := range cache.mu.pages {
			if p := e.Value.(*cached); p.block != nil || p.plain != nil || p.record != nil {
				t.Error("a block or record is kept")
			}
		}
	}
}
