package staging

import (
	"maps"
	"time"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

// A deletion removes rows from the frames that are held. It has no rank: a frame that is staged here later was not acked when the deletion began, so either order of
// the two is right. A frame that is on its way when the deletion begins (to the log, to a leader or to another holder) is waited for: afterwards its rows are in a
// partition, at the other holder, or here.
//
// Frames that are held for a deletion (Hold) stay here from before partitions delete until it is over.

// BeginDelete stops the forwarding and the staging elsewhere of a table's frames until EndDelete. It returns those with times in [lo, hi] that are on their way: the rows of
// the others may be removed at once.
func (m *Machine) BeginDelete(table string, lo, hi point.Nanos) (onWay []ID) {
	m.deleting[table]++
	return m.onWay(table, lo, hi)
}

func (m *Machine) onWay(table string, lo, hi point.Nanos) (onWay []ID) {
	for id, e := range m.frames {
		if e.Table == table && e.Lo <= hi && e.Hi >= lo && e.onWay() {
			onWay = append(onWay, id)
		}
	}
	return onWay
}

// EndDelete records that a deletion is done, or failed.
func (m *Machine) EndDelete(table string) {
	m.stir()
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
	t := m.tables[e.Table]
	t.bytes -= less
	if e.underWay {
		t.wayRows -= e.Rows - f.Rows
	}
	e.Bytes, e.Rows, e.Lo, e.Hi = f.Bytes, f.Rows, f.Lo, f.Hi
}

// HoldFor is how long frames are held for a deletion, unless it renews the hold: if its gateway dies they are forwarded after that.
const HoldFor = 15 * time.Second

// holdsMax bounds the deletions for which frames are held.
const holdsMax = 1024

// hold stops the forwarding of frames that a deletion may touch, before partitions delete for the first time and until all staged rows are deleted: a frame that is forwarded in between could bring
// a value back that a later one replaced, which the deletion then removes from its own frame.
type hold struct {
	table  string
	lo, hi point.Nanos
	until  time.Time
}

// Hold stops the forwarding and the staging elsewhere of a table's frames with times in [lo, hi] until Release, or until it was not renewed for HoldFor. It returns those
// that are on their way. Errors are Unavailable: there are too many holds.
func (m *Machine) Hold(now time.Time, id uint64, table string, lo, hi point.Nanos) (onWay []ID, err error) {
	maps.DeleteFunc(m.holds, func(_ uint64, h hold) bool { return !now.Before(h.until) })
	if len(m.holds) >= holdsMax {
		return nil, fault.Errorf(fault.Unavailable, "staged rows are held for %d deletions on server %s, the most there may be", holdsMax, m.settings.Server)
	}
	m.holds[id] = hold{table, lo, hi, now.Add(HoldFor)}
	return m.onWay(table, lo, hi), nil
}

// Renew has a hold last for another HoldFor. false: it ended, and frames may have been forwarded since.
func (m *Machine) Renew(now time.Time, id uint64) bool {
	if !m.Holds(now, id) {
		return false
	}
	h := m.holds[id]
	h.until = now.Add(HoldFor)
	m.holds[id] = h
	return true
}

// Holds reports whether a hold lasts since Hold.
func (m *Machine) Holds(now time.Time, id uint64) bool {
	h, ok := m.holds[id]
	return ok && now.Before(h.until)
}

// Release ends a hold.
func (m *Machine) Release(id uint64) {
	m.stir()
	delete(m.holds, id)
}

// heldUp reports whether a frame is not to leave this server now.
func (m *Machine) heldUp(now time.Time, e *entry) bool {
	for _, h := range m.holds {
		if h.table == e.Table && e.Lo <= h.hi && e.Hi >= h.lo && now.Before(h.until) {
			return true
		}
	}
	return false
}
