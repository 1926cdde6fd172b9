package remotewrite

import "github.com/spillwaydb/spillway/protocols/point"

// Where series that are not in the Dict follow each other, as in the first requests of a sender, each would wait alone
// for the Dict's tables, which are in no cache. So the next ones of the request are looked up, and numbered, together:
//
//	request ── unknown ─ unknown ─ ┌ aheadSeries series ┐ ─ …
//	                               └ hash all ▶ look all up ▶ number those that are new ┘ ▶ read each one's rows
//
// A series in the Dict costs a comparison. Mistakes in a series are found when it is read: here it is passed over.
const (
	aheadSeries = 32 // a core waits for 10 to 16 places of memory at once
	aheadAfter  = 2  // unknown series in a row
)

// ahead is the series of a request that were looked up before they are read.
type ahead struct {
	unknown   int // in a row, up to now
	list      []place
	next      int // of list, to be read
	hashes    []point.Hash
	ids       []point.SeriesID
	fresh     point.Fresh
	canonical canonical // of fresh
	listAt    []int     // of list, by set in fresh
}

// place is where a series lies in the body: from its tag on, its labels (packed references in 2.0) and what follows them.
type place struct{ at, labels, rest, end int }

// reset forgets the series of the last request.
func (a *ahead) reset() { a.list, a.next = a.list[:0], 0 }

// due reports whether the next series should be looked up together with those behind it.
func (a *ahead) due() bool { return a.unknown >= aheadAfter && a.next == len(a.list) }

// take returns the result for the series at that place of the body: its hash and its number, or NoSeries.
func (a *ahead) take(at int) (h point.Hash, id point.SeriesID, ok bool) {
	if a.next >= len(a.list) || a.list[a.next].at != at {
		return h, id, false
	}
	h, id = a.hashes[a.next], a.ids[a.next]
	a.next++
	return h, id, true
}

func (a *ahead) begin() {
	a.reset()
	a.hashes, a.ids, a.listAt = a.hashes[:0], a.ids[:0], a.listAt[:0]
	a.fresh.Reset()
	a.canonical.reset()
}

func (a *ahead) add(p place, h point.Hash) { a.list, a.hashes = append(a.list, p), append(a.hashes, h) }

// number looks all up and gives numbers to those that are new. labels appends the canonical labels of one to dst, or
// reports that it cannot read them.
func (a *ahead) number(d *point.Dict, labels func(dst []byte, p place) ([]byte, bool)) {
	a.ids = d.LookupAll(a.hashes, a.ids)
	for i, id := range a.ids {
		if id != point.NoSeries {
			continue
		}
		var ok bool
		if a.fresh.Text, ok = labels(a.fresh.Text, a.list[i]); !ok {
			a.fresh.Drop()
			continue
		}
		a.fresh.End(a.hashes[i])
		a.listAt = append(a.listAt, i)
	}
	if len(a.listAt) == 0 {
		a.unknown = 0 // found again, or not ours
		return
	}
	_ = d.InternAll(&a.fresh) // a series that finds no room is refused when it is read
	for i, id := range a.fresh.IDs {
		a.ids[a.listAt[i]] = id
	}
}
