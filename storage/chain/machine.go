package chain

import (
	"slices"

	"github.com/spillwaydb/spillway/protocols/point"
)

// Machine is one placement's part in the chain of its partition. It belongs to one goroutine.
type Machine struct {
	// Constant after New.
	self Member
	set  Settings

	// The log. Invariant: own <= end.
	ends []point.EpochEnd
	end  point.Serial // of the frames handed to the log, in order
	own  point.Serial // fsynced and applied

	// Promises (I3). Invariant: raised <= epoch.
	epoch  point.Epoch // the highest that was begun; messages under a lower one are refused
	raised point.Epoch // durably, and begun here since this process started
	role   role

	// In the epoch, as head or member.
	version uint64
	order   []Member         // of the chain; the first is the head
	base    []point.EpochEnd // of the head's log when the epoch began
	cutting bool
	lead    *Lead // waits for the cut
	feeds   []*feed

	// As a member.
	ponged Time   // when this placement last said that it follows a head, which may be sure for a while after
	said   uint64 // the version of the order that it said it follows; 0: of none in this epoch
	sure   Time   // until when this placement's answers are sure
	once   bool   // it led, or was listed, at some time
	pinged Time
	quiet  bool // it agreed that the chain is at rest, and does not ping
	rested Time // when it agreed last
	wanted Time // when a read last needed it to be sure; only if wants
	wants  bool
	awake  int    // chains of this process
	former []owed // members of orders that are over, with the time until which a head that named them may have made them sure; the zero Member: some of an order before the restart

	// While the process ends.
	leaving bool
	echo    Time // Sent of the head's newest ping in the epoch
	left    bool // the head answered in the epoch

	asked []Time // Sent of the newest pings, oldest first; at most askedMax

	head head
	asks uint64 // the newest SetList's

	// As of this Step.
	now Time
	out []Effect
}

type role uint8

const (
	idle role = iota
	following
	leading
)

// New makes the machine of a placement with the epoch that its brick promised and the ends of its log, fsynced and applied.
func New(now Time, self Member, epoch point.Epoch, ends []point.EpochEnd, s Settings) *Machine {
	s.setDefaults()
	m := &Machine{self: self, set: s, ends: slices.Clone(ends), end: last(ends), own: last(ends), epoch: epoch,
		ponged: now, sure: now, pinged: now - s.PingEvery, now: now, asks: uint64(now)}
	if epoch > 0 || len(ends) > 0 { // an earlier process may have made a placement sure that neither list nor map has any more
		m.former = []owed{{until: max(now+unsureAfter, 1)}}
	}
	return m
}

// Step handles one input at a time of the server's own clock, which never goes back, and appends the effects.
func (m *Machine) Step(now Time, in Input, out []Effect) []Effect {
	m.goOn(now)
	m.now, m.out = now, out
	switch in := in.(type) {
	case Tick:
		m.awake = in.Awake
	case Lead:
		m.takeLead(in)
	case Lease:
		if m.role == leading && (in.Epoch != m.epoch || !in.GoesOn) {
			m.do(Over{m.epoch, "its lease is over"})
			m.rest()
		}
	case Placements:
		m.head.placements, m.head.slow, m.head.fixed, m.head.min, m.head.demanded, m.head.mapped = in.All, in.Slow, in.Fixed, in.MinInSync, in.Demanded, in.Mapped
	case ListSet:
		m.listSet(in)
	case Appended:
		m.appended(in)
	case Synced:
		m.own = lower(m.end, later(m.own, in.Upto))
		m.report()
	case Failed:
		m.failed(in)
	case Adopted:
		if last(in.Ends).Less(m.end) {
			break // frames have come since the ends were read, and the machine has them
		}
		m.ends, m.end, m.own = slices.Clone(in.Ends), last(in.Ends), last(in.Ends)
		m.report()
	case Passed:
		m.passed(in)
	case Received:
		m.receive(in.From, in.Message)
	case Leaving:
		m.leaving, m.pinged = true, m.now-m.set.PingEvery
		m.wake()
	case Wanted:
		m.wants, m.wanted = true, m.now
		m.wake()
	case Linked:
		if slices.ContainsFunc(m.order, func(x Member) bool { return x.Server == in.Server }) {
			m.wake()
		}
	case Raised:
		m.raised = max(m.raised, in.Epoch)
		if m.compare(); m.joined() {
			m.pinged = m.now - m.set.PingEvery // the head waits for this member: tendMember answers at once
		}
	case WasCut:
		m.wasCut(in)
	}
	switch m.role {
	case leading:
		m.tendChain()
	case following:
		m.tendMember()
	}
	out, m.out = m.out, nil
	return out
}

// Sure reports whether this placement surely has every row that was acknowledged to writers, as far as the chain can prove. A valid
// lease is as good.
func (m *Machine) Sure(now Time) bool {
	switch m.role {
	case leading:
		return m.surelyLeads(now) > 0
	case following:
		return m.joined() && now < m.sure && !m.leaving
	}
	return false
}

// Once reports whether this placement led, or a head answered it as a listed one, at some time since New: so its store had every row that was
// acknowledged then, and lost none since. A store that was emptied begins without it.
func (m *Machine) Once() bool { return m.once }

// Joined reports whether this placement is a member that accepts frames and segments: it has promised the epoch durably, and surplus is cut.
func (m *Machine) Joined() bool { return m.role == following && m.joined() }

// Silent returns the members that the lease row may list and that did not answer this head for as long as a member may be silent. They stay listed where the list may not become shorter: then no row
// is accepted.
func (m *Machine) Silent(now Time) (silent []Member) {
	if m.role != leading || m.head.quiet {
		return nil
	}
	for _, x := range m.mayBeListed() {
		if x != m.self && now-m.silentSince(x) >= m.set.SilentAfter {
			silent = append(silent, x)
		}
	}
	return silent
}

// Left reports whether the head of the epoch has answered that no frame waits for this placement, which is leaving; headless: it follows no head.
func (m *Machine) Left() (left, headless bool) { return m.left, m.role == idle }

// Epoch returns the epoch that this placement promised, and whether it leads in it.
func (m *Machine) Epoch() (epoch point.Epoch, leads bool) { return m.epoch, m.role == leading }

// End is where the log ends, and up to where it is fsynced and applied.
func (m *Machine) End() (end, own point.Serial) { return m.end, m.own }

func (m *Machine) do(e Effect) { m.out = append(m.out, e) }

func (m *Machine) send(to Member, msg Message) { m.do(Send{to, msg}) }

// rest ends this placement's part in an epoch. The promise stays.
func (m *Machine) rest() {
	m.endOrder()
	m.role, m.version, m.order, m.base, m.feeds, m.sure, m.asked = idle, 0, nil, nil, nil, m.now, nil
	m.echo, m.left, m.quiet, m.said = 0, false, false, 0
	m.head = head{placements: m.head.placements, slow: m.head.slow, fixed: m.head.fixed, min: m.head.min, demanded: m.head.demanded, mapped: m.head.mapped}
}

// endOrder records the members of the order that ends now: some may be in neither map nor list any more.
func (m *Machine) endOrder() {
	m.former = slices.DeleteFunc(m.former, func(o owed) bool { return m.now >= o.until || slices.Contains(m.order, o.member) })
	for _, x := range m.order {
		if x != m.self {
			m.former = append(m.former, owed{x, max(m.now+unsureAfter, 1)})
		}
	}
}

// joined reports whether this placement may accept and report in its epoch.
func (m *Machine) joined() bool {
	return m.role != idle && !m.cutting && m.raised == m.epoch
}

func (m *Machine) receive(from Member, msg Message) {
	switch msg := msg.(type) {
	case Begin:
		m.begin(from, msg)
	case Pass:
		m.accept(from, msg)
	case Report:
		m.reported(from, msg)
	case Ping:
		m.ping(from, msg)
	case Pong:
		m.pong(from, msg)
	case Refuse:
		m.refused(from, msg)
	case Leave:
		m.memberLeaves(from, msg)
	case Left:
		m.left = m.left || m.role == following && msg.Epoch == m.epoch
	}
}

func (m *Machine) refuse(to Member) { m.send(to, Refuse{m.epoch, m.end}) }

func (m *Machine) reported(from Member, msg Report) {
	f := m.feedOf(from)
	if msg.Epoch != m.epoch || f == nil {
		return
	}
	if msg.Version == m.version {
		f.ready = true
		f.upto, f.reported = later(f.upto, msg.Upto), true
		m.report()
	}
	m.noteEnd(f, msg.End)
}

func (m *Machine) ping(from Member, msg Ping) {
	if m.role == following && msg.Epoch == m.epoch && len(m.order) > 0 && from == m.order[0] {
		if m.echo = max(m.echo, msg.Sent); m.leaving {
			m.leave()
		}
	}
	switch {
	case msg.Epoch < m.epoch:
		if m.role == leading {
			m.invite(from)
		} else {
			m.refuse(from)
		}
	case m.role == leading:
		if msg.Epoch > m.epoch {
			m.over(from)
			return
		}
		m.pingOfMember(from, msg)
	case msg.Epoch == m.epoch && m.role == idle && msg.Version == 0: // neither leads: else they would answer each other for ever
	case msg.Epoch == m.epoch && m.role == idle: // restarted: the head has not seen that
		m.send(from, Ping{Epoch: m.epoch, Sent: m.now, Own: m.own, End: m.end})
	case msg.Epoch == m.epoch && m.joined() && len(m.order) > 0 && from == m.order[0]:
		m.ponged = m.now
		m.send(from, Pong{Epoch: m.epoch, Sent: msg.Sent, Quiet: m.agrees(msg)})
	}
}

func (m *Machine) pong(from Member, msg Pong) {
	switch {
	case msg.Epoch != m.epoch || !slices.Contains(m.asked, msg.Sent): // not a ping of this process and role: perhaps one from before a reboot, by another clock
	case m.role == leading:
		if p := m.known(from); p != nil {
			p.lastMessage, p.answered = m.now, max(p.answered, msg.Sent)
			m.head.answeredAfter(m.now, m.now-msg.Sent)
			if msg.Quiet && msg.Sent >= m.head.quietFrom {
				p.rests = max(p.rests, msg.Sent)
			}
			m.grantLate()
		}
	case m.role == following && m.joined() && !m.leaving:
		m.sure = max(m.sure, msg.Sent+min(msg.For, sureFor))
		m.once = true
	}
}

// askedMax bounds the pings that may be answered late: those of one second, and some more at a change of order.
const askedMax = 16

// ask returns a ping, and notes when it was sent.
func (m *Machine) ask(version uint64) Ping {
	if n := len(m.asked); n == 0 || m.asked[n-1] != m.now {
		if n == askedMax {
			m.asked = m.asked[:copy(m.asked, m.asked[1:])]
		}
		m.asked = append(m.asked, m.now)
	}
	return Ping{Epoch: m.epoch, Version: version, Sent: m.now, Own: m.own, End: m.end}
}

func (m *Machine) refused(from Member, msg Refuse) {
	switch {
	case msg.Epoch > m.epoch:
		if m.role == leading {
			m.over(from)
		}
	case msg.Epoch == m.epoch:
		if f := m.feedOf(from); f != nil {
			m.rewind(f, msg.End)
		}
	}
}

// over ends the epoch of a head that a higher one has overtaken.
func (m *Machine) over(by Member) {
	m.do(Over{m.epoch, "placement " + by.Placement.String() + " on " + string(by.Server) + " follows a higher epoch"})
	m.rest()
}

// failed ends the epoch of a head if its log failed behind frames that it may have passed on: no serial of that epoch is used again. A member goes on
// from where its log ends.
func (m *Machine) failed(in Failed) {
	m.ends, m.end = cutAt(m.ends, in.End), in.End
	m.own = lower(m.own, m.end)
	if m.role == leading {
		m.do(Over{m.epoch, "a frame could not be logged"})
		m.rest()
	}
}

func later(a, b point.Serial) point.Serial {
	if a.Less(b) {
		return b
	}
	return a
}
