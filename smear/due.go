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
	// Lanes is how many delays there are: the rows of a request leave in as many frames at most. Frames of several requests never join, for each has a rank of
	// its own. With 16 the partitions that take rows at a moment differ by one sixteenth of the load, and lanes leave at most 7.5 s apart in the longest
	// window that is chosen.
	Lanes    = 1 << laneBits
	laneBits = 4
	// Tick is the unit of the times at which rows leave.
	Tick = point.Nanos(250 * time.Millisecond)
)

// Delay is how long the rows of a series wait, in [0, window). Its lane are the first bits of its ring point in reverse order, so that the series of any
// range of the ring have delays all over the window (van der Corput's sequence).
func Delay(ring uint64, window point.Nanos) point.Nanos {
	lane := bits.Reverse64(ring) & (Groups - 1) >> (groupBits - laneBits)
	return point.Nanos(lane) * window / Lanes
}

// Row is what the delay of a row depends on.
type Row struct {
	Ring  uint64      // its series' point
	Time  point.Nanos // its own time
	Width point.Nanos // of the partition it belongs to
	Wish  point.Smear // of the insert
}

// Due returns when a row that was received now is forwarded, a multiple of Tick. wait is false for rows that are forwarded at once. Opting out always wins; opting
// in never overrules the table (C41).
func (r Rule) Due(row Row, window, now point.Nanos) (due point.Nanos, wait bool) {
	switch {
	case r.Mode == Off, row.Wish == point.SmearOff, row.Width >= r.Threshold:
		return now, false
	case row.Time < now-r.Near, row.Time > now+r.Near: // C42
		return now, false
	}
	due = (now + Delay(row.Ring, window)) / Tick * Tick
	if due <= now {
		return now, false
	}
	return due, true
}

// Window is the window in force. It grows at once, and shrinks by half a second in a second: a row never leaves before an earlier row of its series, and at most
// twice as many rows leave in a second as came. The zero Window is 0 long.
type Window struct {
	at, length point.Nanos
}

// Step moves the window toward the wanted one and returns it. A clock that goes back changes nothing.
func (w *Window) Step(now, wanted point.Nanos) point.Nanos {
	passed := max(now-w.at, 0)
	w.at = max(now, w.at)
	if wanted >= w.length {
		w.length = wanted
	} else {
		w.length = max(wanted, w.length-passed/2)
	}
	return w.length
}
