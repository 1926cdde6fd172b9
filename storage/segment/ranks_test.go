package segment

import (
	"math"
	"slices"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/rows"
)

// The first rank of a load, and ten seconds of ranks.
const (
	firstRank  = point.Stamp(1_660_156_250_000 << 20)
	scrapeStep = point.Stamp(9_765_625 << gatewayBits)
)

// withRanks gives the rows of a source ranks of their own: a request a scrape and host, with some jitter; every 17th row came late.
func withRanks(s *source) *source {
	for id, r := range s.runs {
		base := firstRank + point.Stamp(id%3)<<30
		at := func(i int) point.Stamp {
			if i%17 == 16 {
				return base - point.Stamp(i)<<20
			}
			return base + scrapeStep*point.Stamp(i) + point.Stamp(i*i%1000)<<gatewayBits
		}
		for i := range r.Times {
			r.Ranks = append(r.Ranks, at(i))
		}
		for i := range r.Hists {
			r.HistRanks = append(r.HistRanks, at(i))
		}
		all := append(slices.Clone(r.Ranks), r.HistRanks...)
		r.StampLo, r.StampHi = slices.Min(all), slices.Max(all)
		s.runs[id] = r
	}
	return s
}

// readRanks are the ranks of the floats of series 1.
func readRanks(t *testing.T, fs vfs.FS, info Info, lo, hi point.Nanos) (ranks []point.Stamp) {
	t.Helper()
	r := openSegment(t, fs, "seg", info, openCache(t, 0))
	check(t, r.Verify())
	check(t, r.ReadRanked([]point.DenseID{1}, lo, hi, 0, func(_ int, run rows.Run) error {
		ranks = run.Ranks
		return nil
	}))
	return ranks
}

// TestRanksBelowABoundAreNotKept: those of chunks with older rows alone count as the highest of their chunk, and need no room.
func TestRanksBelowABoundAreNotKept(t *testing.T) {
	fs := vfs.NewMem()
	s := &source{meta: Meta{Table: "t"}}
	var run rows.Run
	for i := range 3 * chunkRowsMax {
		run.Times, run.Values, run.Ranks = append(run.Times, int64(i)), append(run.Values, 1), append(run.Ranks, point.Stamp(1+i)<<gatewayBits)
	}
	run.StampLo, run.StampHi = run.Ranks[0], run.Ranks[len(run.Ranks)-1]
	s.add(1, run)
	whole := s.write(t, fs, "seg")
	if got := readRanks(t, fs, whole, math.MinInt64, math.MaxInt64); !slices.Equal(got, run.Ranks) || whole.RankedRows != 3*chunkRowsMax {
		t.Errorf("%d rows with ranks, read %v", whole.RankedRows, got)
	}
	if got := readRanks(t, fs, whole, 700, 702); !slices.Equal(got, run.Ranks[700:703]) { // without the first block
		t.Errorf("in the second chunk, read %v", got)
	}
	w, err := Create(fs, "seg", s.meta, Settings{})
	check(t, err)
	w.RanksFrom(run.Ranks[2*chunkRowsMax])
	check(t, w.Add(1, &run))
	info, err := w.Finish()
	check(t, err)
	got := readRanks(t, fs, info, math.MinInt64, math.MaxInt64)
	want := append(slices.Repeat([]point.Stamp{run.Ranks[chunkRowsMax-1]}, chunkRowsMax), slices.Repeat([]point.Stamp{run.Ranks[2*chunkRowsMax-1]}, chunkRowsMax)...)
	if want = append(want, run.Ranks[2*chunkRowsMax:]...); !slices.Equal(got, want) {
		t.Errorf("read %v\nwant %v", got, want)
	}
	if info.RankedRows != chunkRowsMax || info.Size >= whole.Size {
		t.Errorf("%d rows with ranks in %d bytes, all in %d", info.RankedRows, info.Size, whole.Size)
	}
}

// TestSeriesOfOneRequestShareTheirRanks, also in other groups: a hundred series need little more room than one.
func TestSeriesOfOneRequestShareTheirRanks(t *testing.T) {
	size := func(series int) uint64 {
		s := devops(1, 360, 0)
		s.order = s.order[:series]
		return withRankOf(s, 360).write(t, vfs.NewMem(), "seg").RankBytes
	}
	if one, all := size(1), size(100); all > one+one/2 {
		t.Errorf("the ranks of one series take %d bytes, those of 100 %d", one, all)
	}
}

// withRankOf gives all series the ranks of the same requests.
func withRankOf(s *source, n int) *source {
	var ranks []point.Stamp
	for i := range n {
		ranks = append(ranks, point.Stamp(1_700_000_000e9+int64(i)*10e9+int64(i*7919%1000)*1e6)|3)
	}
	for id, r := range s.runs {
		r.Ranks, r.StampLo, r.StampHi = ranks, slices.Min(ranks), slices.Max(ranks)
		s.runs[id] = r
	}
	return s
}

func TestWriterRefusesRanksThatAreNotThoseOfTheRows(t *testing.T) {
	for name, run := range map[string]rows.Run{
		"too few":            {Times: []point.Nanos{1, 2}, Values: []float64{1, 2}, Ranks: []point.Stamp{1}, StampHi: 9},
		"beyond the highest": {Times: []point.Nanos{1, 2}, Values: []float64{1, 2}, Ranks: []point.Stamp{1, 10}, StampHi: 9},
		"below the lowest":   {Times: []point.Nanos{1, 2}, Values: []float64{1, 2}, Ranks: []point.Stamp{1, 9}, StampLo: 2, StampHi: 9},
		"of histograms":      {Times: []point.Nanos{1, 2}, Values: []float64{1, 2}, Ranks: []point.Stamp{1, 9}, HistRanks: []point.Stamp{3}, StampHi: 9},
	} {
		w, err := Create(vfs.NewMem(), "seg", Meta{}, Settings{})
		check(t, err)
		if err := w.Add(1, &run); !fault.Is(err, fault.Invalid) {
			t.Errorf("%s: %v, want invalid", name, err)
		}
		check(t, w.Abort())
	}
}
