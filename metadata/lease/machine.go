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
// names an earlier boot of the same store is acquired at once, because the lock proves that boot dead.
type Self struct {
	Server topology.ServerID
	Boot   Boot
	Store  StoreID
}

// Machine holds one process's leases. It belongs to one goroutine. A step costs as much as changed: see agenda.
type Machine struct {
	// Constant after New.
	self Self
	set  Settings
	rng  *rand.Rand

	// The store, as last seen.
	rev       coord.Revision // the highest seen
	floor     coord.Revision // revision of the last list of all rows: older changes are ignored, though they may come later
	watched   coord.Revision // up to which the watch has shown every change
	reachable reachable
	beats     map[topology.ServerID]*beatRow
	entries   map[Partition]*entry
	no        map[string]prohibition // by key
	tables    map[string]*table

	// Our heartbeat, beat.go.
	beat heartbeat
	// good: as of the last step, a renewal sent less than ValidFor ago proved good.
	wasGood bool
	// lapses counts how often that ended. A row that was proved before a lapse may have been acquired meanwhile.
	lapses int

	// Requests in flight.
	nextID   uint64
	asked    map[uint64]request
	acquires int // of those, the ones for partitions
	lists    int // of those, lists of any kind
	scanAt   Time
	slow     Time // until when deferrable requests are held back (C120)

	// As received in inputs.
	wall     time.Time // as of wallAt
	wallAt   Time
	load     float64
	readOnly string   // why no rows are accepted
	room     int64    // bytes that the disk has room for; 0: not known
	noRoom   []string // partitions of which copies did not fit
	writes   *Writes  // nil: not known
	hot      map[Partition]int64
	damaged  damaged
	disk     disk
	draining bool
	leave    bool
	left     bool
	given    []Partition // last released by drain or share
	moveAt   Time        // when the next may be released
	lookAt   Time        // when to look again for one that can be released

	// The servers' clocks, clocks.go: the median is our own time and clock, in nanoseconds.
	clocks      rank.Servers
	clock       int64 // by heartbeats that came fast: stamps are compared with it
	clockNewest int64 // by the newest heartbeats: ours is judged by it
	clockKnown  bool
	clockOff    bool // ours is off: partitions that others can lead are handed over
	clockTurn   Time // since when clockOff should change; 0: it should not

	clocksLearnt  bool // the median has had the clocks of all live servers
	clocksAwaited bool
	clocksFrom    Time // in reachable time: since when they are waited for

	// As of this Step.
	now Time
	out []Effect
	agenda

	// Shares (C108), as of the entries that were planned.
	partitions int // that exist, as far as we have seen
	held       int // rows that name us, and acquisitions in flight
	bound      int // rows that name us, and requests in flight
	share      int // MAXCOUNT: ceil(partitions / servers)
}

// prohibition is a prohibition's row as last seen. A deleted one is remembered until no older list can come any more, since that would bring it back.
type prohibition struct {
	asOf  coord.Revision
	there bool
}

type request struct {
	job    job
	p      Partition
	table  string            // of a table's row
	server topology.ServerID // of a missing heartbeat row
	sent   Time
	n      uint64 // of a renewal
	lapses int    // as of sending
	good   bool   // the heartbeat was good at sending
	prefix string
	seen   coord.Revision // of the row asked for, as of sending
	items  []item         // of a batch
}

type job uint8

const (
	jobRenew job = iota
	jobFindBeat
	jobScan
	jobProbe
	jobTable
	jobProve
	jobReread
	jobMissing
	jobBatch
)

// New makes the machine of a process without leases. rng makes jitter and nonces. Errors are Invalid.
func New(self Self, s Settings, rng *rand.Rand) (*Machine, error) {
	s.setDefaults()
	if err := s.Validate(); err != nil {
		return nil, err
	}
	return &Machine{
		self: self, set: s, rng: rng,
		beats: map[topology.ServerID]*beatRow{}, entries: map[Partition]*entry{}, no: map[string]prohibition{}, tables: map[string]*table{},
		asked: map[uint64]request{}, beat: heartbeat{sent: map[uint64]Time{}},
	}, nil
}

// MayAct reports whether this process may act for the partition now, and at which epoch. Every operation that changes state
// calls it first (C105), with a clock that counts suspends; it costs a map look-up.
func (m *Machine) MayAct(p Partition, now Time) (point.Epoch, bool) {
	e := m.entries[p]
	if e == nil || !e.leading || !m.good(now) {
		return 0, false
	}
	return e.row.Epoch, true
}

// Wake returns the latest time for the next Tick.
func (m *Machine) Wake() Time { return m.wake }

func (m *Machine) good(now Time) bool { return now < m.beat.goodUntil }

// Step handles one input at a time of the process's own clock, which never goes back, and appends the effects.
func (m *Machine) Step(now Time, in Input, out []Effect) []Effect {
	m.now, m.out = now, out
	if m.wasGood && !m.good(now) {
		m.lapse("the heartbeat was not renewed in time")
	}
	switch in := in.(type) {
	case Tick:
		m.tickClocks(in.Wall)
	case Answer:
		m.answer(in)
	case Watched:
		m.watch(in)
	case Listed:
		m.answered()
		m.observeList(Prefix, in.Rows, in.Revision)
		m.watched = max(m.watched, in.Revision)
	case Assigned:
		m.assign(&in)
	case Assignments:
		for i := range in.All {
			m.assign(&in.All[i])
		}
	case Unassigned:
		if e := m.entries[in.Partition]; e != nil {
			e.assigned = nil
			m.touch(e)
		}
	case MapIs:
		m.mapIs(in)
	case Loaded:
		m.setLoad(in)
	case Damaged:
		m.setDamaged(in.All)
	case GiveUp:
		if e := m.entries[in.Partition]; e != nil && m.ours(e) {
			m.letGo(e, in.Why, !in.Again)
			m.touch(e)
		}
	case Offer:
		if e := m.entries[in.Partition]; e != nil && m.ours(e) && e.busy == 0 {
			if to, ok := m.someoneFor(e, in.Misplaced, false); ok {
				m.letGoTo(e, in.Why, to)
			}
		}
	case Stopped:
		if e := m.entries[in.Partition]; e != nil && !e.leading {
			e.running, e.ends = false, in.Ends
			m.touch(e)
		}
	case SetInSync:
		m.wantInSync(in)
	case Drain:
		m.draining = in.On
		m.beat.next = now
		m.touchAll()
	case Leave:
		m.leave = true
		m.beat.next = now
		m.touchAll()
	}
	m.plan()
	if len(m.news.Led)+len(m.news.Forgotten) > 0 {
		m.out = append(m.out, m.news)
		m.news = EverLed{}
	}
	out, m.out = m.out, nil
	return out
}

func (m *Machine) setLoad(in Loaded) {
	m.load, m.readOnly, m.room, m.noRoom = in.Load, in.ReadOnly, in.Room, nil
	for _, p := range in.NoRoom[:min(len(in.NoRoom), noRoomMax)] {
		m.noRoom = append(m.noRoom, p.String())
	}
	m.setWrites(in)
	m.judgeDisk(in.Fsync)
}

func (m *Machine) watch(in Watched) {
	for _, e := range in.Events {
		if e.Revision > m.floor {
			m.observe(e.Key, e.Revision, e.Value, !e.Deleted, true)
		}
		m.watched = max(m.watched, e.Revision)
	}
}

// assign applies the changes of a partition's assignment. Without a change it costs almost nothing.
func (m *Machine) assign(in *Assigned) {
	e := m.entry(in.Partition)
	if a := e.assigned; a != nil && a.Placement == in.Placement && a.BrickEpoch == in.BrickEpoch && a.MinInSync == in.MinInSync && slices.Equal(a.Placements, in.Placements) && slices.Equal(a.Joining, in.Joining) && slices.Equal(a.Parents, in.Parents) &&
		e.row.current(e.rev, m.seqOf(e), m.tableRowOf(e)) && !e.waitsMap {
		a.Seq, a.TableRow = in.Seq, in.TableRow
		return
	}
	e.assigned = in
	m.touch(e)
}

// plan starts everything that is due, most urgent first.
func (m *Machine) plan() {
	m.wake = m.now + m.set.RenewEvery
	if good := m.good(m.now); good && !m.wasGood {
		m.wasGood = true
		m.touchAll()
	}
	m.guarding = m.allGuard()
	m.planBeat()
	m.planScan()
	m.planSilent()
	m.countShare()
	m.planMoves()
	m.planEntries()
	m.planMissing()
	m.planTables()
	m.prove()
	m.flush()
	m.forgetOver()
	m.countShare()
	if m.leave && m.bound == 0 && !m.left && (m.wasGood && m.floor > 0 && m.beat.saidDraining() || m.beat.n == 0) {
		m.left = true
		m.out = append(m.out, Left{})
	}
	if m.wasGood {
		m.at(m.beat.goodUntil)
	}
	if t, ok := m.wakes.first(); ok {
		m.at(t)
	}
}

// at requests a wake-up at t or before: for the entry being planned, or for the whole machine.
func (m *Machine) at(t Time) {
	if e := m.planning; e != nil {
		m.wakes.set(e, t)
		return
	}
	m.wake = min(m.wake, max(t, m.now))
}

// lapse ends everything that this process leads; each partition begins again when its row is proved anew.
func (m *Machine) lapse(why string) {
	m.wasGood = false
	m.lapses++
	for _, e := range m.sorted() {
		if e.leading {
			m.stop(e, why, m.ours(e))
			m.touch(e)
		}
	}
}

// Requests.

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
	r.sent, r.lapses, r.good = m.now, m.lapses, m.good(m.now)
	m.asked[m.nextID] = r
	return m.nextID
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
		m.answered()
	}
	if r.prefix != "" && r.job != jobTable && a.Outcome == Done {
		m.observeList(r.prefix, a.Rows, a.Revision)
	}
	switch r.job {
	case jobRenew:
		m.renewed(r, a)
	case jobFindBeat:
		m.foundBeat(r, a)
	case jobScan:
		m.scanned(a)
	case jobProbe:
		m.beat.probing = false
	case jobTable:
		m.tableRead(r, a)
	case jobProve:
		m.provedRows(r, a)
	case jobReread:
		m.reread(m.entries[r.p], a)
	case jobMissing:
		m.marked(r, a)
	case jobBatch:
		m.settle(r, a)
	}
}

// answered records an answer of the store. Entries that needed one to be sure that a holder is silent look again.
func (m *Machine) answered() {
	m.reachable.answer(m.now, m.gapMax())
	for _, e := range m.unanswered {
		m.touch(e)
	}
	m.unanswered = m.unanswered[:0]
}

// planScan reads all rows: at first, and rarely afterwards in case the watch missed a change.
func (m *Machine) planScan() {
	if m.beat.scanning || !m.good(m.now) {
		return
	}
	priority := Scan
	if m.floor == 0 {
		priority = Renew
	} else if m.now < m.slow {
		m.at(max(m.scanAt, m.slow))
		return
	}
	if m.now < m.scanAt {
		m.at(m.scanAt)
		return
	}
	m.beat.scanning = true
	m.list(priority, request{job: jobScan, prefix: Prefix})
}

func (m *Machine) scanned(a Answer) {
	m.beat.scanning = false
	m.scanAt = m.now + m.jitter(m.set.ScanEvery)
	if a.Outcome != Done {
		m.scanAt = m.now + m.set.RetryAfter
	}
}

// jitter returns d plus or minus a tenth, so that servers do not move in step.
func (m *Machine) jitter(d time.Duration) time.Duration {
	return time.Duration(float64(d) * (0.9 + 0.2*m.rng.Float64()))
}

func (m *Machine) nonce() string { return fmt.Sprintf("%s-%016x", m.self.Boot, m.rng.Uint64()) }

// Observations.

func (m *Machine) entry(p Partition) *entry {
	if e := m.entries[p]; e != nil {
		return e
	}
	e := &entry{p: p, rowKey: RowKey(p), bornKey: bornKey(p), heapAt: -1}
	m.entries[p] = e
	m.order = append(m.order, e)
	m.unsorted = true
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

// observeList applies a list of all rows under a prefix as of a revision: a row that it lacks does not exist.
func (m *Machine) observeList(prefix string, rows []coord.Row, rev coord.Revision) {
	if rev < m.floor {
		return
	}
	seen := make(map[string]bool, len(rows))
	for _, row := range rows {
		if prefix != row.Key && prefix[len(prefix)-1] != '/' {
			continue // the key of another row begins like this
		}
		seen[row.Key] = true
		m.observe(row.Key, row.Revision, row.Value, true, false)
	}
	gone := func(key string) bool {
		return (key == prefix || prefix[len(prefix)-1] == '/' && strings.HasPrefix(key, prefix)) && !seen[key]
	}
	if prefix == Prefix {
		for _, e := range m.sorted() {
			m.absent(e, gone, rev)
		}
	} else if p, ok := ParseRowKey(prefix); ok && m.entries[p] != nil {
		m.absent(m.entries[p], gone, rev)
	} else if p, ok := ParseBornKey(prefix); ok && m.entries[p] != nil {
		m.absent(m.entries[p], gone, rev)
	}
	for s := range m.beats {
		if gone(BeatKey(s)) {
			m.observe(BeatKey(s), rev, nil, false, false)
		}
	}
	for t := range m.tables {
		if gone(SweptKey(t)) {
			m.observeSwept(t, rev, nil, false)
		}
	}
	for key, n := range m.no {
		if n.there && gone(key) {
			m.observe(key, rev, nil, false, false)
		}
	}
	if prefix == Prefix {
		m.floor = rev
		m.prune()
	}
	m.rev = max(m.rev, rev)
}

func (m *Machine) absent(e *entry, gone func(string) bool, rev coord.Revision) {
	if gone(e.rowKey) {
		m.observeRow(e, rev, nil, false, false)
	}
	if gone(e.bornKey) {
		m.observeBorn(e, rev, false)
	}
}

// observe applies one row as of a revision. inOrder: no earlier change of the row was missed.
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
			m.observeBorn(m.entry(p), rev, present)
		}
	case strings.HasPrefix(key, sweptPrefix):
		m.observeSwept(key[len(sweptPrefix):], rev, value, present)
	case strings.HasPrefix(key, noPrefix) && rev > m.no[key].asOf:
		m.no[key] = prohibition{asOf: rev, there: present}
		if !present {
			m.allowed = append(m.allowed, key)
		}
		if p, _, ok := ParseProhibitKey(key); ok && m.entries[p] != nil {
			m.touch(m.entries[p])
		}
	}
}

// reachable counts the time in which the store answered. Time without answers proves nothing: after the store was away for all,
// every heartbeat gets its chance first (C119).
type reachable struct {
	answered bool
	total    Time // between answers that followed each other closely
	last     Time // when the last came
}

func (r *reachable) answer(now, gapMax Time) {
	if r.answered && now-r.last <= gapMax {
		r.total += now - r.last
	}
	r.answered, r.last = true, now
}

// mark is a moment to count from: never before now, whatever the next answer adds to total.
func (r *reachable) mark(now, gapMax Time) Time {
	if !r.answered || now-r.last > gapMax {
		return r.total
	}
	return r.total + now - r.last
}

func (m *Machine) gapMax() Time { return 2 * m.set.RenewEvery }

func (m *Machine) mark() Time { return m.reachable.mark(m.now, m.gapMax()) }
