package segment

import (
	"fmt"
	"math"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/prometheus/model/labels"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/rows"
)

// scraped is a segment with two metrics of 150 hosts, whose rows come together at these times.
func scraped(times ...point.Nanos) *source {
	s := &source{meta: Meta{Table: "t", Partition: 1}}
	for m := range 2 {
		for h := range 150 {
			id := point.DenseID(len(s.defs))
			s.defs = append(s.defs, definition{id, point.MakeLabels("__name__", fmt.Sprint("m", m), "host", fmt.Sprintf("h%03d", h))})
			r := rows.Run{Times: times, StampLo: 5, StampHi: 5}
			for k := range times {
				r.Values = append(r.Values, float64(id)+float64(k)/8)
			}
			s.add(id, r)
		}
	}
	return s
}

// metricM1 finds the second metric.
func metricM1() *Selector {
	return NewSelector([]*labels.Matcher{labels.MustNewMatcher(labels.MatchEqual, "__name__", "m1")})
}

func granted(int64) error { return nil }

// columnOf asks for what the selector finds, and for its column.
func columnOf(t *testing.T, r *Reader) (*Found, *Column) {
	t.Helper()
	f, err := r.Find(metricM1())
	check(t, err)
	c, err := r.Column(metricM1(), f, Ask{Series: len(f.IDs), Grow: granted})
	check(t, err)
	return f, c
}

// TestColumnsHaveTheRowsOfTheirSeries appends columns of segments that follow each other to some of their series, in ranges that cut them, and compares with the rows
// that were written. The second look finds the columns of the first.
func TestColumnsHaveTheRowsOfTheirSeries(t *testing.T) {
	fs, cache := vfs.NewMem(), openCache(t, 0)
	whole := scraped(10, 20, 30, 40, 50, 60)
	var rs []*Reader
	for i, ts := range [][]point.Nanos{{10, 20}, {30}, {40, 50, 60}} {
		s, path := scraped(ts...), fmt.Sprint("s", i)
		for _, id := range s.order {
			run := whole.runs[id]
			run.Cut(ts[0], ts[len(ts)-1])
			s.runs[id] = run
		}
		rs = append(rs, openSegment(t, fs, path, s.write(t, fs, path), cache))
	}
	m := cache.Memory()
	defer m.Close()
	first := map[*Reader]*Column{}
	for lo := point.Nanos(5); lo < 70; lo += 5 {
		for hi := lo; hi < 70; hi += 5 {
			m.Reset()
			const from, n = 17, 40
			got, into := make([]rows.Gathered, n), make([]*rows.Gathered, n)
			for i := range got {
				into[i] = &got[i]
				if i > 0 {
					got[i].Reset(&got[i-1], len(rs), 3)
				}
			}
			var cs Columns
			var found *Found
			for k, r := range rs {
				f, c := columnOf(t, r)
				if c == nil || first[r] != nil && c != first[r] {
					t.Fatal("there is no column, or a second one")
				}
				first[r], found = c, f
				if !cs.Add(c, lo, hi) {
					t.Fatal("a column that follows was refused")
				}
				if k == int(lo/5)%3 && !cs.Flush(m, from, int(hi%4), into) {
					t.Fatal("columns that follow were refused")
				}
			}
			if !cs.Flush(m, from, 0, into) || !cs.Empty() {
				t.Fatal("columns that follow were refused")
			}
			var merger rows.Merger
			for i := range got {
				whole.compareIn(t, found.IDs[from+i], merger.Gather(&got[i]), lo, hi)
			}
		}
	}
}

// TestColumnsThatDoNotFollowAreRefused: of two segments with rows of one time neither may win by its place, and what the cache has does not change.
func TestColumnsThatDoNotFollowAreRefused(t *testing.T) {
	fs, cache := vfs.NewMem(), openCache(t, 0)
	s := scraped(10, 20)
	r := openSegment(t, fs, "seg", s.write(t, fs, "seg"), cache)
	_, c := columnOf(t, r)
	m := cache.Memory()
	defer m.Close()
	var cs Columns
	var to rows.Gathered
	if !cs.Add(c, 0, 99) || cs.Add(c, 0, 99) || cs.Add(c, 20, 99) || !cs.Flush(m, 0, 0, []*rows.Gathered{&to}) {
		t.Fatal("rows of one time were added twice, or not once")
	}
	if !cs.Add(c, 20, 99) || cs.Flush(m, 0, 0, []*rows.Gathered{&to}) || !cs.Empty() {
		t.Fatal("rows of one time were appended twice")
	}
}

// TestOnlySeriesWithTheSameRowsHaveAColumn: one series that lacks a row, has another time or a histogram, or rows too many, and there is none; the cache remembers that.
func TestOnlySeriesWithTheSameRowsHaveAColumn(t *testing.T) {
	many := make([]point.Nanos, chunkRowsKept)
	for i := range many {
		many[i] = point.Nanos(i)
	}
	odd := point.DenseID(200) // of m1
	for name, c := range map[string]struct {
		s    *source
		want bool
	}{
		"the same":       {scraped(10, 20), true},
		"of m0":          {with(scraped(10, 20), 3, rows.Run{Times: []point.Nanos{11}, Values: []float64{1}}), true},
		"a row is less":  {with(scraped(10, 20), odd, rows.Run{Times: []point.Nanos{10}, Values: []float64{1}}), false},
		"another time":   {with(scraped(10, 20), odd, rows.Run{Times: []point.Nanos{10, 21}, Values: []float64{1, 2}}), false},
		"a histogram":    {with(scraped(10, 20), odd, rows.Run{Hists: []peer.Hist{{Time: 10, H: []byte{1}}}}), false},
		"without rows":   {with(scraped(10, 20), odd, rows.Run{}), false},
		"too many times": {scraped(many...), false},
		"long series":    {longM1(many), false},
	} {
		fs, cache := vfs.NewMem(), openCache(t, 0)
		r := openSegment(t, fs, "seg", c.s.write(t, fs, "seg"), cache)
		for range 2 {
			if _, got := columnOf(t, r); (got != nil) != c.want {
				t.Errorf("%s: there is a column: %v", name, got != nil)
			}
		}
		_, kept := cache.page(pageKey{reader: r, group: columnsGroup, at: cache.hash(metricM1().key)})
		if want := name != "too many times"; kept != want {
			t.Errorf("%s: the answer stays: %v", name, kept)
		}
	}
}

// with gives a series other rows; none: it is only defined.
func with(s *source, id point.DenseID, r rows.Run) *source {
	r.StampLo, r.StampHi = 5, 5
	s.runs[id] = r
	if r.Len() == 0 {
		s.order = append(s.order[:id:id], s.order[id+1:]...)
	}
	return s
}

// TestColumnsAreCounted: the memory of a column is the cache's, is bounded, and ends with its segment.
func TestColumnsAreCounted(t *testing.T) {
	fs, cache := vfs.NewMem(), openCache(t, 0)
	s := scraped(10, 20)
	r, err := Open(fs, "seg", s.write(t, fs, "seg"), cache)
	check(t, err)
	f, err := r.Find(metricM1())
	check(t, err)
	check(t, r.Read(f.IDs, math.MinInt64, math.MaxInt64, func(point.DenseID, rows.Run) error { return nil })) // its blocks are there
	before := cache.Bytes()
	_, c := columnOf(t, r)
	if grown := cache.Bytes() - before; c == nil || grown < 8*2*150 || grown > 8*2*150+2*columnBytes {
		t.Errorf("a column of 300 values has %d bytes", grown)
	}
	check(t, r.Close())
	cache.forget(cache.common) // is no segment's
	cache.mu.Lock()
	defer cache.mu.Unlock()
	if cache.mu.bytes != 0 || cache.mu.bulkBytes != 0 || len(cache.mu.pages) != 0 {
		t.Errorf("the segment is closed, and %d bytes stay", cache.mu.bytes)
	}
}

// longM1 is a segment with few rows a series, of which those of m1 have many.
func longM1(times []point.Nanos) *source {
	s := scraped(times...)
	for id := range point.DenseID(150) {
		s.runs[id] = rows.Run{Times: times[:1], Values: []float64{1}, StampLo: 5, StampHi: 5}
	}
	return s
}

// TestPagesOfSeriesWhoseColumnsDoNotFitReadNoMoreThanTwice: many pages ask for columns of more segments than there is room for. A column reads all series, a page wants two:
// after the first pass the columns read no more than the pages want.
func TestPagesOfSeriesWhoseColumnsDoNotFitReadNoMoreThanTwice(t *testing.T) {
	fs, cache := vfs.NewMem(), openCache(t, 320<<10)
	var rs []*Reader
	for i := range 60 {
		path := fmt.Sprint("s", i)
		rs = append(rs, openSegment(t, fs, path, scraped(point.Nanos(10*i)).write(t, fs, path), cache))
	}
	m := cache.Memory()
	defer m.Close()
	for pass := range 4 {
		columns, wanted := 0, 0
		var found []*Found
		for _, r := range rs {
			f, err := r.Find(metricM1())
			check(t, err)
			found = append(found, f)
		}
		for from := 0; from < 150; from += 2 {
			m.Reset()
			into := []*rows.Gathered{{}, {}}
			for i, r := range rs {
				wanted += 2
				c, err := r.Column(metricM1(), found[i], Ask{Series: 2, Grow: func(n int64) error {
					if n > 0 {
						columns++
					}
					return nil
				}})
				check(t, err)
				if c == nil {
					_, err := r.ReadBehind(m, found[i].IDs[from:from+2], found[i].Places[from:from+2], 0, 1000, 0, into)
					check(t, err)
				}
			}
		}
		if pass > 0 && columns*150 > wanted {
			t.Errorf("pass %d: %d columns of 150 values were read for %d values", pass, columns, wanted)
		}
	}
}

// TestAColumnIsReadByOneQuery: another one that asks meanwhile gets none. The memory is booked while it is read, and no blocks stay. A query that ends, or has too little
// memory, leaves nothing.
func TestAColumnIsReadByOneQuery(t *testing.T) {
	fs, cache := vfs.NewMem(), openCache(t, 0)
	r := openSegment(t, fs, "seg", scraped(10, 20).write(t, fs, "seg"), cache)
	f, err := r.Find(metricM1())
	check(t, err)
	ask := func(grow func(int64) error) (*Column, error) {
		return r.Column(metricM1(), f, Ask{Series: len(f.IDs), Grow: grow})
	}
	if c, err := ask(func(int64) error { return fault.Errorf(fault.Canceled, "it ended") }); c != nil || !fault.Is(err, fault.Canceled) {
		t.Errorf("a query that ended: %v, %v", c, err)
	}
	if c, err := ask(func(n int64) error {
		if n > 0 {
			return fault.Errorf(fault.Throttled, "no memory")
		}
		return nil
	}); c != nil || !fault.Is(err, fault.Throttled) {
		t.Errorf("too little memory: %v, %v", c, err)
	}
	booked, most := int64(0), int64(0)
	c, err := ask(func(n int64) error {
		booked += n
		most = max(most, booked)
		if c, err := ask(granted); c != nil || err != nil {
			t.Errorf("the column is being read, and another query got %v, %v", c, err)
		}
		return nil
	})
	if c == nil || err != nil || booked != 0 || most != 8*2*150 {
		t.Errorf("the column: %v, %v, %d bytes were booked, %d stay so", c != nil, err, most, booked)
	}
	for k := range cache.mu.pages {
		if k.page == plainPage || k.page == blockPage || k.page == recordPage {
			t.Errorf("a block or record stays: %v", k.page)
		}
	}
}

// TestDamageToOtherSeriesDoesNotFailAPage flips bytes of a segment: where the rows of all series of a selector are not readable, those of one that was not hit are.
func TestDamageToOtherSeriesDoesNotFailAPage(t *testing.T) {
	fs, cache := vfs.NewMem(), openCache(t, 0)
	times := make([]point.Nanos, 40)
	for k := range times {
		times[k] = point.Nanos(k)
	}
	s := scraped(times...)
	for id, run := range s.runs { // so many bytes that groups lie in blocks of their own
		for k := range run.Values {
			run.Values[k] = math.Sqrt(float64(2 + int(id)*len(times) + k))
		}
	}
	info := s.write(t, fs, "seg")
	whole := readFile(t, fs, "seg")
	spared := 0
	for i := 0; i < len(whole); i += len(whole) / 40 {
		whole[i] ^= 16
		writeFile(t, fs, "seg", whole)
		whole[i] ^= 16
		r, err := Open(fs, "seg", info, cache)
		if err != nil {
			continue
		}
		if f, err := r.Find(metricM1()); err == nil {
			c, err := r.Column(metricM1(), f, Ask{Series: 1, Grow: granted})
			damaged := fault.Is(err, fault.Corrupt)
			if err != nil && !damaged {
				t.Fatalf("byte %d: %v", i, err)
			}
			m := cache.Memory()
			var to rows.Gathered
			_, err = r.ReadBehind(m, f.IDs[:1], f.Places[:1], 0, 99, 0, []*rows.Gathered{&to})
			if c == nil && err == nil {
				var merger rows.Merger
				s.compareIn(t, f.IDs[0], merger.Gather(&to), 0, 99)
				if again, err := r.Column(metricM1(), f, Ask{Series: 1, Grow: granted}); again != nil || err != nil {
					t.Errorf("byte %d: the column is read once more: %v, %v", i, again, err)
				}
				if damaged {
					spared++
				}
			}
			m.Close()
		}
		check(t, r.Close())
	}
	if spared == 0 {
		t.Error("no flip hit other series alone")
	}
}
