package lineproto

import (
	"math"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

// Precision is the unit in which timestamps are written. The zero Precision is Nanosecond.
type Precision uint8

const (
	Nanosecond Precision = iota
	Microsecond
	Millisecond
	Second
	Minute
	Hour
	// Auto judges each timestamp by its magnitude, as InfluxDB 3 does: below 5e9 seconds, below 5e12 milliseconds, below
	// 5e15 microseconds, else nanoseconds.
	Auto
)

var units = [...]int64{Nanosecond: 1, Microsecond: 1e3, Millisecond: 1e6, Second: 1e9, Minute: 60e9, Hour: 3600e9, Auto: 1}

// Precision reads the parameter precision of a write request; "" is the flavour's default. The error is Invalid and has
// the text of the original (InfluxDB 1.8 and 2.7).
func (f Flavour) Precision(s string) (Precision, error) {
	switch f {
	case V1:
		return precisionV1(s)
	case V2:
		return precisionV2(s)
	}
	return precisionV3(s)
}

func precisionV1(s string) (Precision, error) {
	switch s {
	case "", "n", "ns":
		return Nanosecond, nil
	case "u", "us", "µ":
		return Microsecond, nil
	case "ms":
		return Millisecond, nil
	case "s":
		return Second, nil
	case "m":
		return Minute, nil
	case "h":
		return Hour, nil
	}
	return 0, fault.Errorf(fault.Invalid, "invalid precision %q (use n, u, ms, s, m or h)", s)
}

func precisionV2(s string) (Precision, error) {
	switch s {
	case "", "ns":
		return Nanosecond, nil
	case "us":
		return Microsecond, nil
	case "ms":
		return Millisecond, nil
	case "s":
		return Second, nil
	}
	return 0, fault.Errorf(fault.Invalid, "invalid precision %q; valid precision units are ns, us, ms, and s", s)
}

func precisionV3(s string) (Precision, error) {
	switch s {
	case "", "auto":
		return Auto, nil
	case "nanosecond", "ns":
		return Nanosecond, nil
	case "microsecond", "us":
		return Microsecond, nil
	case "millisecond", "ms":
		return Millisecond, nil
	case "second", "s":
		return Second, nil
	}
	return 0, fault.Errorf(fault.Invalid, "invalid precision %q (use auto, nanosecond, microsecond, millisecond or second)", s)
}

// nanos scales a written timestamp; ok is false where the result does not fit.
func (p Precision) nanos(t int64) (ns point.Nanos, ok bool) {
	if p == Auto {
		p = guess(t)
	}
	u := units[p]
	if t > math.MaxInt64/u || t < math.MinInt64/u {
		return 0, false
	}
	return t * u, true
}

func guess(t int64) Precision {
	switch {
	case -5e9 < t && t < 5e9:
		return Second
	case -5e12 < t && t < 5e12:
		return Millisecond
	case -5e15 < t && t < 5e15:
		return Microsecond
	}
	return Nanosecond
}

// Floor cuts a time to the precision, as Influx does with its own clock where a line has no timestamp.
func (p Precision) Floor(t point.Nanos) point.Nanos {
	r := t % units[p]
	if r < 0 {
		r += units[p]
	}
	if t < math.MinInt64+r {
		return t
	}
	return t - r
}
