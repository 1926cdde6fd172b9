package chain

import (
	"time"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// Stalled returns nil if frames are acknowledged soon, by the messages that this head has, else the reason as an Unavailable: a member does not answer, or one that
// left the chain may still be listed or sure. Frames are accepted (Accepts), and wait for up to two seconds; writers that can keep their rows elsewhere need not.
// A member that answers, and is slow, stalls nothing here: rows are not to be kept elsewhere because servers have too much to do. Where processors are short a member's
// answers come late, too:
//
//	the member's server is frozen, dead or cut off   nothing at all comes from it             stalled after StalledAfter
//	it is busy                                       answers are late, other things come      not stalled
//	the member alone says nothing                    other things come from its server        removed after SilentAfter, and stalled until that counts
//	it is cut off from the member before it          it answers at once, and gets no frame    stalled after StalledAfter
//	the same, or it is busy                          it answers late, and gets no frame       removed after SilentAfter, and stalled until that counts
//	the disk of this server hangs                    its own log keeps nothing                stalled after SlowAfter, longer than any queue that is admitted
func (m *Machine) Stalled(now Time) error {
	h := &m.head
	if m.role != leading || h.quiet {
		return nil
	}
	// If this head has not acted for a while its process was held up, and inputs that came meanwhile are not handled yet.
	for _, x := range m.order[1:] {
		if now-m.now < 2*m.set.PingEvery && now-m.lifeOf(x) >= m.set.StalledAfter {
			return fault.Errorf(fault.Unavailable, "placement %s on server %s does not answer, and rows wait for it", x.Placement, x.Server)
		}
	}
	if x := m.unreached(now, m.set.StalledAfter); x != nil && !m.answersLate(now, *x) {
		return fault.Errorf(fault.Unavailable, "no row has reached placement %s on server %s for %v, and it answers", x.Placement, x.Server, m.set.StalledAfter)
	}
	if len(h.unacked) > 0 && now-h.progress >= m.set.SlowAfter && m.own.Less(h.unacked[0].upto) {
		return fault.Errorf(fault.Unavailable, "the log of this server has kept no row for %v; look at its device", m.set.SlowAfter)
	}
	for _, o := range h.owed {
		long := o.until-now >= m.set.StalledAfter/2
		if o.until == 0 { // its removal from the list is not committed
			long = now-h.ordered >= m.set.StalledAfter || now-m.silentSince(o.member) >= m.set.StalledAfter
		}
		if long {
			return fault.Errorf(fault.Unavailable, "placement %s on server %s is away, and may still be listed, or read as one that has all rows", o.member.Placement, o.member.Server)
		}
	}
	return nil
}

// lifeOf is when the server of a member last gave a sign of life, as far as this process could see it.
func (m *Machine) lifeOf(x Member) Time {
	since := max(m.silentSince(x), m.head.held)
	if p := m.known(x); p != nil {
		since = max(since, p.alive)
	}
	return since
}

// Doubted returns the members of which Stalled may soon say that they do not answer: whether anything came from their servers matters (Alive).
func (m *Machine) Doubted(now Time) (all []Member) {
	if m.role != leading || m.head.quiet {
		return nil
	}
	for _, x := range m.order[1:] {
		if now-m.lifeOf(x) >= m.set.StalledAfter/2 {
			all = append(all, x)
		}
	}
	return all
}

// Alive records when the server of a member last sent anything at all. It is no input of a Step: nothing follows from it but what Stalled says later.
func (m *Machine) Alive(x Member, at Time) {
	if p := m.known(x); p != nil && m.role == leading {
		p.alive = max(p.alive, at)
	}
}

// answersLate reports whether a member has not answered the newest pings yet, or servers of the chain were busy a moment ago.
func (m *Machine) answersLate(now Time, x Member) bool {
	p := m.known(x)
	return p == nil || now-p.answered >= 2*m.set.PingEvery || m.head.busy != 0 && now-m.head.busy < m.set.SilentAfter
}

// lateAnswer is longer than a server with processors to spare ever needs to answer a ping.
const lateAnswer = 100 * time.Millisecond

// answeredAfter records how long a member needed to answer a ping.
func (h *head) answeredAfter(now, took Time) {
	if took >= lateAnswer {
		h.busy = now
	}
}

// goOn records that this head acts after a while. It looks at its chain every PingEvery/2 unless the process is held up.
func (m *Machine) goOn(now Time) {
	if m.role == leading && !m.head.quiet && now-m.now >= 2*m.set.PingEvery {
		m.head.held, m.head.busy = now, now
	}
}
