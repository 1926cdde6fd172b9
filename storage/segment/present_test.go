package segment

import (
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/rows"
)

// TestSeriesInATimeAreThoseOfItsGroups writes a day of series that each have rows of an hour, so that groups are of an hour or two.
func TestSeriesInATimeAreThoseOfItsGroups(t *testing.T) {
	const hours, each = 24, 300
	fs := vfs.NewMem()
	w, err := Create(fs, "s", Meta{Table: "t", Partition: 1, ID: point.SegmentID{Epoch: 1, Seq: 1}, Major: true}, Settings{})
	if err != nil {
		t.Fatal(err)
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	const series = hours * each
	for id := range point.DenseID(series) {
		must(w.Define(id, point.MakeLabels(point.MetricName, "m", "i", string(rune('a'+id%26)))))
	}
	for id := range point.DenseID(series) {
		if id%7 == 3 {
			continue // defined, and without rows
		}
		at := point.Nanos(id / each * 100)
		must(w.Add(id, &rows.Run{Times: []point.Nanos{at, at + 99}, Values: []float64{1, 2}, StampLo: 1, StampHi: 1}))
	}
	info, err := w.Finish()
	must(err)
	cache := NewCache(1 << 20)
	defer cache.Close()
	r, err := Open(fs, "s", info, cache)
	must(err)
	defer r.Close()
	for _, c := range []struct {
		lo, hi point.Nanos
		most   int // groups at the edges belong to two hours
	}{{-5, -1, 0}, {2400, 9000, 0}, {500, 400, 0}, {0, 2399, series}, {-9, 1 << 60, series}, {700, 799, each + 2*GroupSeriesMax}, {799, 800, 2*each + 2*GroupSeriesMax}, {0, 0, each + GroupSeriesMax}} {
		got, err := r.SeriesIn(c.lo, c.hi)
		must(err)
		for id := range point.DenseID(series) {
			at := point.Nanos(id / each * 100)
			if has := id%7 != 3 && at <= c.hi && at+99 >= c.lo && c.lo <= c.hi; has && !got.Contains(uint32(id)) {
				t.Fatalf("[%d, %d]: series %d has rows there and is left out", c.lo, c.hi, id)
			}
			if id%7 == 3 && got.Contains(uint32(id)) {
				t.Fatalf("[%d, %d]: series %d has no rows and is listed", c.lo, c.hi, id)
			}
		}
		if n := int(got.GetCardinality()); n > c.most {
			t.Errorf("[%d, %d]: %d series, want at most %d", c.lo, c.hi, n, c.most)
		}
	}
}

// TestADamagedPageOfPostingsIsNoAbsentValue: the page says that it has fewer values than it has, and a value behind them counted as absent: its series were missing from answers.
func TestADamagedPageOfPostingsIsNoAbsentValue(t *testing.T) {
	pk, cache := newPacker(), openCache(t, 1<<20)
	values := map[string]*runs{}
	for id, v := range []string{"a", "b", "c"} {
		values[v] = &runs{value: v}
		values[v].add(uint32(id))
	}
	pages, _ := packValues(values, pk)
	page := pages[0]
	for _, c := range []struct {
		count byte
		value string
		found bool
		fails bool
	}{{3, "c", true, false}, {3, "bb", false, false}, {3, "d", false, false}, {2, "c", false, true}, {2, "d", false, true}, {0, "a", false, true}} {
		page[0] = c.count
		if _, found, err := posting(page, cache, c.value); found != c.found || fault.Is(err, fault.Corrupt) != c.fails || (err != nil) != c.fails {
			t.Errorf("%q in a page that says it has %d values: found %v, %v", c.value, c.count, found, err)
		}
	}
}
