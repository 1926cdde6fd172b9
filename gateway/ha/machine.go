package ha

import (
	"cmp"
	"slices"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/spillwaydb/spillway/metadata/coord"
)

// Time is the reading of a process's own clock, which never goes back. Only differences are meaningful.
type Time = time.Duration

// Verdict is the decision about the rows of one sender.
type Verdict uint8

// The verdicts.
const (
	Keep      Verdict = iota
	Duplicate         // another replica is elected, and sends
	TooMany           // the pair is new, and the table has as many as it may
)

// Input is an input of a Machine.
type Input interface{ input() }

// Tick reports that time went on.
type Tick struct{}

// Listed are all rows under Prefix.
type Listed struct{ Rows []coord.Row }

// Changed are changes since Listed, in the order of the store.
type Changed struct{ Events []coord.Event }

// Answer is the store's answer to the Commit of that ID. Each needs exactly one. OK is false for a conflict, and where there was no answer.
type Answer struct {
	ID       uint64
	OK       bool
	Revision coord.Revision
}

// Reload puts other settings in force.
type Reload struct{ Settings Settings }

func (Tick) input()    {}
func (Listed) input()  {}
func (Changed) input() {}
func (Answer) input()  {}
func (Reload) input()  {}

// Effect is an action or a report of a Machine.
type Effect interface{ effect() }

// Commit is a transaction to send.
type Commit struct {
	ID         uint64
	Conditions []coord.Condition
	Writes     []coord.Write
}

// Elected reports that rows of another replica are kept from now on. From is "" at the first election.
type Elected struct {
	Pair     Pair
	From, To string
	Why      string
}

func (Commit) effect()  {}
func (Elected) effect() {}

// Machine decides for all tables of a process. Not for concurrent use.
type Machine struct {
	settings Settings
	alone    bool // there is no store
	nonce    uint64

	tables  map[string]map[string]*entry
	entries int
	commits uint64
	open    map[uint64][]sent // by Commit
	urgent  bool              // an election is not written yet
}

// entry is one pair.
type entry struct {
	pair      Pair
	acts      string // this gateway keeps the rows of this replica
	seen      Time   // when rows of it were last accepted here; 0: none were since it was elected
	rival     string // that sent last of all others
	rivalSeen Time   // when

	row     Row
	rev     coord.Revision // of the row; 0: there is none
	changed Time           // when that revision was first seen here, or it was elected here
	alive   Time           // when the elected replica last sent rows anywhere, by the row

	busy  bool // a Commit is open
	alone bool // after a conflict: its next transaction holds no other row
	retry Time // not before
}

// sent is the change of one entry by a Commit.
type sent struct {
	e    *entry
	row  Row
	gone bool
}

// New makes a machine. alone is true where there is no store, and so no other gateway; the nonce of each gateway is another.
func New(s Settings, alone bool, nonce uint64) *Machine {
	s.SetDefaults()
	return &Machine{settings: s, alone: alone, nonce: nonce, tables: map[string]map[string]*entry{}, open: map[uint64][]sent{}}
}

// Decide says whether the rows that a sender sent now are kept. Accepted follows when the store accepted any.
func (m *Machine) Decide(now Time, p Pair, replica string, out []Effect) (Verdict, []Effect) {
	e := m.tables[p.Table][p.Cluster]
	if e == nil {
		if len(m.tables[p.Table]) >= m.settings.clustersMax(p.Table) || m.entries >= EntriesMax {
			return TooMany, out
		}
		e = m.add(p)
		return Keep, m.elect(e, now, replica, "it was the first to send", out)
	}
	if e.acts == replica {
		return Keep, out
	}
	e.rival, e.rivalSeen = replica, now
	switch {
	case e.acts == "": // its row could not be read
		return Keep, m.elect(e, now, replica, "none was elected", out)
	case now-max(e.seen, e.alive) < Time(m.settings.FailoverTimeout):
		return Duplicate, out
	}
	return Keep, m.elect(e, now, replica, "the elected replica is silent", out)
}

// Accepted notes that rows of a replica were accepted. Only these are a sign of life: the rows of a replica whose clock is a day ahead are all refused, and if it stayed
// elected, those of the other one would be dropped as duplicates of them.
func (m *Machine) Accepted(now Time, p Pair, replica string) {
	if e := m.tables[p.Table][p.Cluster]; e != nil && e.acts == replica {
		e.seen = now
	}
}

func (m *Machine) add(p Pair) *entry {
	e := &entry{pair: p}
	if m.tables[p.Table] == nil {
		m.tables[p.Table] = map[string]*entry{}
	}
	m.tables[p.Table][p.Cluster] = e
	m.entries++
	return e
}

func (m *Machine) remove(e *entry) {
	delete(m.tables[e.pair.Table], e.pair.Cluster)
	if len(m.tables[e.pair.Table]) == 0 {
		delete(m.tables, e.pair.Table)
	}
	m.entries--
}

// elect keeps the rows of a replica from now on. The row in the store follows.
func (m *Machine) elect(e *entry, now Time, replica, why string, out []Effect) []Effect {
	from := e.acts
	e.acts, e.seen, e.changed, e.alive = replica, now, now, now
	if e.rival == replica {
		e.rival = from
	}
	m.urgent = !m.alone
	return append(out, Elected{e.pair, from, replica, why})
}

// Urgent reports whether a Tick should come soon: an election is to be written.
func (m *Machine) Urgent() bool { return m.urgent }

// Step handles an input.
func (m *Machine) Step(now Time, in Input, out []Effect) []Effect {
	switch in := in.(type) {
	case Tick:
		return m.tick(now, out)
	case Listed:
		return m.listed(now, in.Rows, out)
	case Changed:
		for _, ev := range in.Events {
			if ev.Deleted {
				m.deleted(ev.Key, ev.Revision)
			} else {
				out = m.learn(now, ev.Row, out)
			}
		}
	case Answer:
		m.answered(now, in)
	case Reload:
		m.settings = in.Settings
		m.settings.SetDefaults()
	}
	return out
}

// listed compares with a complete list: rows that are missing were deleted.
func (m *Machine) listed(now Time, rows []coord.Row, out []Effect) []Effect {
	there := map[string]bool{}
	for _, r := range rows {
		there[r.Key] = true
		out = m.learn(now, r, out)
	}
	for _, e := range m.sorted(func(e *entry) bool { return e.rev != 0 && !there[key(e.pair)] }) {
		m.deleted(key(e.pair), 0)
	}
	return out
}

// learn reads a row of the store, and follows its election.
func (m *Machine) learn(now Time, r coord.Row, out []Effect) []Effect {
	p, ok := parseKey(r.Key)
	if !ok {
		return out
	}
	e := m.tables[p.Table][p.Cluster]
	switch {
	case e == nil && m.entries >= EntriesMax:
		return out
	case e == nil:
		e = m.add(p)
	case r.Revision <= e.rev:
		return out
	}
	e.row, e.rev, e.changed = decodeRow(r.Value), r.Revision, now
	e.alive = now - min(max(time.Duration(e.row.SilentMS)*time.Millisecond, 0), Time(m.settings.FailoverTimeout))
	if e.row.Replica == "" || e.row.Replica == e.acts {
		return out
	}
	from := e.acts
	if e.rival == e.row.Replica {
		e.rival, e.rivalSeen = from, e.seen
	}
	e.acts, e.seen = e.row.Replica, 0
	return append(out, Elected{p, from, e.acts, "another gateway elected it"})
}

// deleted forgets a row, and the pair if its elected replica does not send here. after is the revision of the change, 0 for a list.
func (m *Machine) deleted(k string, after coord.Revision) {
	p, ok := parseKey(k)
	e := m.tables[p.Table][p.Cluster]
	if !ok || e == nil || after != 0 && after <= e.rev {
		return
	}
	e.row, e.rev = Row{}, 0
	if e.seen == 0 && !e.busy {
		m.remove(e)
	}
}

func (m *Machine) answered(now Time, a Answer) {
	all := m.open[a.ID]
	delete(m.open, a.ID)
	for _, s := range all {
		e := s.e
		e.busy = false
		switch {
		case !a.OK:
			e.alone, e.retry = true, now+retryAfter
		case s.gone:
			m.deleted(key(e.pair), a.Revision)
		case a.Revision > e.rev:
			e.row, e.rev, e.alone = s.row, a.Revision, false
			if e.acts == s.row.Replica {
				e.changed = now
			}
		}
	}
}

// tick forgets pairs, and writes elections and signs of life.
func (m *Machine) tick(now Time, out []Effect) []Effect {
	old := func(e *entry) bool { return now-max(e.seen, e.changed, e.rivalSeen) >= forgetAfter && !e.busy }
	for _, e := range m.sorted(func(e *entry) bool { return old(e) && e.rev == 0 }) {
		m.remove(e)
	}
	if m.alone {
		return out
	}
	m.urgent = false
	var due []sent
	for _, e := range m.sorted(func(e *entry) bool { return !e.busy && now >= e.retry }) {
		switch {
		case old(e):
			due = append(due, sent{e: e, gone: true})
		case e.acts != e.row.Replica || e.rev == 0:
			due = append(due, sent{e: e, row: Row{Replica: e.acts}})
		case e.seen > e.changed && now-e.changed >= m.updateAfter(e):
			due = append(due, sent{e: e, row: Row{Replica: e.acts, Updates: e.row.Updates + 1, SilentMS: (now - e.seen).Milliseconds()}})
		}
	}
	// Elections first: until they are written each gateway acts by its own.
	slices.SortStableFunc(due, func(a, b sent) int { return cmp.Compare(a.rank(), b.rank()) })
	for range CommitsPerTick {
		if len(due) == 0 {
			break
		}
		n := 1
		for !due[0].e.alone && n < min(len(due), RowsPerCommit) && !due[n].e.alone {
			n++
		}
		out = m.commit(due[:n], out)
		due = due[n:]
	}
	return out
}

func (s sent) rank() int {
	switch {
	case s.gone:
		return 2
	case s.row.Updates > 0:
		return 1
	}
	return 0
}

func (m *Machine) commit(all []sent, out []Effect) []Effect {
	m.commits++
	c := Commit{ID: m.commits}
	for _, s := range all {
		s.e.busy = true
		k := key(s.e.pair)
		c.Conditions = append(c.Conditions, coord.Condition{Key: k, Revision: s.e.rev})
		w := coord.Write{Key: k, Delete: s.gone}
		if !s.gone {
			w.Value = s.row.encode()
		}
		c.Writes = append(c.Writes, w)
	}
	m.open[c.ID] = slices.Clone(all)
	return append(out, c)
}

// updateAfter spreads signs of life over a fifth of their interval, another part for each pair and gateway: of several gateways that
// receive rows of the elected replica one writes, and the others see its row change.
func (m *Machine) updateAfter(e *entry) Time {
	d := Time(m.settings.UpdateInterval)
	return d + Time((xxhash.Sum64String(e.pair.Cluster)^m.nonce)%uint64(max(d/5, 1)))
}

// sorted returns entries by table and cluster.
func (m *Machine) sorted(want func(*entry) bool) (all []*entry) {
	for _, clusters := range m.tables {
		for _, e := range clusters {
			if want(e) {
				all = append(all, e)
			}
		}
	}
	slices.SortFunc(all, func(a, b *entry) int {
		return cmp.Or(cmp.Compare(a.pair.Table, b.pair.Table), cmp.Compare(a.pair.Cluster, b.pair.Cluster))
	})
	return all
}

// PairStatus is one pair, for people.
type PairStatus struct {
	Table         string  `json:"table"`
	Cluster       string  `json:"cluster"`
	Replica       string  `json:"elected"`
	SilentSeconds float64 `json:"silent_seconds"` // of the elected replica, as far as this process sees
	Other         string  `json:"other,omitempty"`
	OtherSeconds  float64 `json:"other_silent_seconds,omitempty"`
	Agreed        bool    `json:"agreed"` // the row in the coordination store names the same replica
	// SpareSeconds is how long no replica but the elected one has sent rows here; where none did, since this process began.
	SpareSeconds float64 `json:"-"`
}

// Status lists all pairs.
func (m *Machine) Status(now Time) []PairStatus {
	all := []PairStatus{}
	for _, e := range m.sorted(func(*entry) bool { return true }) {
		s := PairStatus{Table: e.pair.Table, Cluster: e.pair.Cluster, Replica: e.acts, SilentSeconds: (now - max(e.seen, e.alive)).Seconds(),
			Other: e.rival, Agreed: m.alone || e.rev != 0 && e.row.Replica == e.acts, SpareSeconds: (now - e.rivalSeen).Seconds()}
		if e.rival != "" {
			s.OtherSeconds = (now - e.rivalSeen).Seconds()
		}
		all = append(all, s)
	}
	return all
}

// Len counts the pairs.
func (m *Machine) Len() int { return m.entries }
