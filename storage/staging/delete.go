package staging

import "github.com/spillwaydb/spillway/protocols/point"

// A deletion removes rows from the frames that are held. It has no rank: a frame that is staged here later was not acked when the deletion began, so either order of
// the two is right. A frame that is on its way when the deletion begins (to the log, to a leader or to another holder) is waited for: afterwards its rows are in a
// partition, at the other holder, or here.

// BeginDelete stops the forwarding and the staging elsewhere of a table's frames until EndDelete. It returns those with times in [lo, hi] that are on their way: the rows of
// the others may be removed at once.
func (m *Machine) BeginDelete(table string, lo, hi point.Nanos) (onWay []ID) {
	m.deleting[table]++
	for id, e := range m.frames {
		if e.Table == table && e.Lo <= hi && e.Hi >= lo && e.onWay() {
			onWay = append(onWay, id)
		}
	}
	return onWay
}

// EndDelete records that a deletion is done, or failed.
func (m *Machine) EndDelete(table string) {
	if m.deleting[table]--; m.deleting[table] == 0 {
		delete(m.deleting, table)
	}
}

// Deleting reports whether a deletion is under way.
func (m *Machine) Deleting(table string) bool { return m.deleting[table] > 0 }

// OnWay reports whether a frame is being logged, forwarded or staged elsewhere.
func (m *Machine) OnWay(id ID) bool {
	e, ok := m.frames[id]
	return ok && e.onWay()
}

func (e *entry) onWay() bool { return !e.logged || e.underWay || e.restaging }

// Reduced records that a deletion left fewer rows in a frame. Its name, table and holders are those of before.
func (m *Machine) Reduced(f Frame) {
	e, ok := m.frames[f.ID]
	if !ok || !e.logged {
		return
	}
	less := e.Bytes - f.Bytes
	m.bytes -= less
	if !e.Due.IsZero() {
		m.smeared.bytes -= less
	}
	m.tables[e.Table].bytes -= less
	e.Bytes, e.Rows, e.Lo, e.Hi = f.Bytes, f.Rows, f.Lo, f.Hi
}
