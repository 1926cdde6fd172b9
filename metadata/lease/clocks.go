package lease

import (
	"fmt"
	"time"

	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/point"
)

// What is known of the servers' wall clocks. Heartbeats tell the time at which they were sent, and stamps of rows are held
// against the median (protocols/rank). Who may act does not depend on it (C113). A server whose own clock is off gives away what others can lead, and takes only
// what no other can: its gateways' rows would be refused, or win over newer ones.

// wallNow is our wall clock at this step.
func (m *Machine) wallNow() time.Time {
	if m.wall.IsZero() {
		return m.wall
	}
	return m.wall.Add(m.now - m.wallAt)
}

// observeClock takes in a heartbeat that followed another of the same process: it was sent just now.
func (m *Machine) observeClock(s topology.ServerID, b Beat) {
	if s != m.self.Server && !b.Time.IsZero() {
		m.clocks.Observe(string(s), b.Time.UnixNano(), int64(m.now))
	}
}

// tickClocks takes in our own clock, and works the median out. Servers that are not alive do not count.
func (m *Machine) tickClocks(wall time.Time) {
	m.wall, m.wallAt = wall, m.now
	for s := range m.beats {
		if !m.alive(s) {
			m.clocks.Forget(string(s))
		}
	}
	m.clocks.Observe(string(m.self.Server), wall.UnixNano(), int64(m.now))
	m.clock, m.clockKnown = m.clocks.Offset(int64(m.now))
	m.judgeClock()
}

const (
	// clockOffMax is how far off the median our clock may be; it is right again within clockRightMax.
	clockOffMax   = time.Second
	clockRightMax = clockOffMax / 2
	// clockOffFor and clockRightFor are how long it must be so: a heartbeat that is late makes a clock seem slow, and a clock that is being set jumps.
	clockOffFor   = 10 * time.Second
	clockRightFor = 30 * time.Second
	// clockFresh is how old a heartbeat may be that tells of a clock here: while the store is away our own clock goes on, and theirs are not seen to.
	clockFresh = 4 * time.Second
	// clocksMin is of how many clocks, with our own, a median says which is wrong.
	clocksMin = 3
)

// judgeClock finds whether our clock is off. The median must mean something: of at least three clocks, more than half within clockOffMax of it. The server whose
// clock is the median is never off, so that never all give up.
func (m *Machine) judgeClock() {
	near, known := m.clocks.Near(int64(m.now), clockFresh, m.clock, clockOffMax)
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
		m.beat.next = m.now // others should know
		m.touchAll()
	}
}

// giving reports whether we give away what others can lead.
func (m *Machine) giving() bool { return m.draining || m.clockOff }

// clockSaid is what our heartbeat says of our clock.
func (m *Machine) clockSaid() time.Duration {
	if !m.clockOff {
		return 0
	}
	return m.ClockAhead()
}

func (m *Machine) clockWhy() string {
	return fmt.Sprintf("the clock of this server is %v ahead of the median of the servers' clocks: set it right", m.ClockAhead().Round(time.Millisecond))
}

// Clock gives the time by the median of the servers' clocks, at a time of the process's own; false before the first Tick.
func (m *Machine) Clock(now Time) (point.Nanos, bool) { return int64(now) + m.clock, m.clockKnown }

// ClockAhead is how far our own wall clock was ahead of the median at the last Tick.
func (m *Machine) ClockAhead() time.Duration {
	if !m.clockKnown {
		return 0
	}
	return time.Duration(m.wall.UnixNano() - int64(m.wallAt) - m.clock)
}
