package kafka

import (
	"math"
	"slices"
	"sort"
	"time"

	"github.com/spillwaydb/spillway/protocols/point"
)

// later holds the rows of one partition that wait in their topic until they are due (smear.KafkaWait). It is pure.
//
//	          ┌─ due now ─┐
//	record ──▶│  + 10 s   │──▶ a write for each time ──▶ the record is settled after the last ──▶ its batch is finished ──▶ commit
//	          └─ + 20 s ──┘
//
// All rows of a series wait equally long, so that they leave in the order in which they came. Some records must not wait although other rows of their series
// do: those that opt out, those with old times, and all once the table's setting is off again. Such a record joins the last item, and all items then leave at
// once, in their order. They also do when the share is full.
//
// Invariants: items are in the order of their times; while hurry is set, no row is put before another.
type later struct {
	items []*item
	hurry hurry
	bytes int64 // of items
	rows  int   // of items
}

// hurry is why items leave before they are due.
type hurry uint8

const (
	noHurry  hurry = iota
	forRoom        // as many wait as may
	forOrder       // others would pass them
)

// item is the rows of one table that leave at one time.
type item struct {
	partition partition
	table     string
	due       time.Time
	rows      *point.Batch
	parts     []part      // of the records that they came from
	lo, hi    point.Nanos // the times of rows lie within
	bytes     int64       // as counted
	early     bool        // it left before it was due
}

// Memory of an item, of a part, and of a row in slices that grow.
const (
	itemBytes = 512
	partBytes = 128
	rowBytes  = 2 * point.FloatBytes
)

// dueAt is when a row leaves that waits from now on. Times are multiples of a tick since base, rounded down, which keeps the order of rows.
func dueAt(base, now time.Time, delay, tick time.Duration) time.Time {
	return base.Add((now.Sub(base) + delay).Truncate(tick))
}

// last is the time of the last item; none: now.
func (l *later) last(now time.Time) time.Time {
	if n := len(l.items); n > 0 && l.items[n-1].due.After(now) {
		return l.items[n-1].due
	}
	return now
}

// at returns the item of a table for a time, behind those of the same time.
func (l *later) at(p partition, table string, d *point.Dict, due time.Time) *item {
	if l.hurry != noHurry {
		due = l.last(due)
	}
	i := sort.Search(len(l.items), func(i int) bool { return l.items[i].due.After(due) })
	for j := i; j > 0 && l.items[j-1].due.Equal(due); j-- {
		if it := l.items[j-1]; it.table == table {
			if it.rows.Dict == d {
				return it
			}
			break // rows of an older dictionary leave before
		}
	}
	it := &item{partition: p, table: table, due: due, rows: &point.Batch{Dict: d}}
	l.items = append(l.items, nil)
	copy(l.items[i+1:], l.items[i:])
	l.items[i] = it
	return it
}

// holds reports whether an item of a table may have rows between the times lo and hi.
func (l *later) holds(table string, lo, hi point.Nanos) bool {
	for _, it := range l.items {
		if it.table == table && it.lo <= hi && it.hi >= lo {
			return true
		}
	}
	return false
}

// grow counts bytes of an item.
func (l *later) grow(it *item, bytes int) {
	l.bytes += int64(bytes)
	it.bytes += int64(bytes)
}

// due reports whether an item leaves now.
func (l *later) due(now time.Time) bool {
	return len(l.items) > 0 && (l.hurry != noHurry || !now.Before(l.items[0].due))
}

// leave removes and returns the items that leave now, of about room bytes, at least one if any does. They are still counted until they are given back.
func (l *later) leave(now time.Time, room int64) []*item {
	n := 0
	for n < len(l.items) && (l.hurry != noHurry || !now.Before(l.items[n].due)) && (n == 0 || l.items[n].bytes <= room) {
		room -= l.items[n].bytes
		n++
	}
	out := slices.Clone(l.items[:n])
	l.items = slices.Delete(l.items, 0, n) // and lets go of them
	return out
}

// giveBack ends a try of items that left: those with rows that are not settled come first again.
func (l *later) giveBack(all []*item) (failed bool) {
	var left []*item
	for _, it := range all {
		if it.done() {
			l.bytes, l.rows = l.bytes-it.bytes, l.rows-it.rows.Rows()
			continue
		}
		left = append(left, it)
	}
	if len(left) > 0 {
		l.items = append(left, l.items...)
	}
	if len(l.items) == 0 {
		l.items, l.hurry = nil, noHurry
	}
	return len(left) > 0
}

// done: all its records' parts are settled.
func (it *item) done() bool {
	for i := range it.parts {
		if !it.parts[i].done {
			return false
		}
	}
	return true
}

// plan puts the rows of record i of b where they wait. delays has one for each float row, then for each histogram; nil: none waits. A delay below 0 is that of a row
// that does not wait, though its series does. due is when a row with a delay leaves.
func (l *later) plan(b *batch, i int, table string, s *point.Batch, delays []point.Nanos, due func(delay point.Nanos) time.Time) {
	if l.hurry == noHurry && l.passes(table, s, delays) {
		l.hurry = forOrder
	}
	b.fates[i] = waits
	var it *item
	last := point.Nanos(-1)
	to := func(k int) {
		delay := point.Nanos(0)
		if k < len(delays) {
			delay = max(delays[k], 0)
		}
		if delay != last {
			it, last = l.at(b.ticket.partition, table, s.Dict, due(delay)), delay
		}
		l.begin(it, b, i)
	}
	for k, id := range s.IDs {
		to(k)
		it.widen(s.Times[k])
		it.rows.Append(id, s.Times[k], s.Values[k])
		it.end()
	}
	l.rows += s.Rows()
	for k, h := range s.Hists {
		to(len(s.IDs) + k)
		it.widen(h.Time)
		it.rows.Hists = append(it.rows.Hists, h)
		it.end()
		l.grow(it, len(h.H))
	}
	if len(s.Exemplars)+len(s.Metadata) > 0 { // they do not wait
		to(math.MaxInt)
		it.rows.Exemplars, it.rows.Metadata = append(it.rows.Exemplars, s.Exemplars...), append(it.rows.Metadata, s.Metadata...)
		it.end()
		rest := point.Batch{Exemplars: s.Exemplars, Metadata: s.Metadata}
		l.grow(it, rest.Bytes())
	}
}

// passes reports whether rows of a record would pass others that wait.
func (l *later) passes(table string, s *point.Batch, delays []point.Nanos) bool {
	if len(l.items) == 0 {
		return false
	}
	lo, hi := point.Nanos(math.MaxInt64), point.Nanos(math.MinInt64)
	widen := func(k int, t point.Nanos) {
		if k >= len(delays) || delays[k] < 0 {
			lo, hi = min(lo, t), max(hi, t)
		}
	}
	for k, t := range s.Times {
		widen(k, t)
	}
	for k := range s.Hists {
		widen(len(s.IDs)+k, s.Hists[k].Time)
	}
	return lo <= hi && l.holds(table, lo, hi)
}

// begin makes the last part of an item that of a record, which waits for one more then, and counts a row.
func (l *later) begin(it *item, b *batch, i int) {
	bytes := rowBytes
	if n := len(it.parts); n == 0 || it.parts[n-1].b != b || it.parts[n-1].i != i {
		if n == 0 {
			bytes += itemBytes
		}
		bytes += partBytes
		b.await(i)
		it.parts = append(it.parts, part{b: b, i: i})
	}
	l.grow(it, bytes)
}

// end notes where the rows of an item's last part end.
func (it *item) end() {
	d, p := it.rows, &it.parts[len(it.parts)-1]
	p.rows, p.hists, p.exemplars, p.metadata = len(d.IDs), len(d.Hists), len(d.Exemplars), len(d.Metadata)
}

// widen has the times of an item reach to one more.
func (it *item) widen(t point.Nanos) {
	if it.rows.Rows() == 0 {
		it.lo, it.hi = t, t
	}
	it.lo, it.hi = min(it.lo, t), max(it.hi, t)
}
