package clock

import (
	"math"
	"time"

	"github.com/spillwaydb/spillway/protocols/point"
)

// Reading is the time now. Earliest <= Now <= Latest, and the right time lies between the two as far as is known; they differ only while it is in doubt which
// clock is right. All are unix nanoseconds.
type Reading struct {
	Now, Earliest, Latest point.Nanos
}

// At is the reading of a clock that no witness contradicts. One that was never set (point.ClockFirst) bounds no row of the future.
func At(t point.Nanos) Reading {
	if t < point.ClockFirst {
		return Reading{Now: t, Earliest: t, Latest: math.MaxInt64}
	}
	return Reading{Now: t, Earliest: t, Latest: t}
}

// Verdict is the judgment on the machine's clock.
type Verdict int

const (
	// Alone: there is no reference.
	Alone Verdict = iota
	// Unsure: a clock that differs from the reference may be the right one.
	Unsure
	// Floor: the reference is a time that has passed for certain. A clock before it is wrong; one after it may be right.
	Floor
	// Off: the clock is wrong, and the reference is right.
	Off
)

// State is a judgment, in force until the next. The zero State goes by the machine's clock.
type State struct {
	Verdict Verdict
	Ref     int64         // the reference minus the steady clock
	Slack   time.Duration // by which the right time may be after the reference, while Unsure
	Within  time.Duration // a clock that differs from the reference by no more is right
	// Unjudged: it is a gateway's, and none of the storage servers' clocks is known yet but by heartbeats that may be old.
	Unjudged bool
}

// Read gives the time for readings of the machine's clock and of a steady clock that is never set.
func (s State) Read(wall, steady point.Nanos) Reading {
	ref := steady + s.Ref
	ahead := wall - ref
	switch near := -int64(s.Within) <= ahead && ahead <= int64(s.Within); {
	case s.Verdict == Off, s.Verdict == Floor && ahead < 0 && !near:
		return Reading{Now: ref, Earliest: ref, Latest: ref}
	case s.Verdict != Unsure || near:
		return At(wall)
	case wall < point.ClockFirst: // it is wrong for certain, and the reference the nearest that is known
		return Reading{Now: max(wall, ref), Earliest: wall, Latest: math.MaxInt64}
	case ahead < 0:
		return Reading{Now: wall, Earliest: wall, Latest: ref + int64(s.Slack)}
	}
	return Reading{Now: wall, Earliest: ref, Latest: wall}
}
