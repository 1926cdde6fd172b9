package chain

import (
	"fmt"
	"slices"
	"time"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

// head is the additional state of the head of a chain.
//
//	placements of the map ⊇ candidates ──near──▶ order (counts by reports) ──settled──▶ list (the lease row's)
//	                             ▲                     │ silent, slow, not reached
//	                             └─────────────────────┴──▶ owed: may be in the list, or sure; nothing is acknowledged
type head struct {
	placements []Member
	slow       []Member            // of the placements, those on slow disks
	fixed      bool                // the list cannot be changed
	mapped     []point.PlacementID // nil: not known
	min        int
	demanded   bool // with a shorter list frames are refused

	peers   []*peer  // a few
	list    []Member // of the lease row, as last seen
	asked   []Member // the list that was requested and not answered; nil: none
	began   Time     // when this placement began to lead in this epoch
	since   Time     // when the list was last as it should be
	ordered Time     // when the order of the chain began
	retry   Time     // when to request again after it was not changed
	owed    []owed

	unacked  []chunk // frames that not all have
	bytes    int     // of frames
	acked    point.Serial
	progress Time // when acked rose last, or nothing was unacked
	pinged   Time
	stirred  Time // when something last kept the chain from being quiet
	woke     Time // when it was quiet last: silence counts from then
	held     Time // when this process was last held up itself: inputs that came meanwhile may still wait
	busy     Time // when that was, or an answer to a ping was last late; 0: never

	// While it is quiet.
	quiet     bool // the members were asked to be quiet; no ping is sent until the next time
	quietFrom Time // when they were asked first, of this rest or the last
	quietSent Time // when they were asked last

	// The log's end one to two joinLags ago: a placement must have that to be added.
	before, lately point.Serial
	latelyAt       Time
}

// joinLag bounds how far the fsynced end of a placement may be behind when it is added to the chain.
const joinLag = time.Second

// peer is a placement that is not the head, in the chain or not.
type peer struct {
	member      Member
	since       Time // when it was invited into the epoch, or added to the chain
	lastMessage Time
	alive       Time   // when its server sent anything last, on whatever partition's behalf (Alive)
	answered    Time   // when the newest ping of ours that it answered was sent, or the order began that it follows
	version     uint64 // of the order that it follows; 0: it has not joined
	own, end    point.Serial
	got         Time // when end last rose
	invited     Time
	settled     bool // it has everything that was acknowledged, and counts for later frames
	granted     Time // when an answer last said how long it may be sure
	leaving     bool // its process ends, and is not sure any more
	rests       Time // Sent of the newest ping that it agreed to be quiet at; 0: none
	late        bool // its ping of lateSent was answered while this head was not sure
	lateSent    Time

	// Of a placement that was slow, or not reached.
	near  Time // since when it keeps up; 0: it does not
	pause Time // how long it must keep up; 0: it was neither
}

// owed is a member that is not in the chain but may be listed, or sure: while there is one, nothing is acknowledged.
type owed struct {
	member Member
	until  Time // 0: its removal may not be committed yet
}

func (m *Machine) takeLead(in Lead) {
	switch {
	case m.cutting: // frames to be cut are not acknowledged: no placement has this one's reports in the epoch of the cut
		m.lead = &in
		return
	case in.Epoch < m.epoch || in.Epoch == m.epoch && m.role == following || in.Epoch <= m.end.Epoch:
		m.do(Over{in.Epoch, "a higher epoch has begun here"})
		return
	case m.role == leading && in.Epoch == m.epoch:
		return
	}
	var followed Member
	if m.role == following {
		followed = m.order[0]
	}
	m.rest()
	m.role, m.epoch, m.raised, m.once = leading, in.Epoch, in.Epoch, true
	m.base = slices.Clone(m.ends)
	m.head.list = slices.Clone(in.List)
	m.head.began, m.head.progress, m.head.pinged, m.head.stirred = m.now, m.now, m.now-m.set.PingEvery, m.now
	m.head.before, m.head.lately, m.head.latelyAt, m.head.since = m.end, m.end, m.now, m.now
	for _, x := range in.Dropped { // the old head called itself sure for as long as this placement answered it
		m.head.owed = append(m.head.owed, owed{x, max(m.ponged+unsureAfter, 1)})
	}
	for _, x := range m.head.placements { // an old head may have removed it from the list, or made it sure, a moment ago
		if !slices.Contains(in.List, x) && !slices.Contains(in.Dropped, x) && x != m.self {
			m.head.owed = append(m.head.owed, owed{x, m.now + unsureAfter})
		}
	}
	for _, o := range m.former { // or it is no placement of the map any more, or this head made it sure itself
		head := o.member == followed && slices.Contains(in.Dropped, followed) // it was sure by this placement's answers alone, which are counted above
		if !head && !slices.Contains(in.List, o.member) {
			m.head.owed = append(m.head.owed, o)
		}
	}
	order := []Member{m.self}
	for _, x := range in.List {
		if x != m.self {
			order = append(order, x)
		}
	}
	m.reorder(order)
}

// reorder begins a new order of the chain.
func (m *Machine) reorder(order []Member) {
	h := &m.head
	m.endOrder()
	m.version++
	m.order = order
	h.owed = slices.DeleteFunc(h.owed, func(o owed) bool { return slices.Contains(order, o.member) })
	for _, x := range m.mayBeListed() {
		if !slices.Contains(order, x) && !slices.ContainsFunc(h.owed, func(o owed) bool { return o.member == x }) {
			h.owed = append(h.owed, owed{member: x})
		}
	}
	m.refeed()
	h.ordered, h.progress, h.stirred = m.now, m.now, m.now
	for _, x := range m.others() {
		m.invite(x)
	}
}

// refeed feeds the first of the chain, and all that may join.
func (m *Machine) refeed() {
	m.feedOnly(append(slices.Clone(m.successors()), m.candidates()...)...)
}

// mayBeListed are the members that the lease row may name now. The result must not be changed.
func (m *Machine) mayBeListed() []Member {
	if m.head.asked == nil {
		return m.head.list
	}
	out := slices.Clone(m.head.list)
	for _, x := range m.head.asked {
		if !slices.Contains(out, x) {
			out = append(out, x)
		}
	}
	return out
}

// candidates are the placements that are not in the chain: those of the map, and those that may be listed.
func (m *Machine) candidates() []Member {
	var out []Member
	for _, all := range [][]Member{m.head.list, m.head.asked, m.head.placements} {
		for _, x := range all {
			if !slices.Contains(m.order, x) && !slices.Contains(out, x) {
				out = append(out, x)
			}
		}
	}
	return out
}

// others are all placements but this one.
func (m *Machine) others() []Member { return append(slices.Clone(m.order[1:]), m.candidates()...) }

func (m *Machine) peer(x Member) *peer {
	p := m.known(x)
	if p == nil {
		p = &peer{member: x, since: m.now, lastMessage: m.now, answered: m.now - sureFor}
		m.head.peers = append(m.head.peers, p)
	}
	return p
}

// known returns the peer of a placement that sent a message or was invited; nil: it did not, and was not.
func (m *Machine) known(x Member) *peer {
	for _, p := range m.head.peers {
		if p.member == x {
			return p
		}
	}
	return nil
}

// invite makes a placement follow this head in the chain's newest order.
func (m *Machine) invite(x Member) {
	if slices.Contains(m.order, x) || slices.Contains(m.candidates(), x) {
		m.peer(x).invited = m.now
		m.send(x, Begin{m.epoch, m.version, slices.Clone(m.order), slices.Clone(m.base)})
	}
}

// appended records a frame of this head's own. If its epoch was overtaken while the frame was logged, the frame is not acknowledged, and may be surplus.
func (m *Machine) appended(in Appended) {
	if in.Prev != m.end {
		fault.Bug("I6: frame %v follows %v, but the log ends at %v", in.Serial, in.Prev, m.end)
	}
	m.ends, m.end = grown(m.ends, in.Serial), in.Serial
	if m.role != leading || in.Serial.Epoch != m.epoch {
		m.compare()
		return
	}
	h := &m.head
	if len(h.unacked) == 0 {
		h.progress = m.now
	}
	h.unacked = append(h.unacked, chunk{in.Serial, in.Bytes})
	h.bytes += in.Bytes
	h.stirred = m.now
	m.wake()
	for _, f := range m.feeds {
		m.pump(f)
	}
}

// Accepts returns nil if the head may accept a frame now, else the reason. Errors are Unavailable (fewer than min_in_sync placements keep new
// frames), Throttled (too many frames wait for the placements) and Stale (this placement does not lead).
func (m *Machine) Accepts() error {
	h := &m.head
	switch {
	case m.role != leading:
		return fault.Errorf(fault.Stale, "this placement does not lead")
	case h.demanded && m.inSync() < h.min:
		return fault.Errorf(fault.Unavailable, "%d of its placements are in sync, and the table demands %d", m.inSync(), h.min)
	case m.kept() != nil:
		x := m.kept()
		return fault.Errorf(fault.Unavailable, "placement %s on server %s does not answer, and without it fewer than %d are in sync", x.Placement, x.Server, m.fewest())
	case h.bytes > m.set.BacklogBytesMax:
		return fault.Errorf(fault.Throttled, "%d bytes wait for the partition's other placements, at most %d may", h.bytes, m.set.BacklogBytesMax)
	}
	return nil
}

// unreached returns the member that no frame has reached for a time, though its predecessor in the chain has some for it: the link between the two is cut, or
// its direction towards the member. A member that is only busy, or has a slow disk, gets frames and is late with reports.
func (m *Machine) unreached(now Time, within time.Duration) *Member {
	h := &m.head
	if len(h.unacked) == 0 || now-h.progress < within {
		return nil
	}
	first := h.unacked[0].upto
	for _, x := range m.order[1:] {
		if p := m.known(x); p == nil || p.end.Less(first) {
			if p == nil || p.version != m.version || now-max(p.got, p.since) < within {
				return nil
			}
			return &x
		}
	}
	return nil
}

// silentSince is when the last message of a member came, or when its silence began to count.
func (m *Machine) silentSince(x Member) Time {
	since := max(m.head.began, m.head.woke)
	if p := m.known(x); p != nil {
		since = max(p.lastMessage, p.since, m.head.woke)
	}
	return since
}

// fewest is the minimum size of the chain and the list: min_in_sync, once they had that size. A list that was shorter from the start was
// shortened by a person, or was written by a version without chains: it is used as it is, and grows.
func (m *Machine) fewest() int { return max(1, min(m.head.min, len(m.head.list))) }

// inSync is the number of placements that keep new frames and are surely listed.
func (m *Machine) inSync() (n int) {
	for _, x := range m.order {
		if m.counted(x) {
			n++
		}
	}
	return n
}

// kept is a member that would be removed if enough others were left.
func (m *Machine) kept() *Member {
	for _, x := range m.order[1:] {
		if m.silent(m.peer(x)) && len(m.order) <= m.fewest() {
			return &x
		}
	}
	return nil
}

// acknowledge finds the frames that all have. Members with an unfinished removal hold it up.
func (m *Machine) acknowledge() {
	h := &m.head
	upto, all := m.least()
	if !all || !h.acked.Less(upto) && m.now-h.progress >= m.set.PingEvery {
		upto, all = m.direct()
	}
	if !all {
		return
	}
	if !upto.Less(later(h.acked, last(m.base))) {
		for _, x := range m.order[1:] {
			m.peer(x).settled = true
		}
	}
	if len(h.owed) > 0 || !h.acked.Less(upto) {
		return
	}
	h.acked, h.progress = upto, m.now
	for len(h.unacked) > 0 && !upto.Less(h.unacked[0].upto) {
		h.bytes -= h.unacked[0].bytes
		h.unacked = h.unacked[1:]
	}
	m.do(Acked{m.epoch, upto})
}

// direct is the end that all of the chain have fsynced and applied, by the members' pings to this head: reports do not come if a link between two members is
// cut in their direction. all: each member follows this order.
func (m *Machine) direct() (upto point.Serial, all bool) {
	upto = m.own
	for _, x := range m.order[1:] {
		p := m.known(x)
		if p == nil || p.version != m.version {
			return point.Serial{}, false
		}
		upto = lower(upto, p.own)
	}
	return upto, true
}

func (m *Machine) pingOfMember(from Member, msg Ping) {
	if !slices.Contains(m.order, from) && !slices.Contains(m.candidates(), from) {
		return
	}
	p := m.peer(from)
	if p.end.Less(msg.End) {
		p.got = m.now
	}
	follows := p.version != msg.Version && msg.Version == m.version
	p.lastMessage, p.version, p.own, p.end, p.leaving = m.now, msg.Version, msg.Own, msg.End, false
	if p.rests > 0 || msg.Version == 0 { // it was quiet, and is not: a read needs it to be sure, or its process is a new one
		m.wake()
	}
	switch {
	case msg.Version == m.version: // it follows this order, so it answered after that began: the first row that the order acknowledges is read at once
		p.answered = max(p.answered, m.head.ordered)
	case m.now-p.invited >= m.set.PingEvery:
		m.invite(from)
	}
	if f := m.feedOf(from); f != nil && msg.Version != 0 {
		m.noteEnd(f, msg.End)
	}
	if follows {
		m.reportAgain(from)
	}
	m.grant(p, msg.Sent)
}

// reportAgain makes a member report once it and its predecessor follow this order. Else, if the member followed first, its report came to a predecessor that
// ignored it, and frames would wait PingEvery for its next report.
func (m *Machine) reportAgain(joined Member) {
	i := slices.Index(m.order, joined)
	for _, at := range [...]int{i, i + 1} {
		if at < 2 || at >= len(m.order) { // the first member reports to this head
			continue
		}
		before, next := m.known(m.order[at-1]), m.known(m.order[at])
		if before != nil && next != nil && before.version == m.version && next.version == m.version {
			m.invite(m.order[at])
		}
	}
}

// grant answers a member's ping with the time for which it may be sure.
func (m *Machine) grant(p *peer, sent Time) {
	p.late = false
	if p.version == 0 || p.leaving || !p.settled || !m.counted(p.member) || m.unmapped(p.member) || m.spared(p.member) && !m.head.fixed {
		return
	}
	left := max(0, m.surelyLeads(m.now))
	p.late, p.lateSent = left == 0 && m.head.woke > 0 && m.now-m.head.woke < sureFor, sent
	p.granted = m.now
	m.send(p.member, Pong{Epoch: m.epoch, Sent: sent, For: left})
}

// grantLate answers pings again once this head is sure: those since the end of its rest that it answered while it was not sure. So a read need not wait for the
// next ping.
func (m *Machine) grantLate() {
	if m.surelyLeads(m.now) <= 0 {
		return
	}
	for _, p := range m.head.peers {
		if p.late && m.now-p.lastMessage < sureFor {
			m.grant(p, p.lateSent)
		}
	}
}

// counted reports whether a member is in the chain and surely in the row's list: also in a requested one.
func (m *Machine) counted(x Member) bool {
	h := &m.head
	return slices.Contains(m.order, x) && slices.Contains(h.list, x) && (h.asked == nil || slices.Contains(h.asked, x))
}

// surelyLeads returns for how long this head is surely the only one: every placement that might lead after it, which is every one that may be listed, follows
// it now, or did less than sureFor ago.
func (m *Machine) surelyLeads(now Time) Time {
	left := sureFor
	for _, x := range m.mayBeListed() {
		if x == m.self {
			continue
		}
		p := m.known(x)
		if p == nil {
			return 0
		}
		left = min(left, p.answered+sureFor-now)
	}
	return left
}

func (m *Machine) silent(p *peer) bool {
	return !m.head.quiet && m.now-max(p.lastMessage, p.since, m.head.woke) >= m.set.SilentAfter
}

// tendChain maintains the chain as time goes on.
func (m *Machine) tendChain() {
	h := &m.head
	if len(h.unacked) == 0 {
		h.progress = m.now
	}
	if n := len(h.owed); n > 0 {
		h.owed = slices.DeleteFunc(h.owed, func(o owed) bool { return o.until != 0 && m.now >= o.until })
		if len(h.owed) < n {
			h.progress = m.now
		}
	}
	m.acknowledge()
	if h.quiet && m.rests() {
		return
	}
	if m.now-h.pinged >= m.set.PingEvery {
		h.pinged = m.now
		if m.falls() {
			return
		}
		for _, x := range m.others() {
			if p := m.peer(x); p.version != m.version || m.now-p.lastMessage >= 2*m.set.PingEvery { // its process may be a new one, without a chain
				m.invite(x)
			}
			m.send(x, m.ask(m.version))
		}
		for _, x := range m.candidates() {
			if m.feedOf(x) == nil {
				m.refeed()
				break
			}
		}
		for _, f := range m.feeds {
			m.pump(f)
		}
	}
	if m.now-h.latelyAt >= joinLag {
		h.before, h.lately, h.latelyAt = h.lately, m.end, m.now
	}
	m.takeOut()
	m.takeIn()
	m.keepList()
	if len(h.unacked) > 0 {
		if why := m.Stalled(m.now); why != nil {
			m.do(Stall{m.epoch, why})
		}
	}
}

// takeOut removes a member from the chain that is silent, or that delays all acks.
func (m *Machine) takeOut() {
	for _, x := range m.order[1:] {
		if m.silent(m.peer(x)) {
			m.drop(x, Silent)
			return
		}
	}
	for _, x := range m.order[1:] {
		if m.peer(x).leaving && m.agreed() && len(m.order) > m.fewest() {
			m.drop(x, Stops)
			return
		}
	}
	for _, x := range m.order[1:] {
		if m.unmapped(x) && !slices.Contains(m.mayBeListed(), x) { // the store refuses to list it, and the list would never agree
			m.drop(x, Unmapped)
			return
		}
		if m.unmapped(x) && !m.head.fixed && m.agreed() && m.unsure(x) { // one at a time: until the store answers, all that may be listed must confirm frames
			m.drop(x, Unmapped)
			return
		}
	}
	for _, x := range m.order[1:] {
		if m.spared(x) && !m.head.fixed && m.agreed() && m.unsure(x) { // rows need not wait for its removal, only for the change of the lease row
			m.drop(x, SlowDisk)
			return
		}
	}
	h := &m.head
	if len(h.owed) > 0 {
		return
	}
	if x := m.unreached(m.now, m.set.SilentAfter); x != nil {
		m.dropFor(*x, Unreached, m.set.ReachAfter)
		return
	}
	if m.now-h.progress < m.set.SlowAfter || len(h.unacked) == 0 {
		return
	}
	if first := h.unacked[0].upto; !m.own.Less(first) { // this placement itself is not the slow one
		for _, x := range m.order[1:] {
			if p := m.peer(x); p.own.Less(first) {
				m.dropFor(x, Slow, m.set.RelistAfter)
				return
			}
		}
	}
}

// dropFor removes a member that answers but delays all acks. It must keep up for a while before it is added again, each time for twice as long.
func (m *Machine) dropFor(x Member, why Event, first time.Duration) {
	p := m.peer(x)
	if m.now-p.since > min(wellFor*p.pause, m.set.RelistMax) {
		p.pause = 0 // it kept up for long since, so this is a new failure
	}
	p.pause = min(max(2*p.pause, first), m.set.RelistMax)
	m.drop(x, why)
}

// unmapped reports whether the map has a placement no more. Such a placement may be listed, and have every row; its server may remove it only after it left the
// list.
func (m *Machine) unmapped(x Member) bool {
	return m.head.mapped != nil && !slices.Contains(m.head.mapped, x.Placement)
}

// unsure reports whether a member that gets no more grants is by now certainly not sure, by grants of this head or an earlier one. It must be so before it
// leaves the row: the next head does not know of a member that neither row nor map has, and would not wait for it.
func (m *Machine) unsure(x Member) bool { return m.now >= m.unsureFrom(x) }

// unsureFrom is the time from which a member without further grants is certainly not sure: this head's last grant was its last answer to the member, and an
// earlier head could grant nothing any more when this one began.
func (m *Machine) unsureFrom(x Member) Time {
	last := m.head.began
	if p := m.known(x); p != nil {
		last = max(last, p.granted)
	}
	return last + unsureAfter
}

// agreed reports whether the row's list is that of the chain, as last seen.
func (m *Machine) agreed() bool { return m.head.asked == nil && same(m.order, m.head.list) }

// unanswered is how long the row's list has differed from that of the chain.
func (m *Machine) unanswered() Time { return m.now - m.head.since }

func (m *Machine) drop(x Member, why Event) {
	if len(m.order) <= m.fewest() {
		return
	}
	p := m.peer(x)
	p.settled, p.near, p.version = false, 0, 0
	m.do(Note{why, x})
	m.reorder(slices.DeleteFunc(slices.Clone(m.order), func(o Member) bool { return o == x }))
}

// takeIn adds a placement that has caught up to the chain. It counts from now on, before the lease row is asked to list it.
func (m *Machine) takeIn() {
	for _, x := range m.candidates() {
		p, f := m.peer(x), m.feedOf(x)
		if m.lags(p, f) != keepsUp {
			p.near = 0
			continue
		}
		if p.near == 0 {
			p.near = max(m.now, 1)
		}
		// While the store does not answer, no frame is acknowledged without the placements that may be listed: such a one need not prove for long that it keeps
		// up.
		if unanswered := slices.Contains(m.mayBeListed(), x) && m.unanswered() >= joinLag; (m.now-p.near < p.pause || m.unmapped(x) || m.spared(x)) && !unanswered {
			continue
		}
		if f.sent.Less(m.end) {
			continue // frames that just came are passed on first; under steady load this says nothing about how well it keeps up
		}
		p.since = m.now
		m.do(Note{TakenIn, x})
		m.reorder(append(slices.Clone(m.order), x))
		return
	}
}

// lag is the reason why a placement outside of the chain does not keep up with it.
type lag uint8

const (
	keepsUp lag = iota
	lagSilent
	lagLeaving
	lagNotBegun
	lagUnreported
	lagBehind
	lagInFlight
)

// lags returns the lag of a placement outside of the chain. Every step of a head asks, so lagWhy makes the words.
func (m *Machine) lags(p *peer, f *feed) lag {
	switch {
	case m.silent(p):
		return lagSilent
	case p.leaving:
		return lagLeaving
	case p.version == 0:
		return lagNotBegun
	case f == nil || !f.reported:
		return lagUnreported
	case f.upto.Less(m.head.before):
		return lagBehind
	case f.inflight > m.set.JoinLagBytes:
		return lagInFlight
	}
	return keepsUp
}

// lagWhy returns a lag in words, for people.
func (m *Machine) lagWhy(l lag, f *feed) string {
	switch l {
	case lagSilent:
		return "it does not answer"
	case lagLeaving:
		return "its process ends"
	case lagNotBegun:
		return "it has not begun this epoch"
	case lagUnreported:
		return "it has not reported its rows"
	case lagBehind:
		return fmt.Sprintf("it has rows up to %v, of %v one to two seconds ago", f.upto, m.head.before)
	case lagInFlight:
		return fmt.Sprintf("%d bytes are on their way to it", f.inflight)
	}
	return ""
}

// Outside is a placement that is not in the chain of a head.
type Outside struct {
	Member Member
	Why    string
}

// Outside returns the placements that are not in the chain of this head, unless it changed less than within ago.
func (m *Machine) Outside(now Time, within time.Duration) (all []Outside) {
	if m.role != leading || now-m.head.ordered < within {
		return nil
	}
	for _, x := range m.candidates() {
		p := m.known(x)
		if p == nil {
			all = append(all, Outside{x, "it was not asked yet"})
			continue
		}
		f := m.feedOf(x)
		why := m.lagWhy(m.lags(p, f), f)
		switch {
		case why == "" && m.unmapped(x):
			why = "the map has it no more"
		case why == "" && m.spared(x):
			why = "its disk is slow"
		case why == "":
			why = fmt.Sprintf("it has kept up for %v and must for %v, since it held up writers before", (now - p.near).Round(time.Millisecond), p.pause)
		}
		all = append(all, Outside{x, why})
	}
	return all
}

// keepList keeps the lease row's list equal to the chain. A placement that is not listed yet is added once it has everything that was acknowledged.
func (m *Machine) keepList() {
	h := &m.head
	if same(m.order, h.list) {
		h.since = m.now
		return
	}
	want := []Member{m.self}
	for _, x := range m.order[1:] {
		if slices.Contains(h.list, x) || m.peer(x).settled && !m.unmapped(x) {
			want = append(want, x)
		}
	}
	switch {
	case same(want, h.list):
		h.since = m.now
		return
	case h.asked != nil || m.now < h.retry || len(want) < m.fewest():
		return
	}
	m.asks++
	h.asked = want
	m.do(SetList{m.asks, slices.Clone(want)})
}

func same(a, b []Member) bool {
	return len(a) == len(b) && !slices.ContainsFunc(a, func(x Member) bool { return !slices.Contains(b, x) })
}

func (m *Machine) listSet(in ListSet) {
	h := &m.head
	if m.role != leading || h.asked == nil || in.Ask != m.asks { // else of an earlier epoch: the row may have the list that was requested since
		return
	}
	if in.Epoch != m.epoch {
		m.do(Over{m.epoch, "the lease row has another epoch"})
		m.rest()
		return
	}
	h.list, h.asked = slices.Clone(in.List), nil
	if !in.OK {
		h.retry = m.now + m.set.PingEvery
	}
	for i, o := range h.owed {
		if o.until == 0 && !slices.Contains(h.list, o.member) {
			h.owed[i].until = max(m.unsureFrom(o.member), m.now, 1)
			if p := m.known(o.member); p != nil && p.leaving { // it is not sure any more
				h.owed[i].until = max(m.now, 1)
			}
		}
	}
	for _, p := range h.peers {
		if p.leaving {
			m.release(p)
		}
	}
}

// memberLeaves handles the message that a member's process ends. It counts only if that process has received a ping that this head sent after its last answer
// to the placement: else an older process may have sent the message, and a later one may be sure.
func (m *Machine) memberLeaves(from Member, msg Leave) {
	switch {
	case m.role != leading:
		return
	case msg.Epoch > m.epoch:
		m.over(from)
		return
	case msg.Epoch < m.epoch:
		m.invite(from)
		return
	}
	p := m.known(from)
	if p == nil {
		m.send(from, Left{m.epoch})
		return
	}
	p.lastMessage, p.late = m.now, false
	m.wake()
	if msg.Echo <= p.granted {
		m.send(from, m.ask(m.version))
		return
	}
	p.leaving = true
	m.release(p)
}

// release answers a placement that leaves, once no frame waits for its report, or if the chain cannot do without it.
func (m *Machine) release(p *peer) {
	others := 1
	for _, x := range m.others() {
		if o := m.peer(x); !o.leaving && !m.silent(o) {
			others++
		}
	}
	waits := slices.Contains(m.order, p.member) || slices.Contains(m.mayBeListed(), p.member)
	if !waits || others < m.fewest() {
		m.send(p.member, Left{m.epoch})
	}
}
