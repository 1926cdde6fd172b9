package lease

import (
	"container/heap"
	"slices"
)

// agenda lists the partitions that a step has to look at: those that an input was about, and those that are due. All others
// are unchanged, so a step costs as much as changed, not as much as exists.
//
//	touched by an input ──▶ todo ──planEntry──▶ wakes      look again at a time
//	                         ▲                  waiting    has a request to send, but all requests are in flight
//	                         │                  unanswered    needs one more answer of the store to be sure
//	                         │                  waiters    of a server: until it is silent (planSilent)
//	                         └──────────────── waits      of a table: until there is a newer map
//
// An event that concerns all partitions (a lapse, its end, a drain) touches all.
//
// Invariant: a partition for which the machine could do anything is in one of these.
type agenda struct {
	order    []*entry // all, sorted when asked for
	unsorted bool
	// forgotten counts the entries in order that must leave it.
	forgotten  int
	todo       []*entry
	planning   *entry // the one being planned
	wakes      wakes
	waiting    []*entry
	unanswered []*entry
	unproved   []*entry // ours by their rows, but no request since the last lapse has shown it
	over       []*entry // perhaps to be forgotten
	allowed    []string // keys of prohibitions that were withdrawn
	batch      []item
	wake       Time
	guarding   bool // every process that changes maps writes into lease rows (Beat.Guards)
	news       EverLed
}

// touch adds a partition to this step's list.
func (m *Machine) touch(e *entry) {
	if !e.touched {
		e.touched = true
		m.todo = append(m.todo, e)
	}
}

func (m *Machine) touchAll() {
	for _, e := range m.sorted() {
		m.touch(e)
	}
}

// touchWaking touches the partitions that wait for a time, such as their turn.
func (m *Machine) touchWaking() {
	for _, e := range m.wakes.h {
		m.touch(e)
	}
}

// sorted returns all partitions in order: the machine must be the same in every run.
func (m *Machine) sorted() []*entry {
	if m.forgotten > 0 {
		m.order = slices.DeleteFunc(m.order, func(e *entry) bool { return e.forgotten })
		m.forgotten = 0
	}
	if m.unsorted {
		slices.SortFunc(m.order, func(a, b *entry) int { return comparePartitions(a.p, b.p) })
		m.unsorted = false
	}
	return m.order
}

func (m *Machine) planEntries() {
	for e := m.wakes.due(m.now); e != nil; e = m.wakes.due(m.now) {
		m.touch(e)
	}
	if len(m.waiting) > 0 && m.mayAsk() {
		// No more than can be requested now, so that a long queue does not cost its length at every step.
		n := min(len(m.waiting), m.slots()*batchMax)
		for _, e := range m.waiting[:n] {
			e.queued = false
			m.touch(e)
		}
		m.waiting = slices.Delete(m.waiting, 0, n)
	}
	slices.SortFunc(m.todo, func(a, b *entry) int { return comparePartitions(a.p, b.p) })
	for _, e := range m.todo { // the share counts all partitions, including those created in this step
		m.account(e)
	}
	m.countShare()
	for i := 0; i < len(m.todo); i++ { // it may grow
		e := m.todo[i]
		e.touched = false
		m.wakes.remove(e)
		m.planning = e
		m.planEntry(e)
		m.planning = nil
		m.account(e)
	}
	clear(m.todo)
	m.todo = m.todo[:0]
}

// queue makes a partition wait for a request to be answered.
func (m *Machine) queue(e *entry) {
	if !e.queued {
		e.queued = true
		m.waiting = append(m.waiting, e)
	}
}

// account updates the sums over all partitions.
func (m *Machine) account(e *entry) {
	now := sums{
		there: !m.offline(e) && (e.present() && e.row.State != Gone || e.assigned != nil),
		held:  m.ours(e) || e.taking,
		bound: m.ours(e) || e.busy != 0,
	}
	m.count(e.sums, -1)
	m.count(now, 1)
	e.sums = now
	if e.over() {
		m.over = append(m.over, e)
	}
}

// sums is the contribution of one partition to the sums.
type sums struct{ there, held, bound bool }

func (m *Machine) count(s sums, by int) {
	if s.there {
		m.partitions += by
	}
	if s.held {
		m.held += by
	}
	if s.bound {
		m.bound += by
	}
}

// forgetOver forgets partitions that do not concern this server any more, once the watch has passed the newest of their rows that we have seen and no list is on its way:
// then nothing older can bring a row back. Withdrawn prohibitions are forgotten in the same way.
//
// Invariant: I5 (entries are of partitions that are assigned, have rows, or have something under way).
func (m *Machine) forgetOver() {
	if m.lists > 0 || len(m.over) == 0 && len(m.allowed) == 0 {
		return
	}
	later := m.over[:0]
	for _, e := range m.over {
		switch {
		case !e.over() || m.entries[e.p] != e:
		case max(e.asOf, e.bornAsOf) > m.watched:
			later = append(later, e)
		default:
			m.forget(e)
		}
	}
	clear(m.over[len(later):])
	m.over = later
	if m.forgotten > len(m.order)/2 {
		m.sorted()
	}
	m.allowed = slices.DeleteFunc(m.allowed, func(key string) bool {
		n := m.no[key]
		if n.asOf <= m.watched && !n.there {
			delete(m.no, key)
		}
		return n.asOf <= m.watched
	})
}

func (m *Machine) forget(e *entry) {
	m.count(e.sums, -1)
	e.sums, e.forgotten = sums{}, true
	m.forgotten++
	m.floor = max(m.floor, m.watched) // the watch has shown all up to there
	m.wakes.remove(e)
	delete(m.entries, e.p)
	if e.everLed {
		m.news.Forgotten = append(m.news.Forgotten, e.p)
	}
}

// wakes are partitions to look at again, by time.
type wakes struct{ h wakeHeap }

func (w *wakes) set(e *entry, t Time) {
	switch {
	case e.heapAt < 0:
		e.wakeAt = t
		heap.Push(&w.h, e)
	case t < e.wakeAt:
		e.wakeAt = t
		heap.Fix(&w.h, e.heapAt)
	}
}

func (w *wakes) remove(e *entry) {
	if e.heapAt >= 0 {
		heap.Remove(&w.h, e.heapAt)
	}
}

func (w *wakes) first() (Time, bool) {
	if len(w.h) == 0 {
		return 0, false
	}
	return w.h[0].wakeAt, true
}

// due removes and returns one that is due, or nil.
func (w *wakes) due(now Time) *entry {
	if len(w.h) == 0 || w.h[0].wakeAt > now {
		return nil
	}
	return heap.Pop(&w.h).(*entry)
}

type wakeHeap []*entry

func (h wakeHeap) Len() int { return len(h) }
func (h wakeHeap) Less(i, j int) bool {
	if h[i].wakeAt != h[j].wakeAt {
		return h[i].wakeAt < h[j].wakeAt
	}
	return comparePartitions(h[i].p, h[j].p) < 0
}
func (h wakeHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].heapAt, h[j].heapAt = i, j
}
func (h *wakeHeap) Push(x any) {
	e := x.(*entry)
	e.heapAt = len(*h)
	*h = append(*h, e)
}
func (h *wakeHeap) Pop() any {
	old := *h
	e := old[len(old)-1]
	old[len(old)-1] = nil
	*h, e.heapAt = old[:len(old)-1], -1
	return e
}
