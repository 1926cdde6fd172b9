package lease

import (
	"encoding/json"
	"slices"

	"github.com/spillwaydb/spillway/metadata/coord"
)

// table is the state that a table's partitions share: how new the map of the assignments is, and how new it must be.
type table struct {
	// seq is the transaction of the map that all assignments are of, row the revision of the table's row that names it (MapIs).
	seq uint64
	row coord.Revision

	// read is the lapse after which the table's row was read; then wanted is the transaction that it named. Older maps do not count: the process may have
	// slept.
	read    int
	wanted  uint64
	reading bool
	retryAt Time

	// The Swept row.
	sweptAsOf, sweptRev coord.Revision
	swept               uint64
	sweptBad            bool

	waits []*entry // until there is a newer map, or the row is read
}

func (m *Machine) table(name string) *table {
	t := m.tables[name]
	if t == nil {
		t = &table{}
		m.tables[name] = t
	}
	return t
}

// seqOf is the transaction of the map that a partition's assignment is of.
func (m *Machine) seqOf(e *entry) uint64 {
	t := m.table(e.p.Table)
	switch {
	case e.assigned == nil:
		return 0
	case t.row >= e.assigned.TableRow:
		return t.seq
	}
	return e.assigned.Seq
}

// tableRowOf is the revision of the table's row as of which that map was the table's.
func (m *Machine) tableRowOf(e *entry) coord.Revision {
	return max(e.assigned.TableRow, m.table(e.p.Table).row)
}

// current reports whether a map of transaction seq, the table's as of revision at of the table's row, is new enough for this
// lease row of revision rev. A row may be marked before its transaction is committed (Guard): if the table's row has
// changed since, either that swap was made and the map is newer, or it never will be.
func (l *Lease) current(rev coord.Revision, seq uint64, at coord.Revision) bool {
	return l.Seq <= seq || at > rev
}

func (m *Machine) mapIs(in MapIs) {
	t := m.table(in.Table)
	if in.TableRow <= t.row {
		return
	}
	t.seq, t.row = in.Seq, in.TableRow
	m.releaseWaits(t)
}

// releaseWaits touches the partitions that waited for a table's map.
func (m *Machine) releaseWaits(t *table) {
	for _, e := range t.waits {
		e.waitsMap = false
		m.touch(e)
	}
	t.waits = t.waits[:0]
}

// mapReady reports whether the map of a partition's assignment is as new as required: by the table's row as read after the last
// lapse, and by the lease row. If not, the partition waits for such a map.
func (m *Machine) mapReady(e *entry) bool {
	t := m.table(e.p.Table)
	if t.read == m.lapses+1 && m.seqOf(e) >= t.wanted && (!e.present() || e.unreadable || e.row.current(e.rev, m.seqOf(e), m.tableRowOf(e))) {
		return true
	}
	t.await(e)
	return false
}

// await makes a partition wait until there is a newer map of the table.
func (t *table) await(e *entry) {
	if !e.waitsMap {
		e.waitsMap = true
		t.waits = append(t.waits, e)
	}
}

// planTables reads the rows of tables for which partitions wait.
func (m *Machine) planTables() {
	if !m.good(m.now) {
		return
	}
	var due []string // mostly none, and each step comes here: only these are sorted
	for name, t := range m.tables {
		switch {
		case t.read == m.lapses+1 || t.reading || len(t.waits) == 0:
		case m.now < t.retryAt:
			m.at(t.retryAt)
		default:
			due = append(due, name)
		}
	}
	slices.Sort(due)
	for _, name := range due {
		m.tables[name].reading = true
		m.list(Renew, request{job: jobTable, table: name, prefix: tableKey(name)})
	}
}

func (m *Machine) tableRead(r request, a Answer) {
	t := m.table(r.table)
	t.reading = false
	if a.Outcome != Done || r.lapses != m.lapses || !r.good {
		t.retryAt = m.now + m.set.RetryAfter
		return
	}
	t.read, t.wanted = m.lapses+1, 0
	for _, row := range a.Rows {
		if row.Key == r.prefix {
			t.wanted = tableSeq(row.Value)
		}
	}
	m.releaseWaits(t)
}

// tableSeq is the transaction that a table's row names; package files has its form. An unreadable row names none that could be waited for.
func tableSeq(value []byte) uint64 {
	var row struct {
		Seq uint64 `json:"seq"`
	}
	if json.Unmarshal(value, &row) != nil {
		return 0
	}
	return row.Seq
}

func (m *Machine) observeSwept(name string, rev coord.Revision, value []byte, present bool) {
	t := m.table(name)
	if rev <= t.sweptAsOf {
		return
	}
	t.sweptAsOf, t.sweptRev, t.swept, t.sweptBad = rev, 0, 0, false
	if present {
		s, err := DecodeSwept(value)
		t.sweptRev, t.swept, t.sweptBad = rev, s.Seq, err != nil
	}
	m.releaseWaits(t) // it may be readable again
}

// allGuard reports whether every server with a heartbeat row, dead or alive, changes maps with Guard. A server of a build from before
// does not, until its row is gone or it was restarted as a newer one.
func (m *Machine) allGuard() bool {
	for s, b := range m.beats {
		if s != m.self.Server && b.rev != 0 && !b.beat.Guards {
			return false
		}
	}
	return true
}
