package lease

import (
	"slices"
	"time"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/topology"
)

// A heartbeat row may be missing: a person deleted it. To acquire the leases of its server, others must see it silent for TakeAfter, and compare in the acquiring
// transaction that it still is. "No row" cannot be compared: the server may have written its row anew, acted, and lost it to another deletion, while the watch of the
// one that waits was late. So that one first writes a row in its place, and waits from then on:
//
//	row of s1    rev 7 ── deleted ── Missing, rev 9 ─────── TakeAfter ──────▶ s2 acquires, comparing rev 9
//	                          ▲                   └─ s1 lives: finds rev 9, stops, writes rev 10, compares its lease rows ──▶ s2 conflicts
//	                          └─ s1 lives: writes rev 8, s2 conflicts and sees it
//
// Invariant: a lease is acquired from a process that has not stopped only by comparing one revision of a heartbeat row that was seen TakeAfter before. Where a row
// of another boot is in its place, that boot was first seen TakeAfter before.

// awaitMark makes a partition wait until its holder has a heartbeat row, of any process.
func (m *Machine) awaitMark(e *entry) {
	b := m.beats[e.row.Holder]
	if b == nil {
		b = &beatRow{}
		m.beats[e.row.Holder] = b
	}
	if e.waitsOn != b {
		e.waitsOn = b
		b.waiters = append(b.waiters, e)
	}
}

// planMissing writes rows in the place of the missing ones for which partitions wait.
func (m *Machine) planMissing() {
	var missing []topology.ServerID
	for s, b := range m.beats {
		if b.rev == 0 && len(b.waiters) > 0 && !b.marking && m.good(m.now) {
			missing = append(missing, s)
		}
	}
	slices.Sort(missing)
	for _, s := range missing {
		b := m.beats[s]
		if m.now < b.markAt || !m.mayAsk() {
			m.at(max(b.markAt, m.now+m.set.RetryAfter))
			continue
		}
		b.marking = true
		key := BeatKey(s)
		m.commit(Acquire, request{job: jobMissing, server: s}, []coord.Condition{{Key: key}}, coord.Write{Key: key, Value: InPlace(s, m.nonce(), m.wallNow()).Encode()})
	}
}

// InPlace returns the row to write where a server has no heartbeat row, if there is still none. Its revision can be compared later; that there is none
// cannot. nonce is never the same twice.
func InPlace(s topology.ServerID, nonce string, wall time.Time) Beat {
	return Beat{Server: s, Boot: Boot(nonce), Missing: true, Guards: true, Time: wall}
}

// marked continues after a row was written in the place of a missing one, or not.
func (m *Machine) marked(r request, a Answer) {
	b := m.beats[r.server]
	b.marking, b.markAt = false, m.now+m.set.RetryAfter
	if a.Outcome == Conflict && !m.beat.probing {
		m.beat.probing = true
		m.list(Acquire, request{job: jobProbe, prefix: beatPrefix})
	}
}
