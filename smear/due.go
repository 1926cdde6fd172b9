package smear

import (
	"math/bits"
	"time"

	"github.com/spillwaydb/spillway/protocols/point"
)

const (
	// Groups are the parts of the ring whose series have the same delay: the first 12 bits of a series' ring point choose one.
	Groups    = 1 << groupBits
	groupBits = 12
	// LanesMax bounds how many delays there are: the rows of a request leave in as many frames at most. Frames of several requests never become one, for each has another
	// rank; they go to a leader in one call.
	LanesMax = 16
	// Tick is the unit of the times at which rows leave.
	Tick = point.Nanos(250 * time.Millisecond)
)

// Delays are how long rows wait: in [0, Window), as many different times as there are Lanes. The zero Delays delay nothing.
type Delays struct {
	Window point.Nanos
	Lanes  int
}

// DelaysOf returns the delays for a window over partitions of a width: where the window is a whole number of partitions, one for each partition. Then every partition
// that is filled at a moment gets the rows of one lane, and more lanes would change nothing. In other windows the most lanes spread the rows best.
func DelaysOf(window, width point.Nanos) Delays {
	if window <= 0 {
		return Delays{}
	}
	if n := window / max(width, 1); n*width == window && n <= LanesMax {
		return Delays{window, int(n)}
	}
	return Delays{window, LanesMax}
}

// Of is how long the rows of a series wait. Its lane are the first bits of its ring point in reverse order, so that the series of any range of the ring have
// delays all over the window (van der Corput's sequence).
func (d Delays) Of(ring uint64) point.Nanos {
	if d.Lanes == 0 {
		return 0
	}
	lane := bits.Reverse64(ring) & (Groups - 1) * uint64(d.Lanes) >> groupBits
	return point.Nanos(lane) * d.Window / point.Nanos(d.Lanes)
}

// longer is by how much the delay of any series is longer than in other delays; 0 if none is.
func (d Delays) longer(than Delays) (most point.Nanos) {
	for group := range uint64(Groups) {
		ring := group << (64 - groupBits)
		most = max(most, d.Of(ring)-than.Of(ring))
	}
	return most
}

// Row are the properties of a row that decide its delay.
type Row struct {
	Ring  uint64      // its series' point
	Time  point.Nanos // its own time
	Width point.Nanos // of the partition it belongs to
	Wish  point.Smear // of the insert
}

// Due returns when a row that was received now is forwarded, a multiple of Tick. wait is false for rows that are forwarded at once. Opting out always wins; opting
// in never overrules the table (C41).
func (r Rule) Due(row Row, in InForce, now point.Nanos) (due point.Nanos, wait bool) {
	if !r.mayWait(&row, now) {
		return now, false
	}
	due = (now + in.Of(row.Ring)) / Tick * Tick
	if due <= now {
		return now, false
	}
	return due, true
}

// Jumps is the delay of a row that does not wait, though its series has a delay: it may pass rows of its series that wait.
const Jumps point.Nanos = -1

// Delay returns how long a row that was received now waits, before it is rounded to a tick, or Jumps. 0: its series has no delay.
func (r Rule) Delay(row Row, in InForce, now point.Nanos) point.Nanos {
	delay := in.Of(row.Ring)
	if delay > 0 && !r.mayWait(&row, now) {
		return Jumps
	}
	return max(delay, 0)
}

func (r Rule) mayWait(row *Row, now point.Nanos) bool {
	switch {
	case r.Mode == Off, row.Wish == point.SmearOff, row.Width >= r.Threshold:
		return false
	case row.Time < now-r.Near, row.Time > now+r.Near: // C42
		return false
	}
	return true
}

// InForce are the delays of a moment: the present ones, or, where they are longer, the ones before, less half of the time since.
type InForce struct {
	delays, before Delays
	faded          point.Nanos
	from           point.Nanos // when before began to fade
}

// At are the delays of a later moment. Where those of one moment are used for all rows of the next quarter of a second, a row that comes when they are renewed is due up to an eighth
// of a second before one that came just earlier.
func (f InForce) At(now point.Nanos) InForce {
	f.faded = max(f.faded, (now-f.from)/2)
	return f
}

// Zero reports whether nothing waits.
func (f InForce) Zero() bool { return f.delays.Window == 0 && f.before.Window == 0 }

// Of is how long the rows of a series wait.
func (f InForce) Of(ring uint64) point.Nanos {
	d := f.delays.Of(ring)
	if f.before.Lanes == 0 {
		return d
	}
	return max(d, f.before.Of(ring)-f.faded)
}

// Change moves from delays to others so that no series' delay falls by more than half a second in a second: a row never leaves before an earlier row of its series, and
// at most twice as many rows leave in a second as came. Delays that grow are in force at once. Further changes wait until a decrease has ended. The zero Change has none.
type Change struct {
	is   InForce
	fade point.Nanos // by how much its delays are longer
	at   point.Nanos
}

// setBackMin is by how much a clock that goes back was set: it was ahead, and a decrease that it began goes on from there.
const setBackMin = point.Nanos(time.Minute)

// Step returns the delays in force. A clock that goes back by less than setBackMin changes nothing.
func (c *Change) Step(now point.Nanos, wanted Delays) InForce {
	if back := c.at - now; back >= setBackMin {
		c.at, c.is.from = now, c.is.from-back
	}
	c.at = max(c.at, now)
	if c.is.before.Lanes > 0 {
		if c.is.faded = (c.at - c.is.from) / 2; c.is.faded < c.fade {
			return c.is
		}
		c.is = InForce{delays: c.is.delays}
	}
	if wanted != c.is.delays {
		before := c.is.delays
		c.is.delays = wanted
		if c.fade = before.longer(wanted); c.fade > 0 {
			c.is.before, c.is.faded, c.is.from = before, 0, c.at
		}
	}
	return c.is
}
