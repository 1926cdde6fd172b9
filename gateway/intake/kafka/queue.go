package kafka

import (
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// queue holds the polled batches until they are settled, and decides which are next. It is pure: no clock, no lock, no I/O.
//
// A partition's batches are given out in order, to one worker at a time, so that later records are written later. One
// piece of work has batches of many partitions of one topic, up to a size: where records are small, one write and one
// fsync serve all. Topics alternate, and so do the partitions of a topic.
//
// Work that failed comes back to the front of its partitions and waits there until a time; other partitions go on.
//
// Rows that wait in their topic (later) are items, beside the batches. Items that are due go before batches. A batch is parked when each of its records is
// settled or waits: it is then in no queue, and is finished when its last item is settled. Parked batches and items do not count as bytes in flight: they have
// a bound of their own, laterMax, of which each partition has an equal share. When its share is full the items of a partition leave at once.
type queue struct {
	parts map[partition]*lane
	rings map[topicKey]*ring
	order []*ring // topics in order of their turns, the next one first

	laterMax   int64     // follows the memory of the process
	laterBytes int64     // of all lanes
	laterRows  int       // of all lanes
	early      [3]uint64 // rows that left before they were due, by hurry
}

// ring is a topic's lanes; the first is the next.
type ring struct {
	key   topicKey
	lanes []*lane
}

// lane is a partition's batches.
type lane struct {
	partition partition
	batches   []*batch
	later     later     // as batches, but owned by the worker while busy
	parked    int64     // bytes of parked batches
	held      int64     // what the queue counts of later and parked
	heldRows  int       // what the queue counts of later
	busy      bool      // a worker has some of its batches
	gone      bool      // the partition is not ours any more
	retryAt   time.Time // not before
	attempts  int       // failures since the last success
}

// batch is the content of a span of the tracker.
type batch struct {
	ticket  ticket
	records []*kgo.Record
	bytes   int64
	poison  *letter // instead of records: the part that could not even be read from Kafka

	// Owned by the worker that has it, or whose lane it is of.
	queued  bool // in batches of its lane
	parked  bool // its bytes are counted as parked
	fates   []fate
	open    []int32         // for each record, of how many items the rows are not settled; nil: none waited
	letters map[int]*letter // of records that are to be put aside
}

// fate is how far a record got.
type fate uint8

const (
	pending fate = iota
	waits        // its rows are in items
	stored       // its rows are acked, or it has none; a letter is to be sent
	settled      // nothing is left to do
)

// work is the unit of a worker: batches of lanes of one topic, or items of such lanes.
type work struct {
	topic    topicKey
	lanes    []*lane
	batches  []*batch // of items: those of their records
	items    []*item
	attempts int // the most of any lane

	of map[*batch]struct{} // batches, of items
}

// newQueue makes a queue in which so many bytes may wait until they are due.
func newQueue(laterMax int64) *queue {
	return &queue{parts: map[partition]*lane{}, rings: map[topicKey]*ring{}, laterMax: laterMax}
}

// assign opens a partition's lane.
func (q *queue) assign(p partition) {
	l := &lane{partition: p}
	q.parts[p] = l
	r := q.rings[p.key()]
	if r == nil {
		r = &ring{key: p.key()}
		q.rings[p.key()] = r
		q.order = append(q.order, r)
	}
	r.lanes = append(r.lanes, l)
}

// push adds a batch behind the others of its partition. The lane must be open.
func (q *queue) push(b *batch) {
	l := q.parts[b.ticket.partition]
	l.batches = append(l.batches, b)
	b.queued = true
}

// drop closes a partition's lane and returns the bytes of the batches that were in flight and at no worker; items and parked batches are forgotten. Batches at a worker
// come back by giveBack.
func (q *queue) drop(p partition) (bytes int64) {
	l := q.parts[p]
	if l == nil {
		return 0
	}
	for _, b := range l.batches {
		if !b.parked {
			bytes += b.bytes
		}
	}
	q.laterBytes, q.laterRows = q.laterBytes-l.held, q.laterRows-l.heldRows
	l.gone, l.batches, l.held, l.heldRows = true, nil, 0, 0
	delete(q.parts, p)
	r := q.rings[p.key()]
	r.lanes = without(r.lanes, l)
	if len(r.lanes) == 0 {
		delete(q.rings, p.key())
		q.order = without(q.order, r)
	}
	return bytes
}

func without[T comparable](s []T, x T) []T {
	for i, v := range s {
		if v == x {
			return append(s[:i], s[i+1:]...)
		}
	}
	return s
}

func (l *lane) ready(now time.Time) bool {
	return !l.busy && !now.Before(l.retryAt) && (l.later.due(now) || len(l.batches) > 0)
}

// next is when a lane that no worker has is ready; false: not before something changes.
func (l *lane) next() (time.Time, bool) {
	switch {
	case len(l.batches) > 0 || len(l.later.items) > 0 && l.later.hurry != noHurry:
		return l.retryAt, true
	case len(l.later.items) > 0:
		if due := l.later.items[0].due; due.After(l.retryAt) {
			return due, true
		}
		return l.retryAt, true
	}
	return time.Time{}, false
}

// full reports whether as many bytes of a lane wait as may.
func (q *queue) full(l *lane) bool {
	return l.held >= q.laterMax/int64(max(1, len(q.parts))) || q.laterBytes >= q.laterMax
}

// take returns the next work of about bytesMax, at least one batch; nil: nothing is ready. Then next, unless it is zero, is
// the time at which waiting work is to be retried.
func (q *queue) take(now time.Time, bytesMax int64) (w *work, next time.Time) {
	for i, r := range q.order {
		if w = q.nextOf(r, now, bytesMax); w != nil {
			q.order = append(append(q.order[:i:i], q.order[i+1:]...), r)
			return w, time.Time{}
		}
	}
	for _, l := range q.parts {
		if l.busy {
			continue
		}
		if at, ok := l.next(); ok && (next.IsZero() || at.Before(next)) {
			next = at
		}
	}
	return nil, next
}

// nextOf returns work of one topic: of items or of batches, whichever the first lane that is ready has. The two are never mixed, since rows of items are written without
// being smeared again, and an item goes before the batches of its lane.
//
// Then the ring turns: lanes that were ready and had work of the other kind come first, those that were served come last.
func (q *queue) nextOf(r *ring, now time.Time, bytesMax int64) *work {
	var w *work
	room, turned := bytesMax, 0
	var skipped []*lane // ready, with work of the other kind: the next ones
	for i, l := range r.lanes {
		if l.busy {
			continue
		}
		if l.later.hurry == noHurry && len(l.later.items) > 0 && q.full(l) {
			l.later.hurry = forRoom
		}
		if !l.ready(now) {
			continue
		}
		items := l.later.due(now)
		switch {
		case w == nil:
			w = &work{topic: r.key}
		case items != (w.items != nil):
			skipped = append(skipped, l)
			continue
		case items && room < l.later.items[0].bytes, !items && room < l.batches[0].bytes:
			room = 0
		}
		if room <= 0 && len(w.lanes) > 0 {
			break
		}
		if items {
			for _, it := range l.later.leave(now, room) {
				room -= it.bytes
				w.add(it)
				if it.due.After(now) && !it.early {
					it.early = true
					q.early[l.later.hurry] += uint64(it.rows.Rows())
				}
			}
			w.join(l)
			turned = i + 1
			continue
		}
		n := 0
		for n < len(l.batches) && (len(w.batches) == 0 || l.batches[n].bytes <= room) {
			room -= l.batches[n].bytes
			w.batches = append(w.batches, l.batches[n])
			l.batches[n].queued = false
			n++
		}
		l.batches = l.batches[n:]
		w.join(l)
		turned = i + 1
	}
	others := func(of []*lane) []*lane {
		return slices.DeleteFunc(slices.Clone(of), func(l *lane) bool { return slices.Contains(skipped, l) })
	}
	r.lanes = slices.Concat(skipped, others(r.lanes[turned:]), others(r.lanes[:turned]))
	return w
}

// join has a lane's work in w.
func (w *work) join(l *lane) {
	l.busy = true
	w.lanes = append(w.lanes, l)
	w.attempts = max(w.attempts, l.attempts)
}

// add adds an item, with the batches of its records.
func (w *work) add(it *item) {
	w.items = append(w.items, it)
	for i := range it.parts {
		b := it.parts[i].b
		if _, ok := w.of[b]; !ok {
			if w.of == nil {
				w.of = map[*batch]struct{}{}
			}
			w.of[b] = struct{}{}
			w.batches = append(w.batches, b)
		}
	}
}

// giveBack ends work. Unsettled batches go back to the front of their lanes, not to be retried before retryAt; those of a
// partition that has gone are dropped; so are items. It calls finished for each settled batch, and freed for all that are not in flight any more.
func (q *queue) giveBack(w *work, retryAt time.Time, finished, freed func(*batch)) {
	back := map[partition][]*batch{}
	for _, b := range w.batches {
		p := b.ticket.partition
		l := q.parts[p]
		gone := l == nil || l.gone || !w.has(l)
		done := !b.queued && b.done()
		if done {
			finished(b)
		}
		// The bytes of a batch are counted in one place: as in flight (shares), as parked (its lane), or no more. freed ends the first.
		switch {
		case b.queued: // rows of it were due, and others are still to be read
		case b.parked && (done || gone):
			b.parked = false
			if !gone {
				l.parked -= b.bytes
			}
		case done || gone:
			freed(b)
		case b.unread():
			back[p] = append(back[p], b)
		case !b.parked:
			b.parked = true
			l.parked += b.bytes
			freed(b)
		}
	}
	items := map[partition][]*item{}
	for _, it := range w.items {
		items[it.partition] = append(items[it.partition], it)
	}
	for _, l := range w.lanes {
		l.busy = false
		failed := l.later.giveBack(items[l.partition])
		if l.gone {
			continue
		}
		unsettled := back[l.partition]
		for _, b := range unsettled {
			b.queued = true
		}
		l.batches = append(unsettled, l.batches...)
		if len(unsettled) > 0 || failed {
			l.retryAt = retryAt
			l.attempts++
		} else {
			l.attempts = 0
		}
		q.count(l)
	}
}

// count counts what waits in a lane.
func (q *queue) count(l *lane) {
	bytes := l.later.bytes + l.parked
	q.laterBytes, q.laterRows = q.laterBytes+bytes-l.held, q.laterRows+l.later.rows-l.heldRows
	l.held, l.heldRows = bytes, l.later.rows
}

// has: the lane is of the same assignment.
func (w *work) has(l *lane) bool {
	for _, x := range w.lanes {
		if x == l {
			return true
		}
	}
	return false
}

// unread: something is left to do that is not in items.
func (b *batch) unread() bool {
	for _, f := range b.fates {
		if f == pending || f == stored {
			return true
		}
	}
	return b.fates == nil
}

// await adds one to the items that a record waits for.
func (b *batch) await(i int) {
	if b.open == nil {
		b.open = make([]int32, len(b.fates))
	}
	b.open[i]++
}

// done: nothing is left to do for any of the records.
func (b *batch) done() bool {
	for _, f := range b.fates {
		if f != settled {
			return false
		}
	}
	return true
}
