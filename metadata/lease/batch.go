package lease

import (
	"slices"

	"github.com/spillwaydb/spillway/metadata/coord"
)

const (
	// batchMax bounds the partitions in one transaction of the store; etcd allows 128 conditions and 128 writes.
	batchMax = 40
	// conditionsMax bounds its conditions.
	conditionsMax = 120
	// proveMax bounds the rows that one transaction compares to end a lapse.
	proveMax = 100
)

// item is the requested write for one partition. Items of a step are sent together, about forty to a transaction. If one of them finds a changed row, the
// whole transaction fails and is halved until that item fails alone: the others are not held up.
type item struct {
	e          *entry
	what       itemKind
	lease      Lease // the row after this write
	bore       bool  // it writes the born row too
	conditions []coord.Condition
	writes     []coord.Write
}

type itemKind uint8

const (
	itemTake itemKind = iota
	itemRelease
	itemInSync
)

// pending is the value of e.busy from when it enters the batch until it is sent, in the same step.
const pending = ^uint64(0)

func (m *Machine) add(i item) {
	i.e.busy = pending
	m.batch = append(m.batch, i)
}

// slots is the number of further requests for partitions that may be in flight.
func (m *Machine) slots() int {
	limit := m.set.AcquireMax
	if m.now < m.slow {
		limit = min(2, limit)
	}
	return limit - m.acquires
}

// mayAsk bounds requests for partitions, to a few while the store has trouble (C120).
func (m *Machine) mayAsk() bool { return len(m.batch)/batchMax+1 <= m.slots() }

// flush sends the requests that the step has gathered.
func (m *Machine) flush() {
	for len(m.batch) > 0 {
		n := fits(m.batch)
		m.sendBatch(slices.Clone(m.batch[:n]))
		m.batch = slices.Delete(m.batch, 0, n)
	}
}

// fits returns how many of the first items fit into one transaction.
func fits(items []item) int {
	seen := map[string]bool{}
	for n, i := range items {
		for _, c := range i.conditions {
			seen[c.Key] = true
		}
		if n > 0 && (n == batchMax || len(seen) > conditionsMax) {
			return n
		}
	}
	return len(items)
}

func (m *Machine) sendBatch(items []item) {
	var conditions []coord.Condition
	var writes []coord.Write
	seen := map[string]bool{}
	for _, i := range items {
		for _, c := range i.conditions {
			if !seen[c.Key] { // conditions on the same key are equal: all are of this moment
				seen[c.Key] = true
				conditions = append(conditions, c)
			}
		}
		writes = append(writes, i.writes...)
	}
	id := m.commit(Acquire, request{job: jobBatch, items: items}, conditions, writes...)
	for _, i := range items {
		i.e.busy = id
	}
}

// settle handles the answer to a batch.
func (m *Machine) settle(r request, a Answer) {
	if n := len(r.items); a.Outcome == Conflict && n > 1 {
		for _, half := range [][]item{r.items[:n/2], r.items[n/2:]} {
			m.sendBatch(half)
		}
		return
	}
	for _, i := range r.items {
		m.settleItem(i, r, a)
	}
}

func (m *Machine) settleItem(i item, r request, a Answer) {
	e := i.e
	e.busy, e.taking = 0, false
	m.touch(e)
	switch a.Outcome {
	case Unknown, Throttled:
		e.reread, e.look, e.notBefore = true, []string{e.rowKey}, m.now+m.set.RetryAfter
		return
	case Conflict:
		// A compared row has changed: the lease row, a heartbeat, the table's, a prohibition. Read them all before the next try.
		e.reread, e.ready, e.look, e.notBefore = true, false, []string{e.rowKey}, m.now
		if i.what == itemTake {
			e.look = append(e.look, e.bornKey, noPrefix+e.p.path()+"/", SweptKey(e.p.Table), beatPrefix)
			e.notBefore = m.now + m.jitter(m.set.RetryAfter)
		}
		return
	}
	if a.Revision > e.asOf {
		e.asOf, e.rev, e.row, e.unreadable, e.since, e.ready = a.Revision, a.Revision, i.lease, false, m.mark(), false
	}
	if i.what == itemTake && e.rev == a.Revision && r.good && r.lapses == m.lapses {
		e.proved = m.lapses + 1
	}
	if i.bore {
		m.observeBorn(e, a.Revision, true)
	}
	m.showsLed(e)
	if i.what == itemInSync {
		m.answerInSync(e, true)
	}
}

// prove compares the rows that name us, after a renewal proved good: a server that acquires one later must have waited since that renewal.
func (m *Machine) prove() {
	if !m.good(m.now) || m.floor == 0 {
		return
	}
	rows := slices.DeleteFunc(m.unproved, func(e *entry) bool {
		gone := e.forgotten || !m.ours(e) || e.proved == m.lapses+1
		if gone {
			e.proving = false
		}
		return gone
	})
	m.unproved = nil
	for part := range slices.Chunk(rows, proveMax) {
		m.sendProof(part)
	}
}

func (m *Machine) sendProof(entries []*entry) {
	var conditions []coord.Condition
	var items []item
	for _, e := range entries {
		conditions = append(conditions, coord.Condition{Key: e.rowKey, Revision: e.rev})
		items = append(items, item{e: e, conditions: conditions[len(conditions)-1:]})
	}
	m.commit(Renew, request{job: jobProve, items: items}, conditions)
}

func (m *Machine) provedRows(r request, a Answer) {
	current := r.good && r.lapses == m.lapses
	if n := len(r.items); a.Outcome == Conflict && n > 1 && current {
		for _, half := range [][]item{r.items[:n/2], r.items[n/2:]} {
			var es []*entry
			for _, i := range half {
				es = append(es, i.e)
			}
			m.sendProof(es)
		}
		return
	}
	for _, i := range r.items {
		e := i.e
		e.proving = false
		m.touch(e)
		switch {
		case !current: // the answer is outdated
		case a.Outcome == Done && e.rev == i.conditions[0].Revision:
			e.proved = m.lapses + 1
		case a.Outcome == Conflict:
			e.proveAt = m.now + m.set.RetryAfter
			if e.busy == 0 {
				e.reread, e.look = true, []string{e.rowKey}
			}
		case a.Outcome != Done:
			e.proveAt = m.now + m.set.RetryAfter
		}
	}
}
