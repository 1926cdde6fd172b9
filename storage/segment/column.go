package segment

import (
	"errors"
	"slices"
	"unsafe"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/rows"
)

// Column is the rows of all series that a selector finds in a segment, where these have the same times: those of a scrape, mostly. A query over many narrow partitions reads
// one run of memory of each, instead of finding the group, the block, the chunk and the times of each series. Read only.
//
//	times    10 20        of each series
//	values    1  2        of the first series in label order
//	          5  6        of the second
//	          …
type Column struct {
	times  []point.Nanos // empty: the series have no column
	values []float64     // of series after series, as many of each as times
	lo, hi point.Stamp
}

// columnBytes is the cost of a column in the Cache, beside its times and values.
const columnBytes = 320 + int64(unsafe.Sizeof(Column{}))

// errUneven ends the read of rows that are no column.
var errUneven = errors.New("series have different times")

// Ask is what a query wants of a column.
type Ask struct {
	Series int                     // of those that the selector found
	Grow   func(bytes int64) error // books memory, or gives it back if bytes < 0, and reports the end of the query
}

// Column returns the rows of all series that the selector found here, from the Cache or for it; nil: they have no column, or there is no room for it, or another query
// is reading it. Errors are those of Grow, and of the read: these may be of rows that are not wanted.
func (r *Reader) Column(of *Selector, f *Found, ask Ask) (*Column, error) {
	c := f.column
	if c == nil {
		if r.rowsEach() >= chunkRowsKept {
			return nil, nil
		}
		k := pageKey{reader: r, group: columnsGroup, at: r.cache.hash(of.key)}
		if p, ok := r.cache.page(k); ok {
			if p.asked != of.key {
				return nil, nil // another selector with the same hash has the place
			}
			c = p.column
		} else {
			var err error
			if c, err = r.makeColumn(k, of, f, ask); err != nil {
				return nil, err
			}
		}
	}
	if c == nil || len(c.times) == 0 {
		return nil, nil
	}
	return c, nil
}

// makeColumn reads a column for the Cache, which also keeps that there is none.
func (r *Reader) makeColumn(k pageKey, of *Selector, f *Found, ask Ask) (*Column, error) {
	bytes := columnBytes + 8*(r.rowsEach()+1)*int64(len(f.IDs))
	if !r.cache.beginColumn(k, bytes, ask.Series, len(f.IDs)) {
		return nil, nil
	}
	defer r.cache.endColumn(k)
	c, err := &Column{}, error(nil)
	if !slices.Contains(f.Places, noRows) {
		c, err = r.readColumn(f, ask.Grow)
	}
	switch {
	case fault.Is(err, fault.Corrupt):
		c = &Column{} // is kept, so that the next page does not read up to the damage again
	case err != nil:
		return nil, err
	}
	r.cache.putColumn(k, of.key, c)
	return c, err
}

// rowsEach is how many rows a series has, about.
func (r *Reader) rowsEach() int64 { return int64(r.info.Rows) / max(1, int64(r.info.Series)) }

// columnCheck is how many series are read between two checks whether the query has ended.
const columnCheck = 1024

// readColumn reads a column; it is empty where the series have none. Its memory is booked while it is read.
func (r *Reader) readColumn(f *Found, grow func(bytes int64) error) (*Column, error) {
	if err := grow(0); err != nil {
		return nil, err
	}
	c, n, booked := &Column{}, 0, int64(0)
	s := r.cache.getState()
	s.again()
	s.keep, s.once, s.short = false, true, true
	defer r.cache.putState(s)
	defer func() {
		if booked > 0 {
			_ = grow(-booked)
		}
	}()
	err := r.read(s, f.IDs, f.Places, r.info.TimeLo, r.info.TimeHi, func(i int, run rows.Run) error {
		if n == 0 {
			each := len(run.Times)
			bytes := 8 * int64(each) * int64(len(f.IDs))
			if bytes > r.cache.pagesMax/foundPart {
				return errUneven
			}
			if err := grow(bytes); err != nil {
				return err
			}
			booked = bytes
			// The times may lie in memory of the read.
			c.times, c.values = slices.Clone(run.Times), make([]float64, each*len(f.IDs))
			c.lo, c.hi = run.StampLo, run.StampHi
		}
		if len(run.Times) == 0 || len(run.Hists) > 0 || !slices.Equal(run.Times, c.times) {
			return errUneven
		}
		if n++; n%columnCheck == 0 {
			if err := grow(0); err != nil {
				return err
			}
		}
		copy(c.values[i*len(c.times):], run.Values)
		c.lo, c.hi = min(c.lo, run.StampLo), max(c.hi, run.StampHi)
		return nil
	})
	switch {
	case errors.Is(err, errUneven), err == nil && n < len(f.IDs):
		return &Column{}, nil
	case err != nil:
		return nil, err
	}
	return c, nil
}

// Columns are those of the same series in segments that follow each other in time. Their rows are appended to those of each series at once: 300 columns of a
// row each cost a series what one of 300 rows does. For one goroutine; the zero value is ready.
type Columns struct {
	of     []columnPart
	times  []point.Nanos // of all, one behind the other; of the first they are shared
	lo, hi point.Stamp
}

// columnPart is the rows of a column in the range of time.
type columnPart struct {
	values           []float64
	each, from, rows int // of a series: all, from where, and how many
}

// Empty reports whether there is nothing to append.
func (cs *Columns) Empty() bool { return len(cs.of) == 0 }

// Reset drops the columns.
func (cs *Columns) Reset() {
	clear(cs.of)
	cs.of, cs.times = cs.of[:0], nil
}

// Add adds the rows of a column in [lo, hi]; false: they do not follow those that are there.
func (cs *Columns) Add(c *Column, lo, hi point.Nanos) bool {
	from, end := within(c.times, lo, hi)
	if from == end {
		return true
	}
	ts := c.times[from:end:end]
	switch n := len(cs.times); {
	case n == 0:
		cs.times, cs.lo, cs.hi = ts, c.lo, c.hi
	case cs.times[n-1] >= ts[0]:
		return false
	default:
		cs.times = append(cs.times, ts...) // the first has no room behind it, as that is the cache's
	}
	cs.of = append(cs.of, columnPart{c.values, len(c.times), from, end - from})
	cs.lo, cs.hi = min(cs.lo, c.lo), max(cs.hi, c.hi)
	return true
}

// Flush appends the rows of the series from a place of the list on to into, where those of earlier segments are, and drops the columns; spare is as in ReadBehind. ok is false if some did not follow.
func (cs *Columns) Flush(m *Memory, from, spare int, into []*rows.Gathered) (ok bool) {
	if cs.Empty() {
		return true
	}
	defer cs.Reset()
	times := slices.Clip(cs.times)
	for i, to := range into {
		if !to.Follows(times[0]) {
			return false
		}
		later := to.Room(spare)
		if to.Empty() {
			to.Reserve(m.state.values.take(len(times)+later, true))
		}
		place, at := to.Add(times, cs.lo, cs.hi, later), 0
		for k := range cs.of {
			p := &cs.of[k]
			if v := p.values[(from+i)*p.each+p.from:]; p.rows == 1 {
				place[at] = v[0]
			} else {
				copy(place[at:], v[:p.rows])
			}
			at += p.rows
		}
	}
	return true
}
