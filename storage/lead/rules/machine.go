package rules

import (
	"cmp"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/point"
)

// Time is the reading of the server's own clock; only differences are meaningful.
type Time = time.Duration

// Machine decides for one server. It belongs to one goroutine.
type Machine struct {
	// Constant after New.
	server topology.ServerID
	store  lease.StoreID
	set    Settings
	rng    *rand.Rand

	tables    map[string]*table
	parts     map[lease.Partition]*part
	asked     map[uint64]question
	nextID    uint64
	recording []recording

	// active are the partitions with an attempt that is not idle, garbage those with lease rows that may be left.
	active  map[lease.Partition]*part
	garbage map[lease.Partition]bool
	lapsed  int // partitions that are led on after a lapse
	leading int
	good    bool // the heartbeat, as last reported
	// The servers' clocks, as of clockAt.
	clock      point.Nanos
	clockAt    Time
	clockKnown bool
	over       Time            // since when the load is too high; 0: it is not
	offered    lease.Partition // last
	meter      meter
	servers    *servers        // nil: not known yet
	lowering   map[string]bool // tables with a minimum in sync that is to be lowered

	// As of this Step.
	now  Time
	out  []Effect
	wake Time
}

// question is the purpose of an id.
type question struct {
	about about
	p     *part
	t     *table
	round *round
	tries int // guards of the lease row requested so far
}

type about uint8

const (
	aboutStop about = iota
	aboutAttempt
	aboutCovered
	aboutGuard
	aboutSeen
	aboutUnseen
	aboutRemoval
	aboutGarbage
)

// New makes the machine of a server without leases; seen are the highest transactions of tables in its catalogue. rng
// makes jitter.
func New(server topology.ServerID, store lease.StoreID, s Settings, seen []Seen, rng *rand.Rand) *Machine {
	s.setDefaults()
	m := &Machine{server: server, store: store, set: s, rng: rng, tables: map[string]*table{}, parts: map[lease.Partition]*part{},
		asked: map[uint64]question{}, active: map[lease.Partition]*part{}, garbage: map[lease.Partition]bool{}, lowering: map[string]bool{}}
	for _, x := range seen {
		t := m.table(x.Table)
		t.seen, t.seenTxn = x.Seq, x.Txn
	}
	return m
}

// Step handles one input at a time of the server's own clock, which never goes back, and appends the effects.
func (m *Machine) Step(now Time, in Input, out []Effect) []Effect {
	m.now, m.out = now, out
	switch in := in.(type) {
	case Tick:
	case Round:
		m.round(in)
	case LeaseBegan:
		m.leaseBegan(in.Leads)
	case LeaseEnded:
		m.leaseEnded(in.Stops)
	case InSyncAnswered:
		m.inSyncAnswered(in.InSyncSet)
	case Want:
		m.want(in)
	case Relist:
		m.setList(in)
	case Published:
		m.published(in)
	case Accepted:
		m.meter.count(m.now, in.All, m.leads, m.set.HotRows)
	case Unloaded:
		m.setUnloaded(in)
	case Clock:
		m.setClock(in)
	case EverLed:
		m.everLed(in)
	case Early:
		m.early(in)
	case Servers:
		m.servers = serversOf(in.All)
	default:
		m.answer(in)
	}
	m.wake = now + m.set.BackoffMax
	for _, id := range slices.SortedFunc(maps.Keys(m.active), compare) {
		m.pursue(m.parts[id])
	}
	for _, name := range slices.Sorted(maps.Keys(m.lowering)) {
		m.lower(m.table(name))
	}
	out, m.out = m.out, nil
	return out
}

// Wake returns the latest time for the next Tick.
func (m *Machine) Wake() Time { return m.wake }

func (m *Machine) answer(in Input) {
	switch in := in.(type) {
	case Recorded:
		if q, ok := m.take(in.ID); ok {
			m.recorded(q, in)
		}
	case LeaseRead:
		if q, ok := m.take(in.ID); ok {
			m.leaseRead(q, in)
		}
	case LeaseGuarded:
		if q, ok := m.take(in.ID); ok {
			m.leaseGuarded(q)
		}
	case Removed:
		if q, ok := m.take(in.ID); ok {
			m.removed(q, in.OK)
		}
	case Quiet:
		q, ok := m.take(in.ID)
		switch {
		case !ok:
		case q.about == aboutStop:
			m.stopped(q.p, in)
		case q.p.attempt.id == in.ID:
			m.quiet(q.p, in)
		}
	case Answered:
		if q, ok := m.take(in.ID); ok && q.p.attempt.id == in.ID {
			m.ready(q.p, in.OK)
		}
	case Proposed:
		if q, ok := m.take(in.ID); ok && q.p.attempt.id == in.ID {
			m.proposed(q.p, in)
		}
	case RuledOut:
		if q, ok := m.take(in.ID); ok && q.p.attempt.id == in.ID {
			m.ruledOut(q.p, in)
		}
	}
}

func (m *Machine) ask(q question) uint64 {
	m.nextID++
	m.asked[m.nextID] = q
	return m.nextID
}

func (m *Machine) take(id uint64) (question, bool) {
	q, ok := m.asked[id]
	delete(m.asked, id)
	return q, ok
}

func (m *Machine) do(e Effect) { m.out = append(m.out, e) }

// at requests a wake-up at t or before.
func (m *Machine) at(t Time) { m.wake = min(m.wake, max(t, m.now)) }

// jitter returns d plus or minus a quarter; without a generator it returns d.
func (m *Machine) jitter(d time.Duration) time.Duration {
	if m.rng == nil {
		return d
	}
	return d - d/4 + time.Duration(m.rng.Int64N(int64(d/2)+1))
}

func (m *Machine) table(name string) *table {
	t := m.tables[name]
	if t == nil {
		t = &table{name: name, assigned: map[point.PartitionID]*part{}, alarms: map[point.PartitionID]string{}, ahead: map[point.PartitionID]*part{},
			everLed: map[point.PartitionID]struct{}{}, heirs: map[point.PartitionID][]point.PartitionID{}}
		m.tables[name] = t
	}
	return t
}

func (m *Machine) part(id lease.Partition) *part {
	p := m.parts[id]
	if p == nil {
		p = &part{id: id}
		m.parts[id] = p
	}
	return p
}

func compare(a, b lease.Partition) int {
	return cmp.Or(cmp.Compare(a.Table, b.Table), cmp.Compare(a.ID, b.ID))
}

// Settings are numbers a user sets.
type Settings struct {
	// StopWithin bounds the wait for changes under way before a lease is released. Default 5 s.
	StopWithin time.Duration
	// SealMax bounds how long a partition accepts no rows while it is handed over, unless its heirs lead. Default 500 ms.
	// Larger: slower metadata servers still end splits, and writers wait longer if they do not.
	SealMax time.Duration
	// RuleOutReserve is the part of SealMax reserved for ruling out a proposal that got no answer. Default 150 ms.
	RuleOutReserve time.Duration
	// ReadyWithin bounds how long a majority of the metadata servers has to answer before a partition is sealed. Default 1 s.
	ReadyWithin time.Duration
	// HoldWithin bounds the wait for the in-sync list. Default 2 s.
	HoldWithin time.Duration
	// BackoffMin and BackoffMax are the pauses after a hand-over that failed, doubled each time. Default 1 s and 30 s.
	BackoffMin, BackoffMax time.Duration
	// AttemptsMax bounds the hand-overs under way at a time. Default 64.
	AttemptsMax int
	// OverloadFor is how long the load must be at LoadMax or above before a partition is offered to others (C110). Default 10 s.
	OverloadFor time.Duration
	// LoadMax is the load from which a server is overloaded. Default 0.9.
	LoadMax float64
	// HotRows is from how many rows a second on a partition is named as busy in heartbeats, for the balance of leads. Default 100.
	HotRows float64
	// Copies: tables of several replicas keep their rows on all of the in-sync list, through a chain that the server runs. Off: the list shrinks
	// to its holder, which alone has the rows.
	Copies bool
	// Unload: rows of a partition are moved to its heirs (storage/unload), and then it goes. Off: they stay where they are until
	// retention drops it, and are read beside the others.
	Unload bool
}

func (s *Settings) setDefaults() {
	def(&s.StopWithin, 5*time.Second)
	def(&s.SealMax, 500*time.Millisecond)
	def(&s.RuleOutReserve, 150*time.Millisecond)
	def(&s.ReadyWithin, time.Second)
	def(&s.HoldWithin, 2*time.Second)
	def(&s.BackoffMin, time.Second)
	def(&s.BackoffMax, 30*time.Second)
	def(&s.AttemptsMax, 64)
	def(&s.OverloadFor, 10*time.Second)
	def(&s.LoadMax, 0.9)
	def(&s.HotRows, 100)
}

func def[T comparable](p *T, v T) {
	var zero T
	if *p == zero {
		*p = v
	}
}
