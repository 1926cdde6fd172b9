package kafka

import (
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
type queue struct {
	parts map[partition]*lane
	rings map[topicKey]*ring
	order []*ring // topics in order of their turns, the next one first
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

	// Owned by the worker that has it.
	fates   []fate
	letters map[int]*letter // of records that are to be put aside
}

// fate is how far a record got.
type fate uint8

const (
	pending fate = iota
	stored       // its rows are acked, or it has none; a letter is to be sent
	settled      // nothing is left to do
)

// work is the unit of a worker: batches of lanes of one topic.
type work struct {
	topic    topicKey
	lanes    []*lane
	batches  []*batch
	attempts int // the most of any lane
}

func newQueue() *queue {
	return &queue{parts: map[partition]*lane{}, rings: map[topicKey]*ring{}}
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
}

// drop closes a partition's lane and returns the bytes of the batches that waited. Batches at a worker come back by
// giveBack.
func (q *queue) drop(p partition) (bytes int64) {
	l := q.parts[p]
	if l == nil {
		return 0
	}
	for _, b := range l.batches {
		bytes += b.bytes
	}
	l.gone, l.batches = true, nil
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
	return !l.busy && len(l.batches) > 0 && !now.Before(l.retryAt)
}

// take returns the next work of about bytesMax, at least one batch; nil: nothing is ready. Then next, unless it is zero, is
// the time at which waiting work is to be retried.
func (q *queue) take(now time.Time, bytesMax int64) (w *work, next time.Time) {
	for i, r := range q.order {
		if w = r.take(now, bytesMax); w != nil {
			q.order = append(append(q.order[:i:i], q.order[i+1:]...), r)
			return w, time.Time{}
		}
	}
	for _, l := range q.parts {
		if !l.busy && len(l.batches) > 0 && (next.IsZero() || l.retryAt.Before(next)) {
			next = l.retryAt
		}
	}
	return nil, next
}

func (r *ring) take(now time.Time, bytesMax int64) *work {
	var w *work
	room, turned := bytesMax, 0
	for i, l := range r.lanes {
		if !l.ready(now) {
			continue
		}
		if w == nil {
			w = &work{topic: r.key}
		} else if room < l.batches[0].bytes {
			break
		}
		n := 0
		for n < len(l.batches) && (len(w.batches) == 0 || l.batches[n].bytes <= room) {
			room -= l.batches[n].bytes
			w.batches = append(w.batches, l.batches[n])
			n++
		}
		l.batches = l.batches[n:]
		l.busy = true
		w.lanes = append(w.lanes, l)
		w.attempts = max(w.attempts, l.attempts)
		turned = i + 1
	}
	r.lanes = append(append([]*lane(nil), r.lanes[turned:]...), r.lanes[:turned]...)
	return w
}

// giveBack ends work. Unsettled batches go back to the front of their lanes, not to be retried before retryAt; those of a
// partition that has gone are dropped. It calls finished for each settled batch and freed for all that will not come again.
func (q *queue) giveBack(w *work, retryAt time.Time, finished, freed func(*batch)) {
	back := map[partition][]*batch{}
	for _, b := range w.batches {
		p := b.ticket.partition
		l := q.parts[p]
		done := b.done()
		if done {
			finished(b)
		}
		if done || l == nil || l.gone || !w.has(l) {
			freed(b)
			continue
		}
		back[p] = append(back[p], b)
	}
	for _, l := range w.lanes {
		l.busy = false
		if unsettled := back[l.partition]; len(unsettled) > 0 && !l.gone {
			l.batches = append(unsettled, l.batches...)
			l.retryAt = retryAt
			l.attempts++
		} else {
			l.attempts = 0
		}
	}
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

// done: nothing is left to do for any of the records.
func (b *batch) done() bool {
	for _, f := range b.fates {
		if f != settled {
			return false
		}
	}
	return true
}
