package lease

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/protocols/rank"
)

// Self is the process that a Machine speaks for. Store must be locked by the process for as long as it runs: a row that
// names an earlier boot of the same store is taken at once, because the lock proves that boot dead.
type Self struct {
	Server topology.ServerID
	Boot   Boot
	Store  StoreID
}

// Machine holds one process's leases. It belongs to one goroutine.
type Machine struct {
	// Constant after New.
	self Self
	set  Settings
	rng  *rand.Rand

	// What is known of the store.
	rev     coord.Revision // the highest seen
	floor   coord.Revision // as of which all rows were listed: what is older is no news, though it may come later
	ear     ear
	beats   map[topology.ServerID]*beatRow
	entries map[Partition]*entry
	order   []Partition            // of entries, sorted: the machine must be the same machine in every run
	no      map[string]prohibition // by key

	// Our heartbeat, beat.go.
	beat heartbeat
	// fresh: all rows were read after a renewal proved good, and the heartbeat has not lapsed since. Nothing acts
	// without it, because what was read before a lapse may have been taken during it.
	fresh  bool
	lapses int // how many there were

	// Requests in flight.
	nextID   uint64
	asked    map[uint64]request
	acquires int // of those, the ones for partitions
	lists    int // of those, lists of any kind
	scanAt   Time
	slow     Time // until when the store is spared what can wait (C120)

	// What we were told.
	wall     time.Time // as of wallAt
	wallAt   Time
	load     float64
	draining bool
	leave    bool
	left     bool
	given    []Partition // given away last by drain or share
	moveAt   Time        // when the next may go

	// The servers' clocks, clocks.go: the median is our own time and clock, in nanoseconds.
	clocks     rank.Servers
	clock      int64
	clockKnown bool

	// As of this Step.
	now   Time
	out   []Effect
	wake  Time
	held  int // rows that name us, and takes in flight
	share int // MAXCOUNT: ceil(partitions / servers)
}

// prohibition is what is known of a prohibition's row. One that was deleted is remembered until a list of all rows is newer: a list
// from before would bring it back.
type prohibition struct {
	asOf  coord.Revision
	there bool
}

type request struct {
	job    job
	p      Partition
	sent   Time
	n      uint64 // of a renewal
	lapses int    // as of sending
	good   bool   // the heartbeat was good at sending
	prefix string
	lease  Lease // as it will be if this is done
	bore   bool  // it writes the born row too
}

type job uint8

const (
	jobRenew job = iota
	jobFindBeat
	jobScan
	jobProbe
	jobReread
	jobTake
	jobRelease
	jobInSync
)

// New makes the machine of a process that holds nothing yet. rng makes jitter and nonces. Errors are Invalid.
func New(self Self, s Settings, rng *rand.Rand) (*Machine, error) {
	s.setDefaults()
	if err := s.Validate(); err != nil {
		return nil, err
	}
	return &Machine{
		self: self, set: s, rng: rng,
		beats: map[topology.ServerID]*beatRow{}, entries: map[Partition]*entry{}, no: map[string]prohibition{},
		asked: map[uint64]request{}, beat: heartbeat{sent: map[uint64]Time{}},
	}, nil
}

// MayAct reports whether this process may act for the partition now, and at which epoch. It is what every operation that
// changes state asks first (C105), with a clock that counts suspends; it costs a map look-up.
func (m *Machine) MayAct(p Partition, now Time) (point.Epoch, bool) {
	e := m.entries[p]
	if e == nil || !e.leading || !m.good(now) {
		return 0, false
	}
	return e.row.Epoch, true
}

// GoodUntil is when every lease of this process ends unless the heartbeat is renewed before.
func (m *Machine) GoodUntil() Time { return m.beat.goodUntil }

// Wake is when the machine wants the next Tick at the latest.
func (m *Machine) Wake() Time { return m.wake }

func (m *Machine) good(now Time) bool { return m.fresh && now < m.beat.goodUntil }

// Step takes one input at a time of the process's own clock, which never goes back, and appends what is to be done.
func (m *Machine) Step(now Time, in Input, out []Effect) []Effect {
	m.now, m.out = now, out
	if m.fresh && !m.good(now) {
		m.lapse("the heartbeat was not renewed in time")
	}
	switch in := in.(type) {
	case Tick:
		m.tickClocks(in.Wall)
	case Answer:
		m.answer(in)
	case Watched:
		for _, e := range in.Events {
			if e.Revision > m.floor {
				m.observe(e.Key, e.Revision, e.Value, !e.Deleted, true)
			}
		}
	case Listed:
		m.ear.answer(now, m.gapMax())
		m.observeList(Prefix, in.Rows, in.Revision)
	case Assigned:
		m.entry(in.Partition).assigned = &in
	case Assignments:
		for i := range in.All {
			m.entry(in.All[i].Partition).assigned = &in.All[i]
		}
	case Unassigned:
		if e := m.entries[in.Partition]; e != nil {
			e.assigned = nil
		}
	case Loaded:
		m.load = in.Load
	case GiveUp:
		if e := m.entries[in.Partition]; e != nil && m.ours(e) {
			m.letGo(e, in.Why, true)
		}
	case Offer:
		if e := m.entries[in.Partition]; e != nil && m.ours(e) && e.busy == 0 && m.someoneFor(e) {
			m.letGo(e, in.Why, true)
		}
	case Stopped:
		if e := m.entries[in.Partition]; e != nil && !e.leading {
			e.running, e.ends = false, in.Ends
		}
	case SetInSync:
		m.wantInSync(in)
	case Drain:
		m.draining = in.On
		m.beat.next = now
	case Leave:
		m.leave = true
		m.beat.next = now
	}
	m.plan()
	out, m.out = m.out, nil
	return out
}

// plan does what the time and what is known ask for, most urgent first.
func (m *Machine) plan() {
	m.wake = m.now + m.set.RenewEvery
	m.planBeat()
	m.planScan()
	m.count()
	m.planMoves()
	free := true
	for _, p := range m.order {
		e := m.entries[p]
		m.planEntry(e)
		free = free && !m.ours(e) && e.busy == 0
	}
	if m.leave && free && !m.left && (m.fresh || m.beat.n == 0) {
		m.left = true
		m.out = append(m.out, Left{})
	}
	if m.fresh {
		m.at(m.beat.goodUntil)
	}
}

// at asks to be woken at t or before.
func (m *Machine) at(t Time) { m.wake = min(m.wake, max(t, m.now)) }

// lapse ends everything this process leads; it begins again when all rows have been read anew.
func (m *Machine) lapse(why string) {
	m.fresh = false
	m.lapses++
	m.scanAt = m.now
	for _, p := range m.order {
		if e := m.entries[p]; e.leading {
			m.stop(e, why, m.ours(e))
		}
	}
}

// Asking.

func (m *Machine) commit(p Priority, r request, conditions []coord.Condition, writes ...coord.Write) uint64 {
	id := m.ask(r)
	m.out = append(m.out, Commit{ID: id, Priority: p, Conditions: conditions, Writes: writes})
	return id
}

func (m *Machine) list(p Priority, r request) uint64 {
	m.lists++
	id := m.ask(r)
	m.out = append(m.out, List{ID: id, Priority: p, Prefix: r.prefix})
	return id
}

func (m *Machine) ask(r request) uint64 {
	m.nextID++
	if r.job >= jobReread {
		m.acquires++
	}
	r.sent, r.lapses, r.good = m.now, m.lapses, m.now < m.beat.goodUntil
	m.asked[m.nextID] = r
	return m.nextID
}

// mayAsk bounds requests for partitions, to a few while the store has trouble (C120).
func (m *Machine) mayAsk() bool {
	if m.now < m.slow {
		return m.acquires < min(2, m.set.AcquireMax)
	}
	return m.acquires < m.set.AcquireMax
}

func (m *Machine) answer(a Answer) {
	r, ok := m.asked[a.ID]
	if !ok {
		return
	}
	delete(m.asked, a.ID)
	if r.prefix != "" {
		m.lists--
	}
	if r.job >= jobReread {
		m.acquires--
	}
	m.rev = max(m.rev, a.Revision)
	switch a.Outcome {
	case Unknown, Throttled:
		m.slow = m.now + 5*m.set.RenewEvery
	default:
		m.ear.answer(m.now, m.gapMax())
	}
	if r.prefix != "" && a.Outcome == Done {
		m.observeList(r.prefix, a.Rows, a.Revision)
	}
	switch r.job {
	case jobRenew:
		m.renewed(r, a)
	case jobFindBeat:
		m.foundBeat(a)
	case jobScan:
		m.scanned(r, a)
	case jobProbe:
		m.beat.probing = false
	default:
		m.settle(m.entries[r.p], r, a)
	}
}

// planScan reads all rows: at once after a lapse, and now and then in case that the watch missed something.
func (m *Machine) planScan() {
	if m.beat.scanning {
		return
	}
	priority := Scan
	switch {
	case !m.fresh && m.now < m.beat.goodUntil: // nothing acts before this is answered
		priority = Renew
		if m.now < m.scanAt {
			m.at(m.scanAt)
			return
		}
	case !m.fresh:
		return
	case m.now < m.scanAt || m.now < m.slow:
		m.at(max(m.scanAt, m.slow))
		return
	}
	m.beat.scanning = true
	m.list(priority, request{job: jobScan, prefix: Prefix})
}

func (m *Machine) scanned(r request, a Answer) {
	m.beat.scanning = false
	if a.Outcome != Done {
		m.scanAt = m.now + m.set.RetryAfter
		return
	}
	m.scanAt = m.now + m.jitter(m.set.ScanEvery)
	if r.good && r.lapses == m.lapses && m.now < m.beat.goodUntil {
		m.fresh = true
	}
}

// jitter gives d, give or take a tenth, so that servers do not move in step.
func (m *Machine) jitter(d time.Duration) time.Duration {
	return time.Duration(float64(d) * (0.9 + 0.2*m.rng.Float64()))
}

func (m *Machine) nonce() string { return fmt.Sprintf("%s-%016x", m.self.Boot, m.rng.Uint64()) }

// Seeing.

func (m *Machine) entry(p Partition) *entry {
	if e := m.entries[p]; e != nil {
		return e
	}
	e := &entry{p: p, rowKey: RowKey(p), bornKey: bornKey(p)}
	m.entries[p] = e
	i, _ := slices.BinarySearchFunc(m.order, p, comparePartitions)
	m.order = slices.Insert(m.order, i, p)
	return e
}

func comparePartitions(a, b Partition) int {
	if c := strings.Compare(a.Table, b.Table); c != 0 {
		return c
	}
	switch {
	case a.ID < b.ID:
		return -1
	case a.ID > b.ID:
		return 1
	}
	return 0
}

// observeList takes in all rows under a prefix as of a revision: what is not among them is not there.
func (m *Machine) observeList(prefix string, rows []coord.Row, rev coord.Revision) {
	if rev < m.floor {
		return
	}
	seen := make(map[string]bool, len(rows))
	for _, row := range rows {
		seen[row.Key] = true
		m.observe(row.Key, row.Revision, row.Value, true, false)
	}
	gone := func(key string) bool { return strings.HasPrefix(key, prefix) && !seen[key] }
	for _, p := range m.order {
		e := m.entries[p]
		if gone(e.rowKey) {
			m.observeRow(e, rev, nil, false, false)
		}
		if gone(e.bornKey) {
			e.observeBorn(rev, false)
		}
	}
	for s := range m.beats {
		if gone(BeatKey(s)) {
			m.observe(BeatKey(s), rev, nil, false, false)
		}
	}
	if strings.HasPrefix(noPrefix, prefix) {
		for key, n := range m.no {
			if !seen[key] && n.asOf <= rev {
				delete(m.no, key)
			}
		}
	}
	if prefix == Prefix {
		m.floor = rev
		m.prune()
	}
	m.rev = max(m.rev, rev)
}

// observe takes in one row as of a revision. inOrder: no earlier change of it was missed.
func (m *Machine) observe(key string, rev coord.Revision, value []byte, present, inOrder bool) {
	m.rev = max(m.rev, rev)
	switch {
	case strings.HasPrefix(key, rowPrefix):
		if p, ok := parsePath(key[len(rowPrefix):]); ok {
			m.observeRow(m.entry(p), rev, value, present, inOrder)
		}
	case strings.HasPrefix(key, beatPrefix):
		m.observeBeat(topology.ServerID(key[len(beatPrefix):]), rev, value, present)
	case strings.HasPrefix(key, bornPrefix):
		if p, ok := parsePath(key[len(bornPrefix):]); ok {
			m.entry(p).observeBorn(rev, present)
		}
	case strings.HasPrefix(key, noPrefix) && rev > m.no[key].asOf:
		m.no[key] = prohibition{asOf: rev, there: present}
	}
}

// ear counts the time in which the store answered. Time without answers is nobody's fault and proves nothing: after the
// store was away for all, everybody's heartbeat gets its chance first (C119).
type ear struct {
	heard bool
	total Time // between answers that followed each other closely
	last  Time // when the last came
}

func (e *ear) answer(now, gapMax Time) {
	if e.heard && now-e.last <= gapMax {
		e.total += now - e.last
	}
	e.heard, e.last = true, now
}

// mark is a moment to count from: never before now, whatever the next answer will add to total.
func (e *ear) mark(now, gapMax Time) Time {
	if !e.heard || now-e.last > gapMax {
		return e.total
	}
	return e.total + now - e.last
}

func (m *Machine) gapMax() Time { return 2 * m.set.RenewEvery }

func (m *Machine) mark() Time { return m.ear.mark(m.now, m.gapMax()) }
