package lease

import (
	"slices"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/point"
)

// claim is how a partition may be acquired.
type claim struct {
	// The comparisons of the acquiring transaction besides the row.
	also []coord.Condition
	bear bool // no server ever led: the born row is written too
}

// claimOf returns how a partition that is not ours may be acquired now, if at all.
func (m *Machine) claimOf(e *entry) (claim, bool) {
	var c claim
	// The row's placements are as of this very map: every change of a map that moves them writes into the row, if all builds do so.
	table := coord.Condition{Key: tableKey(e.p.Table), Revision: m.tableRowOf(e)}
	if !e.present() {
		t := m.table(e.p.Table)
		if t.sweptBad || t.swept > m.seqOf(e) {
			t.await(e) // the row that would stop us may have been swept; a newer map is on its way
			return c, false
		}
		c.also = append(c.also, coord.Condition{Key: e.bornKey, Revision: e.born}, coord.Condition{Key: SweptKey(e.p.Table), Revision: t.sweptRev})
		if !m.guarding {
			c.also = append(c.also, table)
		}
		if e.born == 0 {
			c.bear = true
			return c, true
		}
		if !e.intact {
			return c, false // the in-sync list is lost: a person must set it
		}
	}
	row := &e.row
	if e.present() && m.open(e) && !m.guarding {
		c.also = append(c.also, table)
	}
	switch {
	case e.unreadable || row.State == Gone:
		return c, false
	case row.State == Free:
		c.bear = e.born == 0
		if c.bear {
			c.also = append(c.also, coord.Condition{Key: e.bornKey})
		}
		return c, true
	case m.ourEarlier(e):
		return c, true // an earlier boot of the directory that we have locked
	}
	b := m.beats[row.Holder]
	switch own := row.Holder == m.self.Server && row.Boot == m.self.Boot; {
	case own && (b == nil || b.beat.Boot != m.self.Boot): // it was deleted too: the next renewal ends in a lapse
		m.at(m.now + m.set.RenewEvery)
		return c, false
	case own: // our row was deleted: the comparison of our heartbeat proves that no other server acquired it
	case b == nil || b.rev == 0:
		m.awaitMark(e)
		return c, false
	case !m.silentFor(e, b):
		return c, false
	}
	c.also = append(c.also, coord.Condition{Key: BeatKey(row.Holder), Revision: b.rev})
	return c, true
}

// planTake acquires a partition if that is allowed and it is our turn.
func (m *Machine) planTake(e *entry) {
	if e.assigned == nil || e.running || !m.good(m.now) || m.leave || m.floor == 0 || m.prohibited(e, m.self.Server) || m.offline(e) {
		return
	}
	if m.draining && !m.onlyHere(e) {
		if m.hasRowsHere(e) {
			m.awaitOthers(e)
		}
		return
	}
	members := m.members(e)
	if !m.listed(e, members) {
		m.awaitStranded(e)
		return
	}
	if !m.mapReady(e) {
		return
	}
	if (m.clockOff || m.disk.slow) && slices.ContainsFunc(members, func(c Member) bool { return m.candidate(e, c) && e.assigned.places(c) }) {
		m.awaitOthers(e)
		return
	}
	c, ok := m.claimOf(e)
	if !ok {
		e.ready = false
		return
	}
	if m.ourEarlier(e) && m.isDamaged(e, m.self.Server) && m.wholeElsewhere(e, members) {
		m.release(e) // no server need wait until that boot, which has ended, is silent
		return
	}
	if !e.ready {
		e.ready, e.readyAt = true, m.now
	}
	if at := e.readyAt + m.turn(e, members); m.now < at {
		m.at(min(at, m.now+m.set.RenewEvery)) // by then others hold more, or less
		return
	}
	if !m.mayAsk() {
		m.queue(e)
		return
	}
	m.take(e, c, members)
}

// awaitOthers looks again when those that acquire a partition rather than this server may be silent, too: nothing else need happen then.
func (m *Machine) awaitOthers(e *entry) {
	if e.row.State != Held || e.row.Holder == m.self.Server || m.silentFor(e, m.beats[e.row.Holder]) {
		m.at(m.now + m.set.TakeAfter)
	}
}

// ourEarlier reports whether the row names an earlier boot of the directory that we have locked: that boot has ended.
func (m *Machine) ourEarlier(e *entry) bool {
	return e.row.State == Held && e.row.Holder == m.self.Server && e.row.Store == m.self.Store && e.row.Boot != m.self.Boot
}

// onlyHere reports whether no other server could lead a partition with rows and accept its rows: this server continues to lead although it drains, until
// another can. A member that the map does not list accepts no rows.
func (m *Machine) onlyHere(e *entry) bool {
	return m.hasRowsHere(e) && !slices.ContainsFunc(e.row.InSync, func(c Member) bool { return m.candidate(e, c) && e.assigned.places(c) })
}

// hasRowsHere reports whether this server has every row of an assigned partition that has some.
func (m *Machine) hasRowsHere(e *entry) bool {
	return e.present() && !e.row.Empty && e.assigned.places(m.selfAt(e)) && slices.Contains(e.row.InSync, m.selfAt(e))
}

// selfAt is this server's placement of an assigned partition.
func (m *Machine) selfAt(e *entry) Member {
	return Member{e.assigned.Placement, m.self.Server, m.self.Store}
}

func (m *Machine) offline(e *entry) bool {
	return e.row.Offline != nil && (e.present() || e.intact)
}

// silentFor reports whether the holder of a row gave no sign of life for TakeAfter of the time in which the store answered: neither
// the row nor, if it names the row's boot, the heartbeat changed. Until then the partition waits: for a time, for one more
// answer of the store, or with all others of its holder until the holder is silent.
func (m *Machine) silentFor(e *entry, b *beatRow) bool {
	since, beating := e.since, false
	if b != nil {
		if b.beat.Boot == e.row.Boot {
			beating = b.since > since
			since = max(since, b.since)
		} else {
			since = max(since, b.changed)
		}
	}
	if m.reachable.total-since >= m.set.TakeAfter {
		return true
	}
	missing := m.set.TakeAfter - (m.mark() - since)
	switch {
	case missing > 0 && beating:
		if e.waitsOn != b {
			e.waitsOn = b
			b.waiters = append(b.waiters, e)
		}
	case missing > 0:
		m.at(m.now + missing)
	default:
		m.unanswered = append(m.unanswered, e)
		if !m.beat.probing && m.lists == 0 {
			m.beat.probing = true
			m.list(Acquire, request{job: jobProbe, prefix: beatPrefix})
		}
	}
	return false
}

// planSilent touches the partitions that wait for a server to be silent. It costs a look at each server, not at each of its leases.
func (m *Machine) planSilent() {
	for _, b := range m.beats {
		if len(b.waiters) == 0 || b.rev == 0 {
			continue // planMissing sees to those without a row
		}
		if missing := m.set.TakeAfter - (m.mark() - b.since); missing > 0 {
			m.at(m.now + missing)
		} else {
			m.wakeWaiters(b)
		}
	}
}

func (m *Machine) wakeWaiters(b *beatRow) {
	for _, e := range b.waiters {
		if e.waitsOn == b {
			e.waitsOn = nil
			m.touch(e)
		}
	}
	b.waiters = nil
}

// members are the placements that may lead: the in-sync list, or those of the map where the map decides.
func (m *Machine) members(e *entry) []Member {
	if !m.open(e) {
		return e.row.InSync
	}
	var members []Member
	for _, p := range e.assigned.Placements {
		if p.Server == m.self.Server {
			members = append(members, Member{p.ID, p.Server, m.self.Store})
		} else if b := m.beats[p.Server]; b != nil && m.alive(p.Server) {
			members = append(members, Member{p.ID, p.Server, b.beat.Store})
		}
	}
	return members
}

// unborn reports whether no server ever led a partition.
func (m *Machine) unborn(e *entry) bool { return e.born == 0 && (!e.present() || e.row.Epoch == 0) }

// open reports whether the map decides which placements may lead: none ever did, or the partition is empty and was removed from its members, or has no member left.
func (m *Machine) open(e *entry) bool {
	return m.unborn(e) || (e.present() || e.intact) && !e.unreadable && e.row.Vacant() || m.stranded(e)
}

// empty reports whether the row of a partition that is assigned says that no row was ever acked.
func (m *Machine) empty(e *entry) bool {
	return e.present() && !e.unreadable && e.row.Empty && e.row.State != Gone && e.assigned != nil
}

// stranded reports whether a partition is empty and none of its members could acquire it and accept rows: the map has none of their placements, or their
// servers are silent, or have another directory by now. Since no row is lost with them, any placement of the map may lead, once the holder was silent for as
// long as for any other acquisition. A change of the map removes the list of an empty partition (Guard); a coordination store that was restored from a backup
// has the list of before. A member that is here leads by the list.
func (m *Machine) stranded(e *entry) bool {
	return m.empty(e) && !slices.ContainsFunc(e.row.InSync, func(c Member) bool {
		b := m.beats[c.Server]
		switch {
		case c.Server == m.self.Server:
			return c == m.selfAt(e)
		case !e.assigned.places(c):
			return false
		}
		return b != nil && m.alive(c.Server) && b.beat.Store == c.Store
	})
}

// awaitStranded looks again when an empty partition that this server may not acquire could be stranded.
func (m *Machine) awaitStranded(e *entry) {
	if m.empty(e) && (e.row.State != Held || m.silentFor(e, m.beats[e.row.Holder])) {
		m.at(m.now + m.set.TakeAfter)
	}
}

func (m *Machine) listed(e *entry, members []Member) bool {
	return slices.Contains(members, Member{e.assigned.Placement, m.self.Server, m.self.Store})
}

// turn is how long we let others go first. It only orders: the server that should go first may be dead.
func (m *Machine) turn(e *entry, members []Member) Time {
	before, better, placed := 0, false, false
	hurt := m.isDamaged(e, m.self.Server)
	heir, inherits := m.heir(e, members)
	if inherits && heir == m.self.Server && !hurt {
		return 0
	}
	next := m.nextOf(e, members)
	if next == m.self.Server && !hurt {
		return 0
	}
	mine := m.isOver(m.held, m.load) || e.gaveUp && m.now < e.cool
	seen := false
	for _, c := range members {
		if c.Server == m.self.Server {
			seen = true
			continue
		}
		placed = placed || m.able(e, c) && e.assigned.places(c)
		if !m.candidate(e, c) {
			continue
		}
		if inherits && c.Server == heir {
			before++
			continue
		}
		if !hurt && m.isDamaged(e, c.Server) {
			continue // it waits for us
		}
		b := m.beats[c.Server].beat
		over := m.isOver(b.Held, b.Load)
		better = better || !over
		if over == mine && !seen || !over && mine {
			before++
		}
	}
	wait := Time(before) * m.set.TurnStep
	if len(members) < len(e.assigned.Placements) && m.open(e) {
		wait += m.set.OverWait // the others may be about to start, and would be missing in the first in-sync list
	}
	if mine && better {
		wait += m.set.OverWait + m.above()
	}
	if next != "" && next != m.self.Server {
		wait += m.set.OverWait
	}
	if e.gaveUp && m.now < e.cool {
		wait += m.set.OverWait
	}
	if hurt && m.wholeElsewhere(e, members) {
		wait += damagedWait * m.set.OverWait
	}
	if placed && !e.assigned.places(Member{Placement: e.assigned.Placement, Server: m.self.Server}) {
		wait += misplacedWait * m.set.OverWait
	}
	if e.assigned.BrickEpoch == 0 && m.stranded(e) && slices.ContainsFunc(e.row.InSync, func(c Member) bool { return m.able(e, c) }) {
		wait += misplacedWait * m.set.OverWait // the store was restored from a backup: a placement that has led, and may have rows, goes first
	}
	return wait
}

// heir returns the server that acquires a partition first which comes of others and was never led: the one that leads a parent, if it may lead this one too.
// Writers of the parent wait for it, and it was the first to see the map. It does not go by its share: all servers must agree on the one without waiting for each other.
func (m *Machine) heir(e *entry, members []Member) (topology.ServerID, bool) {
	if len(e.assigned.Parents) == 0 || !m.unborn(e) {
		return "", false
	}
	for _, id := range e.assigned.Parents {
		p := m.entries[Partition{e.p.Table, id}]
		if p == nil || !p.present() || p.unreadable || p.row.State != Held {
			continue
		}
		i := slices.IndexFunc(members, func(c Member) bool { return c.Server == p.row.Holder })
		switch b := m.beats[p.row.Holder]; {
		case i < 0:
		case m.ours(p) && m.load < m.set.LoadMax,
			m.candidate(e, members[i]) && b.beat.Boot == p.row.Boot && b.beat.Load < m.set.LoadMax:
			return p.row.Holder, true
		}
	}
	return "", false
}

// tied returns the partitions led here that unload, and their heirs. They are not handed over to even the counts of servers: that would begin the unload anew, or have writers
// wait again soon after the split.
func (m *Machine) tied() map[*entry]bool {
	tied := map[*entry]bool{}
	for _, e := range m.sorted() {
		if e.assigned == nil {
			continue
		}
		for _, id := range e.assigned.Parents {
			if p := m.entries[Partition{e.p.Table, id}]; p != nil && p.present() && p.row.State == Held {
				tied[e], tied[p] = true, true
			}
		}
	}
	return tied
}

// misplacedWait is how much longer, in OverWaits, a placement that the map does not list waits for one that it does: longer than such a one waits for
// any reason. It would lead without accepting rows, and release the lease again.
const misplacedWait = aboveMax + 4

// candidate reports whether another member could acquire the partition now, and is on a server that does not drain.
func (m *Machine) candidate(e *entry, c Member) bool {
	return m.able(e, c) && !m.beats[c.Server].beat.Draining
}

// able reports whether another member is alive and may acquire the partition. One on a server that drains does so if there is no candidate.
func (m *Machine) able(e *entry, c Member) bool {
	b := m.beats[c.Server]
	return c.Server != m.self.Server && b != nil && m.alive(c.Server) && b.beat.Store == c.Store && !m.prohibited(e, c.Server)
}

// aboveMax bounds above, in OverWaits: a live server with room may still be stuck.
const aboveMax = 4

// above is how much longer we wait for our surplus over our share: when many partitions are to be acquired at once, a fast server must not have acquired
// most before the others have begun.
func (m *Machine) above() Time {
	over := Time(max(0, m.held-m.share))
	return min(aboveMax*m.set.OverWait*over/Time(max(m.share, 1)), aboveMax*m.set.OverWait)
}

func (m *Machine) isOver(held int, load float64) bool {
	return held >= m.share || load >= m.set.LoadMax
}

func (m *Machine) take(e *entry, c claim, members []Member) {
	row := Lease{
		State: Held, Holder: m.self.Server, Boot: m.self.Boot, Store: m.self.Store,
		Epoch:  max(point.Epoch(m.rev), e.row.Epoch, e.assigned.BrickEpoch) + 1,
		InSync: slices.Clone(members), Ends: e.row.Ends, Nonce: m.nonce(),
		// A brick that saw an epoch may have rows, whatever was done to the lease rows by hand.
		Empty: (e.row.Empty && (e.present() || !m.unborn(e)) || c.bear && !e.present()) && e.assigned.BrickEpoch == 0,
		Seq:   min(e.row.Seq, m.seqOf(e)),
	}
	if !row.Empty && m.open(e) { // rows are here, and nothing says that the others have them
		row.InSync = slices.DeleteFunc(row.InSync, func(x Member) bool { return x.Server != m.self.Server })
	}
	row.InSync, e.dropped = m.withoutSilent(e, row.InSync)
	e.nonce, e.droppedAt = row.Nonce, row.Epoch
	conditions := append([]coord.Condition{
		{Key: e.rowKey, Revision: e.rev},
		{Key: ProhibitKey(e.p, m.self.Server)},
	}, c.also...)
	writes := []coord.Write{{Key: e.rowKey, Value: row.Encode()}}
	bore := c.bear || !e.present()
	if bore { // where a deleted row is put back too: one that was to be put back earlier, and is late, must not be written over a row that was deleted since
		writes = append(writes, coord.Write{Key: e.bornKey, Value: []byte(`{"v":1}`)})
	}
	e.taking = true
	if e.row.Next != nil && e.row.Next.Server == m.self.Server {
		e.keep = m.now + keepFor
	}
	m.add(item{e: e, what: itemTake, lease: row, bore: bore, conditions: conditions, writes: writes})
	m.account(e) // so that the next one's turn depends on the new count
}

// withoutSilent removes the holder from the list that a taker writes, if enough members remain: it gave no sign of life, and would hold up rows that
// all must acknowledge. A holder that released the row, or that is this directory's, stays.
func (m *Machine) withoutSilent(e *entry, members []Member) (left, dropped []Member) {
	least := e.assigned.MinInSync
	if least == 0 || e.row.State != Held || e.row.Holder == m.self.Server || m.open(e) || len(members) <= least {
		return members, nil
	}
	for _, x := range members {
		if x.Server == e.row.Holder && x.Store == e.row.Store {
			dropped = append(dropped, x)
		} else {
			left = append(left, x)
		}
	}
	return left, dropped
}

// Placed are the placements of the map on live servers, joining ones too, with the directories that their servers have now; this process's own first.
func (m *Machine) Placed(p Partition) []Member {
	e := m.entries[p]
	if e == nil || e.assigned == nil {
		return nil
	}
	placed := []Member{{e.assigned.Placement, m.self.Server, m.self.Store}}
	for _, x := range slices.Concat(e.assigned.Placements, e.assigned.Joining) {
		if b := m.beats[x.Server]; x.Server != m.self.Server && b != nil && m.alive(x.Server) {
			placed = append(placed, Member{x.ID, x.Server, b.beat.Store})
		}
	}
	return placed
}

// Shares.

// countShare computes each server's share of the partitions (C108).
func (m *Machine) countShare() {
	servers := 0
	for s, b := range m.beats {
		if s != m.self.Server && m.alive(s) && !b.beat.Draining {
			servers++
		}
	}
	if !m.giving() && !m.leave {
		servers++
	}
	m.share = (m.partitions + max(servers, 1) - 1) / max(servers, 1)
}

// movesMax bounds how many empty partitions are handed over at a time.
const movesMax = 32

// planMoves hands over partitions that another server can acquire: when draining, or with our clock off or our disk slow, once the last ones have found their new
// leaders; above our share, slowly (C108). One at a time, but empty ones, for which no client waits, in numbers: half of the surplus over the
// share, because others may do so at the same moment. Partitions that few rows come to go first; a busy one only to a server that is less busy with it than this
// one is now (writes.go).
func (m *Machine) planMoves() {
	settled := !slices.ContainsFunc(m.given, func(p Partition) bool {
		e := m.entries[p]
		return e != nil && (m.ours(e) || e.present() && e.row.State != Held)
	})
	room := movesMax
	switch {
	case !m.good(m.now) || m.leave:
		m.moveAt = m.now + m.set.LowerEvery // time without the store is no time above our share
		return
	case m.giving() && settled && m.now >= m.lookAt:
	case m.giving() && settled:
		m.at(m.lookAt)
		return
	case !m.giving() && m.held <= m.share:
		m.moveAt = m.now + m.set.LowerEvery // more than our share for that long, not for a moment
		return
	case m.now < m.moveAt:
		m.at(m.moveAt)
		return
	}
	why := "the server drains"
	switch {
	case m.draining:
	case m.clockOff:
		why = m.clockWhy()
	case m.disk.slow:
		why = m.diskWhy()
	}
	if !m.giving() {
		why, room = "above this server's share", min(room, (m.held-m.share+1)/2)
	}
	var tied map[*entry]bool
	if !m.giving() {
		tied = m.tied()
	}
	given := []Partition(nil)
	for _, e := range m.coolFirst() {
		if !m.ours(e) || tied[e] || e.leaving != "" || e.busy != 0 || !e.row.Empty && len(given) > 0 || !m.giving() && m.now < e.keep {
			continue
		}
		to, ok := m.someoneFor(e, false, true)
		if !ok {
			continue
		}
		given = append(given, e.p)
		m.letGoTo(e, why, to)
		if !e.row.Empty || len(given) >= room {
			break
		}
	}
	if len(given) > 0 {
		m.given, m.moveAt = given, m.now+m.jitter(m.set.LowerEvery)
		return
	}
	m.lookAt = m.now + m.set.RenewEvery // no other server can acquire any of them now
	if !m.giving() {
		m.moveAt = m.lookAt
	}
}

// someoneFor reports whether another in-sync member that the map lists could acquire a partition of ours; if we do not drain and it is not misplaced here,
// one below its share. A misplaced one is handed to a server that drains too: it accepts no rows here. If it goes for the sake of counts alone (share), a
// busy one goes only to a server that has less with it than this one has now, the least busy one, to.
func (m *Machine) someoneFor(e *entry, misplaced, share bool) (to topology.ServerID, ok bool) {
	for _, c := range e.row.InSync {
		switch {
		case e.assigned != nil && !e.assigned.places(c):
		case !m.giving() && m.isDamaged(e, c.Server): // it would leave it to others
		case !m.candidate(e, c) && !(misplaced && m.able(e, c)):
		case misplaced || m.giving():
			return "", true
		default:
			b := m.beats[c.Server].beat
			switch {
			case m.isOver(b.Held, b.Load) || share && !m.relieves(e, b.Writes):
			case !share || m.hot[e.p] == 0:
				return "", true
			case to == "" || b.Writes.rows() < m.beats[to].beat.Writes.rows():
				to = c.Server
			}
		}
	}
	return to, to != ""
}

// Status is one server's view, for people and metrics.
type Status struct {
	Server topology.ServerID
	Held   int
	Share  int
	Good   bool
	// ClockOff: the wall clock is so far off the median of the servers' clocks that leases are released.
	ClockOff bool
	// SlowDisk: fsyncs last so much longer than those of the others that leases are released.
	SlowDisk bool
}

// Status returns the machine's own view.
func (m *Machine) Status() Status {
	return Status{m.self.Server, m.held, m.share, m.good(m.now), m.clockOff, m.disk.slow}
}
