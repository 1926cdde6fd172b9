package lease

import (
	"fmt"
	"time"

	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/point"
)

// The servers' wall clocks. Each heartbeat has the time at which it was sent, and stamps of rows are compared with the median (protocols/rank). They
// do not decide which server may act (C113). A server whose own clock is off hands over the partitions that others can lead, and acquires only those that no other server
// can: the rows of its gateways would be refused, or win over newer ones.

// wallNow is our wall clock at this step.
func (m *Machine) wallNow() time.Time {
	if m.wall.IsZero() {
		return m.wall
	}
	return m.wall.Add(m.now - m.wallAt)
}

// observeClock records the clock of a heartbeat that followed another of the same process: it was sent just now.
func (m *Machine) observeClock(s topology.ServerID, b Beat) {
	if s != m.self.Server && !b.Time.IsZero() {
		m.clocks.Observe(string(s), b.Time.UnixNano(), int64(m.now))
	}
}

// tickClocks records our own clock and computes the median. Servers that are not alive do not count.
func (m *Machine) tickClocks(wall time.Time) {
	m.wall, m.wallAt = wall, m.now
	for s := range m.beats {
		if !m.alive(s) {
			m.clocks.Forget(string(s))
		}
	}
	m.clocks.Own(string(m.self.Server), wall.UnixNano(), int64(m.now))
	m.clock, m.clockKnown = m.clocks.Offset(int64(m.now))
	m.learnClocks()
	m.clockNewest, _ = m.clocks.Newest(int64(m.now))
	m.judgeClock()
}

const (
	// clockOffMax is how far our clock may be off the median; it counts as right again within clockRightMax.
	clockOffMax   = time.Second
	clockRightMax = clockOffMax / 2
	// clockOffFor and clockRightFor are how long it must be so: a heartbeat that is late makes a clock seem slow, and a clock that is being set jumps.
	clockOffFor   = 10 * time.Second
	clockRightFor = 30 * time.Second
	// clockFresh is the maximum age of a heartbeat that counts for the median: while the store is away our own clock goes on, and the others' are not seen.
	clockFresh = 4 * time.Second
	// clocksMin is the number of clocks, including our own, from which the median shows which clock is wrong.
	clocksMin = 3
)

// judgeClock decides whether our clock is off. The median must be significant: of at least three clocks, with more than half within clockOffMax of it. The
// server with the median clock is never off, so that the servers never all hand over at once.
func (m *Machine) judgeClock() {
	near, known := m.clocks.Near(int64(m.now), clockFresh, m.clockNewest, clockOffMax)
	if known < clocksMin || 2*near <= known {
		m.clockTurn = 0
		m.setClockOff(false)
		return
	}
	limit, wait := clockOffMax, Time(clockOffFor)
	if m.clockOff {
		limit, wait = clockRightMax, Time(clockRightFor)
	}
	switch off := m.ClockAhead().Abs() > limit; {
	case off == m.clockOff:
		m.clockTurn = 0
	case m.clockTurn == 0:
		m.clockTurn = m.now
	case m.now-m.clockTurn >= wait:
		m.clockTurn = 0
		m.setClockOff(off)
	}
}

func (m *Machine) setClockOff(off bool) {
	if m.clockOff != off {
		m.clockOff = off
		m.beat.next = m.now // notify the others
		m.touchAll()
	}
}

// giving reports whether we hand over the partitions that others can lead.
func (m *Machine) giving() bool { return m.draining || m.clockOff || m.disk.slow }

// clockSaid is the clock error that our heartbeat reports.
func (m *Machine) clockSaid() time.Duration {
	if !m.clockOff {
		return 0
	}
	return m.ClockAhead()
}

func (m *Machine) clockWhy() string {
	return fmt.Sprintf("the clock of this server is %v ahead of the median of the servers' clocks: set it right", m.ClockAhead().Round(time.Millisecond))
}

// Clock returns the time by the median of the servers' clocks, for a time of the process's own; false before the first Tick.
func (m *Machine) Clock(now Time) (point.Nanos, bool) { return int64(now) + m.clock, m.clockKnown }

// Latest is the latest time that it may be by the servers' clocks: by the median, or by our own clock if that is later and not known to be off. Where all heartbeats are late the
// median is behind, by less than TakeAfter: later ones are of servers that do not live.
func (m *Machine) Latest(now Time, wall point.Nanos) point.Nanos {
	median, ok := m.Clock(now)
	switch {
	case !ok:
		return wall
	case m.clockOff:
		return median
	}
	return max(median, min(wall, median+point.Nanos(m.set.TakeAfter)))
}

// ClocksKnown reports whether the median has had the clock of every server that lived then. It has not within the first second
// or two after a start, nor before any clock was read: then it may be our own clock alone, whatever that says.
//
// Once it has, a server that starts later changes nothing: where each of them did, a rolling restart would keep gateways waiting.
func (m *Machine) ClocksKnown() bool { return m.clocksLearnt }

// clocksWithin is for how long after the rows were listed the clocks of others are waited for, of the time in which the store
// answers: a server that is started anew and anew sends one heartbeat each time, which may be of any age.
const clocksWithin = 10 * time.Second

// learnClocks notes whether the median that was computed now has the clocks of all.
func (m *Machine) learnClocks() {
	switch {
	case m.clocksLearnt || m.floor == 0:
	case !m.lacksClock():
		m.clocksLearnt = true
	case !m.clocksAwaited:
		m.clocksAwaited, m.clocksFrom = true, m.mark()
	default:
		m.clocksLearnt = m.mark()-m.clocksFrom >= clocksWithin
	}
}

// lacksClock reports whether a server lives whose clock was not observed, and whose build says it.
func (m *Machine) lacksClock() bool {
	for s, b := range m.beats {
		if s != m.self.Server && m.alive(s) && !b.beat.Time.IsZero() && !m.clocks.Known(string(s)) {
			return true
		}
	}
	return false
}

// ClockAhead is how far our own wall clock was ahead of the median at the last Tick.
func (m *Machine) ClockAhead() time.Duration {
	if !m.clockKnown {
		return 0
	}
	return time.Duration(m.wall.UnixNano() - int64(m.wallAt) - m.clockNewest)
}
