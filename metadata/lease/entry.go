package lease

import (
	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/point"
)

// entry is one partition as this process sees it.
type entry struct {
	// Constant.
	p               Partition
	rowKey, bornKey string

	// As the store shows it.
	asOf       coord.Revision // what is known is as of this revision
	rev        coord.Revision // of the row; 0: there is none
	row        Lease          // the newest seen, also after it was deleted
	unreadable bool           // led by nobody
	intact     bool           // the row is gone, and row is certainly what it was
	since      Time           // of the ear: when this revision was first seen
	born       coord.Revision
	bornAsOf   coord.Revision

	// As this server is assigned, or nil.
	assigned *Assigned

	// Our requests: one at a time.
	busy      uint64
	reread    bool   // the last one conflicted or has no answer: look first (C117)
	nonce     string // of the last row we wrote
	notBefore Time

	// What we do. Invariant: leading implies running.
	leading bool // between Leads and Stops
	running bool // between Leads and Stopped
	leaving string
	ends    []point.EpochEnd
	want    *SetInSync
	wrote   coord.Revision // what want compared when it was sent last; 0: not yet

	// Taking.
	ready   bool
	readyAt Time
	cool    Time // we gave it up: until then others go first
	gaveUp  bool
}

func (e *entry) present() bool { return e.rev != 0 }

func (m *Machine) observeRow(e *entry, rev coord.Revision, value []byte, present, inOrder bool) {
	if rev <= e.asOf {
		return
	}
	e.asOf = rev
	if !present {
		if e.present() {
			// Nobody else can have changed a row that was ours, and is still.
			e.intact = !e.unreadable && (inOrder || m.ours(e) && m.good(m.now))
			e.rev, e.since, e.ready = 0, m.mark(), false
		}
		return
	}
	row, err := DecodeLease(value)
	e.rev, e.unreadable, e.since, e.ready = rev, err != nil, m.mark(), false
	if err == nil {
		e.row = row
	}
}

func (e *entry) observeBorn(rev coord.Revision, present bool) {
	if rev <= e.bornAsOf {
		return
	}
	e.born, e.bornAsOf = 0, rev
	if present {
		e.born = rev
	}
}

// ours reports whether the row names this process. It takes a good heartbeat besides to act.
func (m *Machine) ours(e *entry) bool {
	return e.present() && !e.unreadable && e.row.State == Held && e.row.Holder == m.self.Server && e.row.Boot == m.self.Boot
}

func (m *Machine) prohibited(e *entry, s topology.ServerID) bool {
	return len(m.no) > 0 && m.no[ProhibitKey(e.p, s)].there
}

// planEntry keeps what we do in step with what the row says, then asks for what comes next.
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
			e.busy = m.list(Acquire, request{job: jobReread, p: e.p, prefix: e.rowKey})
		}
	case m.ours(e) && e.leaving != "":
		if !e.running && m.mayAsk() {
			m.release(e)
		}
	case m.ours(e) && e.want != nil && e.leading:
		if m.mayAsk() {
			m.sendInSync(e)
		}
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
	if e.leaving == "" && !e.running && m.good(m.now) {
		e.leading, e.running = true, true
		m.out = append(m.out, Leads{Partition: e.p, Epoch: e.row.Epoch, Lease: e.row, Until: m.beat.goodUntil})
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
		e.leaving = ""
		m.answerInSync(e, false)
	}
}

// mustLetGo says why a partition that is ours must not stay so, if it must not.
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

func (m *Machine) stop(e *entry, why string, lapsed bool) {
	e.leading = false
	m.out = append(m.out, Stops{Partition: e.p, Why: why, Lapsed: lapsed})
}

func (m *Machine) release(e *entry) {
	row := e.row
	row.State, row.Bump, row.Nonce = Free, nil, m.nonce()
	if e.ends != nil {
		row.Ends = e.ends
	}
	e.nonce = row.Nonce
	e.busy = m.commit(Acquire, request{job: jobRelease, p: e.p, lease: row},
		[]coord.Condition{{Key: e.rowKey, Revision: e.rev}}, coord.Write{Key: e.rowKey, Value: row.Encode()})
}

// The in-sync list (DESIGN §5.6).

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
}

func (m *Machine) sendInSync(e *entry) {
	row := e.row
	row.InSync, row.Ends, row.Empty, row.Nonce = e.want.Members, e.want.Ends, false, e.nonce
	e.wrote = e.rev
	// The same nonce again after an answer was lost: both compare the same revision, so that at most one comes true.
	e.busy = m.commit(Acquire, request{job: jobInSync, p: e.p, lease: row},
		[]coord.Condition{{Key: e.rowKey, Revision: e.rev}}, coord.Write{Key: e.rowKey, Value: row.Encode()})
}

func (m *Machine) answerInSync(e *entry, ok bool) {
	if e.want != nil {
		e.want = nil
		m.out = append(m.out, InSyncSet{Partition: e.p, OK: ok, Lease: e.row})
	}
}

// settle goes on after the answer to a request for a partition.
func (m *Machine) settle(e *entry, r request, a Answer) {
	e.busy = 0
	if a.Outcome == Unknown || a.Outcome == Throttled {
		e.reread, e.notBefore = true, m.now+m.set.RetryAfter
		return
	}
	if r.job == jobReread {
		e.reread = false
		switch { // if the row is as it was, the request is sent again
		case e.want == nil || e.wrote == 0:
		case e.row.Nonce == e.nonce:
			m.answerInSync(e, m.ours(e))
		case e.rev != e.wrote:
			m.answerInSync(e, false)
		}
		return
	}
	if a.Outcome == Conflict {
		// What we compared has changed: the row, a heartbeat, the table, a prohibition. See them all before the next try.
		e.reread, e.ready = true, false
		m.scanAt = min(m.scanAt, m.now+m.set.RetryAfter)
		e.notBefore = m.now
		if r.job == jobTake {
			e.notBefore = m.now + m.jitter(m.set.RetryAfter)
		}
		return
	}
	if a.Revision > e.asOf {
		e.asOf, e.rev, e.row, e.unreadable, e.since, e.ready = a.Revision, a.Revision, r.lease, false, m.mark(), false
	}
	if r.bore {
		e.observeBorn(a.Revision, true)
	}
	if r.job == jobInSync {
		m.answerInSync(e, true)
	}
}
