package rules

import (
	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/protocols/point"
)

// attempt is the leader's way to end a split, or an unload of a partition that never had rows or whose rows are all in its heirs.
//
//	           ┌───────────────────────── the next attempt, after a pause ◀──────────────────────────────┐
//	           ▼                                                                                         │
//	rule out earlier leaders' proposals ────▶ does a majority of the metadata servers answer? ── no ────▶┤
//	                                            │ yes                                                    │
//	         ┌ SealMax ─────────────────────────▼───────────────────────────────┐                        │
//	         │ hand over: no rows, no readers by the old map                    │                        │
//	         │ changes under way end ─▶ propose ─▶ committed: the halves lead    │ ── refused: take back ▶┤
//	         │                            │ no answer                           │                        │
//	         │                         rule out ─▶ the map shows the outcome ── uncommitted: take back ──▶┘
//	         └──────────────────────────────┼───────────────────────────────────┘                        ▲
//	                                        ▼ not in time                                                │
//	                     doubt: rows accepted, readers by the old map wait ─▶ rule out ──────────────────┘
//
// So no partition is closed for longer than SealMax unless its halves lead, and none is handed over after it was opened again,
// if the coordination store answers in time. If it does not, the partition accepts rows here all the same: should the halves lead
// by then, readers read these rows beside theirs, and read nothing without them.
type attempt struct {
	phase    phase
	id       uint64            // of the question under way; 0: none
	epoch    point.Epoch       // under which it goes on
	low      point.PartitionID // of the split; 0: it is an unload
	handing  bool              // the gate is closed by HandOver
	proposed bool              // since the last RuledOut
	until    Time              // when the gate opens again, or the wait for the in-sync list ends
	base     uint64            // the highest map on which a proposal was made
	ruled    uint64            // proposals on this map, or an older one, are ruled out
	fenced   bool              // proposals of earlier leaders are ruled out
	failed   int               // attempts in a row
	retryAt  Time
}

type phase uint8

const (
	idle phase = iota
	waiting
	asking
	closing
	holding
	proposing
	ruling
	learning
	committed
)

// begin checks whether there is a split or unload to end.
func (m *Machine) begin(p *part) {
	if p.kind == Split || p.kind == Final || p.attempt.phase != idle {
		m.active[p.id] = p
	}
}

// pursue continues an attempt as far as possible without a further answer.
func (m *Machine) pursue(p *part) {
	a := &p.attempt
	if over := !p.leading || p.epoch != a.epoch || p.kind != a.kind() || p.low != a.low; over && a.phase != idle && a.phase != proposing {
		m.drop(p)
	}
	switch a.phase {
	case idle:
		if !p.leading || p.kind != Split && p.kind != Final {
			delete(m.active, p.id)
			return
		}
		*a = attempt{phase: waiting, epoch: p.epoch, low: p.low, retryAt: m.now}
		m.next(p)
	case waiting:
		m.next(p)
	case closing, proposing: // answered in time, always
	case holding:
		m.tryHold(p)
	case ruling:
		if m.closed(p); a.id == 0 {
			if m.now < a.retryAt {
				m.at(a.retryAt)
				return
			}
			m.ruleOut(p)
		}
	case learning:
		m.closed(p)
		m.learn(p)
	}
}

// kind is the map's kind required for the attempt to go on.
func (a *attempt) kind() Kind {
	if a.low == 0 {
		return Final
	}
	return Split
}

// drop ends an attempt that was overtaken: the lease or the epoch changed, or the map has it ended or aborted. If a proposal may
// yet be committed, readers by the old map wait for a newer one.
func (m *Machine) drop(p *part) {
	a := &p.attempt
	switch {
	case a.proposed:
		m.doubt(p, a.base)
	case a.phase == committed && p.kind == Split && p.low == a.low: // and the map does not say so yet
		m.doubt(p, m.table(p.id.Table).newest.Map.Seq)
	case a.handing:
		m.do(TakeBack{p.id})
	}
	*a = attempt{}
}

// closed opens the gate of a partition when its time is over.
func (m *Machine) closed(p *part) {
	a := &p.attempt
	if !a.handing {
		return
	}
	if m.now < a.until {
		m.at(a.until)
		return
	}
	m.doubt(p, a.base)
}

// doubt opens the gate although the halves may lead; a map newer than seq would say so.
func (m *Machine) doubt(p *part, seq uint64) {
	p.attempt.handing = false
	p.doubt = max(p.doubt, seq)
	m.do(Doubt{p.id, seq})
}

// next begins an attempt when it is due.
func (m *Machine) next(p *part) {
	a := &p.attempt
	switch {
	case m.now < a.retryAt:
		m.at(a.retryAt)
	case m.underWay() >= m.set.AttemptsMax:
		a.retryAt = m.now + m.jitter(m.set.BackoffMin)
		m.at(a.retryAt)
	case a.low == 0:
		a.phase = closing
		a.id = m.ask(question{about: aboutAttempt, p: p})
		m.do(Quiesce{ID: a.id, Partition: p.id, Within: m.set.StopWithin})
	case !a.fenced:
		// An earlier leader may have proposed the end of this split, and may be the only process that has seen the proposal.
		newest := m.table(p.id.Table).newest.Map
		if newest == nil {
			m.fail(p, "the table is not known")
			return
		}
		a.phase, a.proposed, a.base = ruling, true, newest.Seq
		m.doubt(p, a.base)
		m.ruleOut(p)
	default:
		a.phase = asking
		a.id = m.ask(question{about: aboutAttempt, p: p})
		m.do(Ready{ID: a.id, Table: p.id.Table, Within: m.set.ReadyWithin})
	}
}

func (m *Machine) underWay() (n int) {
	for _, p := range m.active {
		if p.attempt.phase > waiting {
			n++
		}
	}
	return n
}

// fail ends an attempt that is to be tried again.
func (m *Machine) fail(p *part, why string) {
	a := &p.attempt
	pause := min(m.set.BackoffMin<<min(a.failed, 10), m.set.BackoffMax)
	a.failed++
	a.phase, a.id, a.retryAt = waiting, 0, m.now+m.jitter(pause)
	m.do(Note{Partition: p.id, What: AttemptFailed, Why: why})
}

// takeBack opens the gate: the halves cannot lead any more.
func (m *Machine) takeBack(p *part) {
	if p.attempt.handing {
		p.attempt.handing = false
		m.do(TakeBack{p.id})
	}
}

func (m *Machine) ready(p *part, ok bool) {
	a := &p.attempt
	a.id = 0
	if !ok {
		m.fail(p, "no majority of the metadata servers answers")
		return
	}
	a.phase, a.handing, a.until = closing, true, m.now+m.set.SealMax
	m.do(HandOver{p.id})
	a.id = m.ask(question{about: aboutAttempt, p: p})
	m.do(Quiesce{ID: a.id, Partition: p.id, Within: m.set.SealMax - m.set.RuleOutReserve})
}

func (m *Machine) quiet(p *part, in Quiet) {
	a := &p.attempt
	a.id = 0
	switch {
	case !in.OK || a.low != 0 && m.now >= a.until-m.set.RuleOutReserve:
		m.takeBack(p)
		m.fail(p, "changes under way did not end in time")
	case a.low != 0:
		m.propose(p, a.until-m.set.RuleOutReserve-m.now)
	case p.unloaded:
		m.propose(p, m.set.StopWithin)
	case !in.Empty:
		m.fail(p, "it took a row before it was sealed")
	default:
		// Should our lease end while the change is under way, a server with an older map could acquire the partition and ack rows.
		a.phase, a.until = holding, m.now+m.set.HoldWithin
	}
}

// tryHold proposes the end of an unload once no other placement can acquire the partition.
func (m *Machine) tryHold(p *part) {
	a := &p.attempt
	switch {
	case p.alone:
		m.propose(p, m.set.StopWithin)
	case m.now >= a.until:
		m.fail(p, "the lease table did not take the in-sync list in time")
	default:
		m.hold(p, []lease.Member{m.self(p)})
		m.at(a.until)
	}
}

func (m *Machine) propose(p *part, within Time) {
	a := &p.attempt
	a.phase = proposing
	a.id = m.ask(question{about: aboutAttempt, p: p})
	m.do(Propose{ID: a.id, Partition: p.id, Low: a.low, Within: within})
}

func (m *Machine) proposed(p *part, in Proposed) {
	a := &p.attempt
	a.id = 0
	switch {
	case in.OK:
		a.phase, a.proposed = committed, false // the map that shows it is on its way
		m.do(Note{Partition: p.id, What: map[bool]Event{true: UnloadDone, false: SplitDone}[a.low == 0]})
	case a.low == 0:
		m.fail(p, "the change of the map was not committed")
	case in.Base == 0:
		m.takeBack(p)
		m.fail(p, "nothing was proposed")
	default:
		a.phase, a.proposed, a.base, a.retryAt = ruling, true, max(a.base, in.Base), m.now
	}
}

func (m *Machine) ruleOut(p *part) {
	a := &p.attempt
	within := m.set.ReadyWithin
	if a.handing {
		within = max(a.until-m.now, m.set.RuleOutReserve)
	}
	a.id = m.ask(question{about: aboutAttempt, p: p})
	m.do(RuleOut{ID: a.id, Table: p.id.Table, Within: within})
}

func (m *Machine) ruledOut(p *part, in RuledOut) {
	a := &p.attempt
	a.id = 0
	if !in.OK {
		a.retryAt = m.now + m.jitter(m.set.BackoffMin)
		return
	}
	a.phase, a.ruled = learning, in.Seq
}

// learn checks the outcome of a proposal that was ruled out: a map at that transaction or newer shows it, finally.
func (m *Machine) learn(p *part) {
	a := &p.attempt
	newest := m.table(p.id.Table).newest.Map
	if newest == nil || newest.Seq < a.ruled {
		return
	}
	at, ok := newest.ByID(p.id.ID)
	if !ok || at.Split == nil || at.Split.Low.ID != a.low {
		a.phase, a.proposed = committed, false // or aborted: the round that carries the map out decides
		return
	}
	m.takeBack(p)
	if p.doubt > 0 {
		m.do(Settle{p.id, p.doubt})
		p.doubt = 0
	}
	first := !a.fenced
	a.proposed, a.fenced = false, true
	if first {
		a.phase = waiting
		m.next(p)
		return
	}
	m.fail(p, "the metadata servers did not commit it in time")
}
