package chain

import (
	"slices"

	"github.com/spillwaydb/spillway/protocols/point"
)

// begin follows a head, or adopts its new order of the chain.
func (m *Machine) begin(from Member, msg Begin) {
	if len(msg.Order) == 0 || msg.Order[0] != from {
		return
	}
	switch {
	case msg.Epoch < m.epoch:
		m.refuse(from)
		return
	case msg.Epoch > m.epoch || m.role == idle: // also the epoch that was promised before a restart
		if m.role == leading {
			m.over(from)
		}
		m.rest()
		m.role, m.epoch, m.raised, m.base = following, msg.Epoch, 0, slices.Clone(msg.Ends)
		m.do(Raise{msg.Epoch})
	case m.role == leading:
		return // its own, on a detour
	}
	if msg.Version > m.version {
		m.endOrder()
		m.version, m.order = msg.Version, slices.Clone(msg.Order)
		m.feedOnly(m.successors()...)
	}
	m.compare()
	m.quiet, m.pinged = false, m.now-m.set.PingEvery // tendMember answers at once
}

func (m *Machine) successors() []Member {
	if i := slices.Index(m.order, m.self); i >= 0 && i+1 < len(m.order) {
		return m.order[i+1 : i+2]
	}
	return nil
}

// predecessor is the placement that feeds this one; for one that is joining it is the head.
func (m *Machine) predecessor() Member {
	return m.order[max(0, slices.Index(m.order, m.self)-1)]
}

// compare finds surplus once the epoch is raised: frames of older epochs that the head did not have when its epoch began. Frames of
// the epoch itself come from that head, so that nothing below them is surplus either.
func (m *Machine) compare() {
	if m.role != following || m.cutting || m.raised != m.epoch || m.end.Epoch == m.epoch {
		return
	}
	if c := Common(m.ends, m.base); c != m.end {
		m.cutting = true
		m.do(Cut{Epoch: m.epoch, After: c})
	}
}

func (m *Machine) wasCut(in WasCut) {
	m.cutting = false
	m.ends, m.end = cutAt(m.ends, in.After), in.After
	m.own = lower(m.own, m.end)
	if l := m.lead; l != nil {
		m.lead = nil
		m.takeLead(*l)
		return
	}
	m.compare() // a higher epoch may have begun meanwhile
	m.pinged = m.now - m.set.PingEvery
}

// accept appends a predecessor's frame, or refuses it.
func (m *Machine) accept(from Member, f Pass) {
	switch {
	case f.Epoch < m.epoch:
		m.refuse(from)
	case f.Epoch > m.epoch || m.role != following || !m.joined():
		// The epoch did not begin here yet; the sender sends the frame again once its head has begun that epoch here.
	case !m.end.Less(f.Serial):
		// It is here already. The next report shows it.
	case f.Prev != m.end:
		m.refuse(from)
	default:
		m.wake()
		m.ends, m.end = grown(m.ends, f.Serial), f.Serial
		m.do(LogIt{f.Epoch, f.Serial})
		for _, s := range m.feeds {
			m.pump(s)
		}
	}
}

// report sends the predecessor the end that this placement and all behind it have; the head derives from it which frames it may acknowledge.
func (m *Machine) report() {
	switch {
	case m.role == leading:
		m.acknowledge()
	case m.role == following && m.joined():
		upto, _ := m.least()
		m.send(m.predecessor(), Report{m.epoch, m.version, upto, m.end})
	}
}

// least is the end that this placement and all behind it in the chain have fsynced and applied; all: the next one has reported in this order.
func (m *Machine) least() (upto point.Serial, all bool) {
	next := m.successors()
	if len(next) == 0 {
		return m.own, true
	}
	if f := m.feedOf(next[0]); f != nil && f.reported {
		return lower(m.own, f.upto), true
	}
	return point.Serial{}, false
}

// tendMember pings the head and repeats the report, in case that one was lost.
func (m *Machine) tendMember() {
	if m.quiet && (m.own != m.end || m.now-m.rested >= quietLost*m.set.QuietPingEvery) {
		m.wake()
	}
	if m.quiet || m.now-m.pinged < m.set.PingEvery {
		return
	}
	m.pinged = m.now
	version := uint64(0)
	if m.joined() {
		version = m.version
		m.report()
		if version != m.said { // the head counts this as the answer to its invitation
			m.said, m.ponged = version, m.now
		}
	}
	if m.leaving {
		m.leave()
	} else {
		m.send(m.order[0], m.ask(version))
	}
	for _, f := range m.feeds {
		m.pump(f)
	}
}

// leave asks the head to do without this placement.
func (m *Machine) leave() { m.send(m.order[0], Leave{m.epoch, m.echo}) }
