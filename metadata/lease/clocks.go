package lease

import (
	"time"

	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/point"
)

// What is known of the servers' wall clocks. Heartbeats tell the time at which they were sent, and stamps of rows are held
// against the median (protocols/rank). No lease depends on it (C113).

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
