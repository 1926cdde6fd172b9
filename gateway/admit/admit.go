package admit

import (
	"math"
	"time"

	"github.com/spillwaydb/spillway/protocols/clock"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

// Bounds are the times a table keeps, both ends included.
type Bounds struct{ Lo, Hi point.Nanos }

// Everything is a table without retention or horizon.
var Everything = Bounds{Lo: math.MinInt64, Hi: math.MaxInt64}

// Counts is the number of rows refused by each reason: floats and histograms together.
type Counts struct {
	Old   int // below the table's retention
	Ahead int // beyond the table's or the clock's horizon
	// Exemplars outside, whichever the end.
	Exemplars int
}

// Batch holds b against the limits at time now. The range of the table is that of now.Earliest. Rows outside table or more than FutureMax ahead of now are removed
// and recorded by b.Refuse with their item, one refusal for neighbouring rows of an item; the others keep their order,
// and b.Item keeps finding their item. Exemplars outside are removed, too, but are no refused rows: their series repeats one until the next is observed,
// long after its time, and the samples beside it are good. The error is TooLarge: the request has more than RowsMax rows and none is to be
// accepted.
//
// When nothing is refused, Batch reads b.Times once and allocates nothing.
func (s Settings) Batch(b *point.Batch, now clock.Reading, table Bounds) (Counts, error) {
	if b.Rows() > s.RowsMax {
		return Counts{}, fault.Errorf(fault.TooLarge, "%d rows in one request, at most %d are taken", b.Rows(), s.RowsMax)
	}
	w := s.window(now, table)
	if w.Lo > w.Hi { // a retention that ends ahead of the clock keeps nothing
		w.Lo = w.Hi
	}
	var c Counts
	if i := w.firstOutside(b.Times); i < len(b.Times) {
		c.add(w.compactRows(b, i))
	}
	if len(b.Hists) > 0 {
		c.add(w.compactHists(b))
	}
	if len(b.Exemplars) > 0 {
		c.add(w.compactExemplars(b))
	}
	return c, nil
}

// Outside counts the rows that Batch would refuse. It changes nothing.
func (s Settings) Outside(b *point.Batch, now clock.Reading, table Bounds) (c Counts) {
	w := s.window(now, table)
	count := func(t point.Nanos) {
		switch {
		case t < w.Lo:
			c.Old++
		case t > w.Hi:
			c.Ahead++
		}
	}
	for _, t := range b.Times {
		count(t)
	}
	for i := range b.Hists {
		count(b.Hists[i].Time)
	}
	return c
}

func (s Settings) window(now clock.Reading, table Bounds) window {
	w := window{Bounds: table}
	// Senders drop rows that are refused: while a clock is in doubt, only those that are wrong by both go.
	if ahead := saturatingAdd(now.Latest, int64(s.FutureMax)); s.FutureMax > 0 && ahead < w.Hi {
		w.Hi, w.now = ahead, now.Latest
	}
	if from := now.Earliest; s.PastMax > 0 && from > math.MinInt64+int64(s.PastMax) && from-int64(s.PastMax) > w.Lo {
		w.Lo, w.past = from-int64(s.PastMax), s.PastMax
	}
	return w
}

func (c *Counts) add(o Counts) {
	c.Old, c.Ahead, c.Exemplars = c.Old+o.Old, c.Ahead+o.Ahead, c.Exemplars+o.Exemplars
}

func saturatingAdd(a, b int64) int64 {
	if b > 0 && a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

// window is the range of times that one batch is checked against.
type window struct {
	Bounds
	now  point.Nanos   // set when Hi is due to the clock and not to the table
	past time.Duration // set when Lo is
}

// outside is one comparison: times below Lo wrap around to beyond the width.
func (w *window) outside(t point.Nanos) bool {
	return uint64(t)-uint64(w.Lo) > uint64(w.Hi)-uint64(w.Lo)
}

func (w *window) firstOutside(times []point.Nanos) int {
	lo, width := uint64(w.Lo), uint64(w.Hi)-uint64(w.Lo)
	for i, t := range times {
		if uint64(t)-lo > width {
			return i
		}
	}
	return len(times)
}

// compactRows moves the float rows that are kept to the front, starting at the first that is not. ItemRows goes along:
// an entry becomes the number of kept rows before its item.
func (w *window) compactRows(b *point.Batch, from int) Counts {
	r := refuser{b: b, w: w}
	kept, item := from, b.Item(from) // items up to this number began at or before row from
	for i := from; i < len(b.Times); i++ {
		for item < len(b.ItemRows) && b.ItemRows[item] == uint32(i) {
			b.ItemRows[item] = uint32(kept)
			item++
		}
		if t := b.Times[i]; w.outside(t) {
			r.refuse(item, b.IDs[i], t)
			continue
		}
		b.IDs[kept], b.Times[kept], b.Values[kept] = b.IDs[i], b.Times[i], b.Values[i]
		kept++
	}
	for ; item < len(b.ItemRows); item++ {
		b.ItemRows[item] = uint32(kept)
	}
	b.Truncate(kept)
	return r.finish()
}

func (w *window) compactHists(b *point.Batch) Counts {
	r := refuser{b: b, w: w}
	kept := b.Hists[:0]
	for _, h := range b.Hists {
		if w.outside(h.Time) {
			r.refuse(0, h.ID, h.Time)
			continue
		}
		kept = append(kept, h)
	}
	clear(b.Hists[len(kept):]) // let go of the histograms' memory
	b.Hists = kept
	return r.finish()
}

func (w *window) compactExemplars(b *point.Batch) Counts {
	r := refuser{b: b, w: w, exemplars: true}
	kept := b.Exemplars[:0]
	for _, e := range b.Exemplars {
		if w.outside(e.Time) {
			r.refuse(0, e.ID, e.Time)
			continue
		}
		kept = append(kept, e)
	}
	clear(b.Exemplars[len(kept):])
	b.Exemplars = kept
	return r.finish()
}
