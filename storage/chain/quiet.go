package chain

// A chain at rest sends next to nothing. Nothing of what makes a placement sure changes: a quiet one is not sure, because none of its pings is answered.
//
//	 awake ──nothing came for quietAfter──▶ asked: Ping(quiet) to all members ──all agreed──▶ quiet ──QuietPingEvery──▶ asked again
//	   ▲                                      │ one does not agree in time                     │
//	   └──────────────────────────────────────┴── a frame, a read, a new map, list or link ────┘
//
// The silence of a member counts from when the chain woke.

// quietLost is how many asks of its head a quiet member misses before it wakes by itself.
const quietLost = 3

// awakeFew chains of a process stay awake for QuietAfter. Where n are, and n is more, each stays so for awakeFew/n of it: what pings
// cost then grows with the rows that come, not with the tables that had one within a minute.
const awakeFew = 64

// quietAfter is how long nothing may have come before this chain becomes quiet. It is longer than SilentAfter, however many are awake: a head that asked
// its members to be quiet before it found one of them silent would count that silence anew each time, and never take it out.
func (m *Machine) quietAfter() Time {
	most := m.set.QuietAfter
	if m.awake <= awakeFew {
		return most
	}
	return max(most*awakeFew/Time(m.awake), min(m.set.SilentAfter+2*m.set.PingEvery, most))
}

// Awake reports whether this placement pings.
func (m *Machine) Awake() bool { return m.role != idle && !m.Quiet() }

// Wake returns the latest time for the next Tick; after every Step it may be another.
func (m *Machine) Wake() Time {
	h := &m.head
	switch {
	case m.role == idle:
		return m.now + m.set.QuietPingEvery
	case m.role == following && m.quiet:
		return m.rested + quietLost*m.set.QuietPingEvery
	case m.role == leading && h.quiet && m.allRest():
		return h.quietSent + m.set.QuietPingEvery
	}
	return m.now + m.set.PingEvery/2
}

// Quiet reports whether this placement does not ping. It is not sure then, and Wanted may make it so within a round trip or two.
func (m *Machine) Quiet() bool {
	return m.role == following && m.quiet || m.role == leading && m.head.quiet
}

// wake ends this placement's rest; it pings at once.
func (m *Machine) wake() {
	h := &m.head
	switch {
	case m.role == following && m.quiet:
		m.quiet, m.pinged = false, m.now-m.set.PingEvery
	case m.role == leading:
		h.stirred = m.now
		if h.quiet {
			h.quiet, h.woke, h.pinged = false, m.now, m.now-m.set.PingEvery
		}
		for _, p := range h.peers {
			p.rests = 0
		}
	}
}

// agrees decides whether this member rests after a ping of its head. One with frames that its head or its disk lacks, or that a read asked
// a moment ago, does not.
func (m *Machine) agrees(msg Ping) bool {
	lately := m.wants && m.now-m.wanted < m.quietAfter()
	if !msg.Quiet || lately || m.leaving || msg.Version != m.version || msg.End != m.end || m.own != m.end {
		m.wake()
		return false
	}
	m.quiet, m.rested = true, m.now
	return true
}

// still reports whether nothing is left for this head to do: the chain is the row's list and all live placements, and all have everything.
func (m *Machine) still() bool {
	h := &m.head
	if len(h.unacked) > 0 || len(h.owed) > 0 || m.leaving || m.own != m.end || h.acked != m.end || !m.agreed() || !same(m.order, h.placements) {
		return false
	}
	for _, x := range m.order[1:] {
		if p := m.peer(x); p.version != m.version || !p.settled || p.leaving || p.own != m.end || p.end != m.end || m.unmapped(x) {
			return false
		}
	}
	return true
}

// falls asks the members to be quiet, if nothing came for long.
func (m *Machine) falls() bool {
	h := &m.head
	if !m.still() {
		h.stirred = m.now
	}
	if m.now-h.stirred < m.quietAfter() {
		return false
	}
	h.quiet, h.quietFrom = true, m.now
	m.askQuiet()
	return true
}

func (m *Machine) askQuiet() {
	m.head.quietSent = m.now
	for _, x := range m.order[1:] {
		ping := m.ask(m.version)
		ping.Quiet = true
		m.send(x, ping)
	}
}

// allRest reports whether all members agreed when they were asked last.
func (m *Machine) allRest() bool {
	for _, x := range m.order[1:] {
		if p := m.known(x); p == nil || p.rests < m.head.quietSent || p.rests == 0 {
			return false
		}
	}
	return true
}

// rests maintains a rest, and reports whether it goes on. A first answer is due before this head's own sureness ends, later ones as soon as a member is silent.
func (m *Machine) rests() bool {
	h := &m.head
	patience := m.set.SilentAfter
	if h.quietSent == h.quietFrom {
		patience = 2 * m.set.PingEvery
	}
	switch asked := m.now - h.quietSent; {
	case !m.still() || asked >= patience && !m.allRest():
		m.wake()
	case asked >= m.set.QuietPingEvery:
		m.askQuiet()
	}
	return h.quiet
}
