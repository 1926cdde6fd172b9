package lease

import (
	"slices"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/point"
)

// entry is one partition as this process sees it.
type entry struct {
	// Constant.
	p               Partition
	rowKey, bornKey string

	// As last seen in the store.
	asOf       coord.Revision // revision of this view
	rev        coord.Revision // of the row; 0: there is none
	row        Lease          // the newest seen, also after it was deleted
	unreadable bool           // no server leads it
	intact     bool           // the row is gone, and row is certainly its last content
	since      Time           // in reachable time: when this revision was first seen
	born       coord.Revision
	bornAsOf   coord.Revision
	everLed    bool // a row showed that it was once led (EverLed)

	// As this server is assigned, or nil.
	assigned *Assigned

	// On the agenda.
	touched   bool
	queued    bool
	waitsMap  bool
	waitsOn   *beatRow // until that server is silent
	heapAt    int      // in wakes; -1: not
	wakeAt    Time
	sums      sums
	forgotten bool

	// proved is one more than the number of lapses after which a request showed that the row is ours.
	proved  int
	proving bool
	proveAt Time

	// Our requests: one at a time.
	busy      uint64
	taking    bool
	reread    bool     // the last one conflicted or got no answer: look first (C117)
	look      []string // at the rows under these keys
	nonce     string   // of the last row we wrote
	notBefore Time

	// What this process does. Invariant: leading implies running.
	leading bool // between Leads and Stops
	running bool // between Leads and Stopped
	leaving string
	to      topology.ServerID // acquires it first when we have let go; "": the one whose turn it is
	keep    Time              // it was handed to us: until then it is not handed over for a share
	ends    []point.EpochEnd
	want    *SetInSync
	wrote   coord.Revision // the revision that want was compared with when last sent; 0: not yet

	// The acquisition under way.
	ready     bool
	readyAt   Time
	cool      Time // we gave it up: until then others go first
	gaveUp    bool
	dropped   []Member // by our acquisition at droppedAt
	droppedAt point.Epoch
}

func (e *entry) present() bool { return e.rev != 0 }

func (m *Machine) observeRow(e *entry, rev coord.Revision, value []byte, present, inOrder bool) {
	if rev <= e.asOf {
		return
	}
	m.touch(e)
	if !present {
		if e.present() {
			// No other server can have changed a row that was ours, and still is.
			e.intact = !e.unreadable && (inOrder || m.ours(e) && e.proved == m.lapses+1 && m.good(m.now))
			e.rev, e.since, e.ready = 0, m.mark(), false
		}
		e.asOf = rev
		return
	}
	row, err := DecodeLease(value)
	if !(e.proved == m.lapses+1 && err == nil && m.ours(e) && row.State == Held && row.Boot == e.row.Boot && row.Epoch == e.row.Epoch) {
		e.proved = 0
	}
	e.asOf, e.rev, e.unreadable, e.since, e.ready = rev, rev, err != nil, m.mark(), false
	if err == nil {
		e.row = row
	}
	if err != nil || row.Epoch > 0 {
		m.showsLed(e)
	}
}

// showsLed records that a partition was once led.
func (m *Machine) showsLed(e *entry) {
	if !e.everLed {
		e.everLed = true
		m.news.Led = append(m.news.Led, e.p)
	}
}

func (m *Machine) observeBorn(e *entry, rev coord.Revision, present bool) {
	if rev <= e.bornAsOf {
		return
	}
	m.touch(e)
	e.born, e.bornAsOf = 0, rev
	if present {
		e.born = rev
		m.showsLed(e)
	}
}

// ours reports whether the row names this process. Acting needs a good heartbeat as well.
func (m *Machine) ours(e *entry) bool {
	return e.present() && !e.unreadable && e.row.State == Held && e.row.Holder == m.self.Server && e.row.Boot == m.self.Boot
}

func (m *Machine) prohibited(e *entry, s topology.ServerID) bool {
	return len(m.no) > 0 && m.no[ProhibitKey(e.p, s)].there
}

// planEntry makes the process follow the row, then sends the next request.
func (m *Machine) planEntry(e *entry) {
	if m.ours(e) {
		m.planOurs(e)
	} else {
		m.planOthers(e)
	}
	switch {
	case e.busy != 0:
	case m.now < e.notBefore:
		m.at(e.notBefore)
	case e.reread:
		if m.mayAsk() {
			e.busy = m.list(Acquire, request{job: jobReread, p: e.p, prefix: e.look[0]})
		} else {
			m.queue(e)
		}
	case m.ours(e) && e.leaving != "":
		if !e.running {
			m.release(e)
		}
	case m.ours(e) && e.want != nil && e.leading:
		m.sendInSync(e)
	case !m.ours(e):
		m.planTake(e)
	}
}

func (m *Machine) planOurs(e *entry) {
	if e.leaving == "" {
		if why, gaveUp := m.mustLetGo(e); why != "" {
			m.letGo(e, why, gaveUp)
		}
	}
	if e.leaving != "" && e.leading {
		m.stop(e, e.leaving, false)
	}
	if e.leaving != "" || e.running || !m.good(m.now) {
		return
	}
	if e.proved != m.lapses+1 {
		switch {
		case e.proving || e.taking: // the answer decides
		case m.now < e.proveAt:
			m.at(e.proveAt)
		default:
			e.proving = true
			m.unproved = append(m.unproved, e)
		}
		return
	}
	if m.mapReady(e) {
		e.leading, e.running = true, true
		l := Leads{Partition: e.p, Epoch: e.row.Epoch, Lease: e.row, Until: m.beat.goodUntil}
		if e.droppedAt == l.Epoch {
			l.Dropped = e.dropped
		}
		m.out = append(m.out, l)
	}
}

func (m *Machine) planOthers(e *entry) {
	if e.leading {
		why := "its lease row is gone"
		if e.present() {
			why = "the lease is with " + string(e.row.Holder) + ", boot " + string(e.row.Boot)
		}
		m.stop(e, why, false)
	}
	if e.busy == 0 && !e.reread {
		e.leaving, e.to = "", ""
		m.answerInSync(e, false)
	}
}

// mustLetGo returns why a partition of ours must be released, or "".
func (m *Machine) mustLetGo(e *entry) (why string, gaveUp bool) {
	switch {
	case e.row.Offline != nil:
		return "taken offline by " + e.row.Offline.Who + ": " + e.row.Offline.Reason, false
	case e.row.Vacant():
		return "it is empty, and is moved", false
	case e.row.Bump != nil:
		return "bumped by " + e.row.Bump.Who + ": " + e.row.Bump.Reason, false
	case m.prohibited(e, m.self.Server):
		return "prohibited on this server", false
	case e.row.Next != nil && m.handsOver(e):
		return "handed to " + string(e.row.Next.Server) + " by " + e.row.Next.Who + ": " + e.row.Next.Reason, true
	case m.leave:
		return "the server stops", true
	case e.assigned == nil:
		return "no placement here any more", false
	}
	return "", false
}

func (m *Machine) letGo(e *entry, why string, gaveUp bool) {
	if e.leaving == "" {
		e.leaving = why
	}
	if gaveUp {
		e.gaveUp, e.cool = true, m.now+m.set.CoolDown
	}
}

// letGoTo releases a partition of ours, and has a server acquire it first; "": the one whose turn it is.
func (m *Machine) letGoTo(e *entry, why string, to topology.ServerID) {
	if e.leaving == "" {
		e.to = to
	}
	m.letGo(e, why, true)
	m.touch(e)
}

func (m *Machine) stop(e *entry, why string, lapsed bool) {
	e.leading = false
	m.out = append(m.out, Stops{Partition: e.p, Why: why, Lapsed: lapsed})
}

func (m *Machine) release(e *entry) {
	if !m.mayAsk() {
		m.queue(e)
		return
	}
	row := e.row
	row.State, row.Bump, row.Nonce = Free, nil, m.nonce()
	if e.ends != nil {
		row.Ends = e.ends
	}
	if !m.counts(row.Next) {
		row.Next = nil
	}
	if e.to != "" {
		row.Next = &Next{Server: e.to, Note: Note{Who: string(m.self.Server), When: m.wallNow(), Reason: e.leaving}}
	}
	e.nonce = row.Nonce
	m.add(item{e: e, what: itemRelease, lease: row,
		conditions: []coord.Condition{{Key: e.rowKey, Revision: e.rev}}, writes: []coord.Write{{Key: e.rowKey, Value: row.Encode()}}})
}

// The in-sync list.

func (m *Machine) wantInSync(in SetInSync) {
	e := m.entries[in.Partition]
	named := func() bool {
		for _, member := range in.Members {
			if member.Server == m.self.Server && member.Store == m.self.Store && e.assigned != nil && member.Placement == e.assigned.Placement {
				return true
			}
		}
		return false
	}
	if e == nil || !e.leading || e.want != nil || !named() {
		var row Lease
		if e != nil {
			row = e.row
		}
		m.out = append(m.out, InSyncSet{Partition: in.Partition, Lease: row})
		return
	}
	e.want, e.wrote, e.nonce = &in, 0, m.nonce()
	m.touch(e)
}

func (m *Machine) sendInSync(e *entry) {
	switch {
	case e.assigned != nil && !m.mapReady(e): // METADATA may have removed a placement that is to be listed
		return
	case e.assigned != nil && m.seqOf(e) > 0 && slices.ContainsFunc(e.want.Members, func(x Member) bool { return !e.mayList(x) }):
		m.answerInSync(e, false)
		return
	case !m.mayAsk():
		m.queue(e)
		return
	}
	row := e.row
	row.InSync, row.Ends, row.Empty, row.Nonce = e.want.Members, e.want.Ends, false, e.nonce
	if e.assigned != nil {
		row.Seq = min(row.Seq, m.seqOf(e))
	}
	e.wrote = e.rev
	// The same nonce again after an answer was lost: both writes compare the same revision, so at most one succeeds.
	m.add(item{e: e, what: itemInSync, lease: row,
		conditions: []coord.Condition{{Key: e.rowKey, Revision: e.rev}}, writes: []coord.Write{{Key: e.rowKey, Value: row.Encode()}}})
}

// mayList reports whether a placement may be in the in-sync list: it is listed already, or the map has it. A placement that the map removed may be deleting its
// copy.
func (e *entry) mayList(x Member) bool {
	has := func(ps []topology.Placement) bool {
		return slices.ContainsFunc(ps, func(p topology.Placement) bool { return p.ID == x.Placement })
	}
	return slices.Contains(e.row.InSync, x) || has(e.assigned.Placements) || has(e.assigned.Joining)
}

func (m *Machine) answerInSync(e *entry, ok bool) {
	if e.want != nil {
		e.want = nil
		m.out = append(m.out, InSyncSet{Partition: e.p, OK: ok, Lease: e.row})
	}
}

// reread continues after reading rows that may have changed.
func (m *Machine) reread(e *entry, a Answer) {
	e.busy = 0
	m.touch(e)
	if a.Outcome != Done {
		e.notBefore = m.now + m.set.RetryAfter
		return
	}
	if e.look = e.look[1:]; len(e.look) > 0 {
		return
	}
	e.reread, e.look = false, nil
	switch { // if the row is unchanged, the request is sent again
	case e.want == nil || e.wrote == 0:
	case e.row.Nonce == e.nonce:
		m.answerInSync(e, m.ours(e))
	case e.rev != e.wrote:
		m.answerInSync(e, false)
	}
}
