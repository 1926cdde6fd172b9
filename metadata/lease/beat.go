package lease

import (
	"slices"
	"time"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/topology"
)

// heartbeat is the state of the renewals of our own row.
//
//	find ──our row or none──▶ renew ──done──▶ renew …            a second apart
//	 ▲                          │ conflict, no answer             (C117: look for our own renewal, do not repeat it)
//	 ├──────────────────────────┘
//	 └── another boot's row, though we ran: wait until it has been silent for as long as any taker would
type heartbeat struct {
	inFlight bool
	found    bool           // rev is our row's, or 0: there is none
	rev      coord.Revision // compared by the next renewal
	n        uint64         // of the last renewal sent
	setBack  bool           // the store was: nothing is renewed, and nothing led, until the process ends
	// sent holds when each renewal without an answer was sent. A row that shows N proves that renewal good.
	sent      map[uint64]Time
	next      Time
	draining  bool // as the last renewal sent says
	held      int  // as the last renewal sent says
	over      bool // as the last renewal sent says: we hold our share
	sentAt    Time // of the last renewal
	goodUntil Time
	ever      bool // one renewal proved good
	scanning  bool
	probing   bool
}

// unansweredMax bounds sent: far more renewals than fit into ValidFor.
const unansweredMax = 64

// beatRow is a server's heartbeat row as last seen.
type beatRow struct {
	asOf    coord.Revision
	rev     coord.Revision // 0: no row
	beat    Beat
	since   Time          // in reachable time: when this revision was first seen
	changed Time          // in reachable time: when a row of another boot, or none, was last found in its place
	fsync   time.Duration // the slowest that it said of late, at fsyncAt
	fsyncAt Time
	waiters []*entry // partitions that it holds and that we acquire when it is silent

	// Writing a row in the place of a missing one, missing.go.
	marking bool
	markAt  Time // not before
}

func (m *Machine) observeBeat(s topology.ServerID, rev coord.Revision, value []byte, present bool) {
	b := m.beats[s]
	if b == nil {
		b = &beatRow{}
		m.beats[s] = b
	}
	if rev <= b.asOf {
		return
	}
	b.asOf = rev
	was := b.beat
	b.rev, b.beat = 0, Beat{}
	if present {
		b.rev = rev
		b.beat, _ = DecodeBeat(value) // an unreadable row names no boot: the server counts as not alive
	}
	b.since = m.mark()
	m.holdFsync(b)
	if b.beat.Boot != was.Boot || b.beat.Draining != was.Draining || b.beat.Held >= m.share != (was.Held >= m.share) || !slices.Equal(b.beat.Damaged, was.Damaged) {
		m.touchWaking() // they may have waited for this server to start, or to acquire leases first
	}
	if b.beat.Boot != was.Boot || b.beat.Boot == "" {
		b.changed = b.since
		m.wakeWaiters(b)
	} else if was.Boot != "" {
		m.observeClock(s, b.beat)
	}
}

// alive reports whether a server's heartbeat changed lately.
func (m *Machine) alive(s topology.ServerID) bool {
	if s == m.self.Server {
		return true
	}
	b := m.beats[s]
	return b != nil && b.beat.Boot != "" && !b.beat.Missing && m.mark()-b.since < m.set.TakeAfter
}

func (m *Machine) planBeat() {
	b := &m.beat
	switch {
	case b.inFlight, b.setBack:
		return
	case m.left && b.ever && b.draining: // the row stays as it is: it says that we drain
		return
	case m.now < b.next && !m.renewsEarly():
		return
	case !b.found:
		b.inFlight = true
		r := request{job: jobFindBeat, prefix: BeatKey(m.self.Server)}
		if row := m.beats[m.self.Server]; row != nil {
			r.seen = row.asOf
		}
		m.list(Renew, r)
		return
	}
	b.n++
	b.draining, b.held, b.over, b.sentAt = m.drains(), m.held, m.held >= m.share, m.now
	b.sent[b.n] = m.now
	if len(b.sent) > unansweredMax {
		delete(b.sent, b.n-unansweredMax)
	}
	row := Beat{
		Server: m.self.Server, Boot: m.self.Boot, Store: m.self.Store, N: b.n,
		Load: m.load, ReadOnly: m.readOnly, Room: m.room, NoRoom: m.noRoom, Held: m.held, Draining: b.draining, ClockAhead: m.clockSaid(), Damaged: m.damaged.said, Fsync: m.disk.fsync, SlowDisk: m.disk.slow, Writes: m.writes, Guards: true, Time: m.wallNow(),
	}
	b.inFlight = true
	key := BeatKey(m.self.Server)
	m.commit(Renew, request{job: jobRenew, n: b.n}, []coord.Condition{{Key: key, Revision: b.rev}}, coord.Write{Key: key, Value: row.Encode()})
}

// renewsEarly reports whether the next renewal need not be waited for: since the last one this server has acquired its share, or has less than it again. Others let it
// go first by what its row says: of the two halves of a split partition it acquires one, and the server behind it would let it go first for the other, for a TurnStep
// in which rows of that half are not acked.
func (m *Machine) renewsEarly() bool {
	b := &m.beat
	at := b.next
	if n := m.held - b.held; b.found && b.ever && m.held >= m.share != b.over && -earlyLeases <= n && n <= earlyLeases {
		at = min(at, b.sentAt+Time(m.set.RenewEvery/earlyRenewals))
	}
	if m.now < at {
		m.at(at)
		return false
	}
	return true
}

// earlyRenewals bounds the renewals in the time of one. earlyLeases bounds the leases acquired or released since the last renewal: where servers acquire many, as in a
// cluster that starts, a share is that of a moment, and servers that went by it would leave too much to the others.
const (
	earlyRenewals = 20
	earlyLeases   = 2
)

// saidDraining reports whether our row says that we drain, as the answer to the last renewal showed.
func (b *heartbeat) saidDraining() bool { return b.draining && b.found && !b.inFlight }

// drains reports whether we acquire nothing and hand our leases over.
func (m *Machine) drains() bool { return m.giving() || m.leave }

func (m *Machine) renewed(r request, a Answer) {
	b := &m.beat
	b.inFlight = false
	switch a.Outcome {
	case Done:
		b.rev = a.Revision
		b.next = r.sent + m.jitter(m.set.RenewEvery)
		if b.draining != m.drains() { // it changed while the renewal was in flight
			b.next = m.now
		}
		m.proved(r.n)
		m.observeBeat(m.self.Server, a.Revision, Beat{Server: m.self.Server, Boot: m.self.Boot, Store: m.self.Store, N: r.n, Guards: true}.Encode(), true)
	case Conflict:
		b.found, b.next = false, m.now
	default:
		b.found, b.next = false, m.now+m.set.RetryAfter
	}
}

// proved: the renewal numbered n is in the store, so it counts from when it was sent (C104).
func (m *Machine) proved(n uint64) {
	b := &m.beat
	if sent, ok := b.sent[n]; ok {
		if m.now >= b.goodUntil {
			m.lapses++ // requests sent before the gap prove nothing about the gap
		}
		b.goodUntil = max(b.goodUntil, sent+m.set.ValidFor)
		b.ever = true
	}
	for k := range b.sent {
		if k <= n {
			delete(b.sent, k)
		}
	}
}

// foundBeat continues from the row that was found in our place.
func (m *Machine) foundBeat(r request, a Answer) {
	b := &m.beat
	b.inFlight = false
	if a.Outcome != Done {
		b.next = m.now + m.set.RetryAfter
		return
	}
	// A change of a row has a higher revision than all before, and lists are linearizable.
	if slices.ContainsFunc(a.Rows, func(row coord.Row) bool { return row.Key == BeatKey(m.self.Server) && row.Revision < r.seen }) {
		b.setBack = true
		m.lostBeat(storeSetBack)
		m.out = append(m.out, SetBack{})
		return
	}
	b.found, b.next = true, m.now
	row := m.beats[m.self.Server]
	switch {
	case row == nil || row.rev == 0:
		b.rev = 0
		if b.ever { // it was deleted: others may have counted us as dead since
			m.lostBeat(beatDeleted)
		}
	case row.beat.Missing: // and another server waits until we are silent
		b.rev = row.rev
		if b.ever {
			m.lostBeat(beatDeleted)
		}
	case row.beat.Boot == m.self.Boot:
		b.rev = row.rev
		m.proved(row.beat.N)
	case !b.ever: // an earlier process, or one that we replace
		b.rev = row.rev
	default:
		m.lostBeat("another process runs as server " + string(m.self.Server))
		b.rev = row.rev
		if m.reachable.total-row.since < m.set.TakeAfter {
			b.found, b.next = false, m.now+m.set.RenewEvery
		}
	}
}

// storeSetBack: our row in the store is older than a renewal that the store acked. Nothing that was read since can be relied on.
const storeSetBack = "the coordination store was set back to an older state"

const beatDeleted = "its heartbeat row was deleted"

func (m *Machine) lostBeat(why string) {
	m.beat.goodUntil = min(m.beat.goodUntil, m.now)
	clear(m.beat.sent)
	m.lapse(why)
}
