package smear

import (
	"fmt"
	"time"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

// ParseWindow reads off, auto, or a duration: the values of a window. Errors are Invalid.
func ParseWindow(text string) (Mode, point.Nanos, error) {
	switch text {
	case "off":
		return Off, 0, nil
	case "auto":
		return Auto, 0, nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 {
		return 0, 0, fault.Errorf(fault.Invalid, "smearing: the window %q is not off, auto or a duration such as 30s", text)
	}
	return Fixed, point.Nanos(d), nil
}

// String returns the window as it is set, and the threshold where it is not the default.
func (r Rule) String() string {
	s := "off"
	switch r.Mode {
	case Auto:
		s = "auto"
	case Fixed:
		s = time.Duration(r.Window).String()
	}
	if r.Threshold != 0 {
		s += ", below " + time.Duration(r.Threshold).String()
	}
	if r.Kafka != KafkaStage {
		s += ", kafka " + r.Kafka.String()
	}
	return s
}

// Kafka says where rows that came by Kafka wait.
type Kafka uint8

const (
	KafkaStage Kafka = iota // in staging, as all others
	KafkaWait               // in their topic: the gateway that reads it keeps them until they are due, and commits their offsets when they are written
)

// ParseKafka reads stage or wait. Errors are Invalid.
func ParseKafka(text string) (Kafka, error) {
	for k := KafkaStage; k <= KafkaWait; k++ {
		if text == k.String() {
			return k, nil
		}
	}
	return 0, fault.Errorf(fault.Invalid, "smearing: %.100q is neither stage nor wait", text)
}

// String returns the name by which it is set.
func (k Kafka) String() string {
	switch k {
	case KafkaStage:
		return "stage"
	case KafkaWait:
		return "wait"
	}
	return fmt.Sprintf("Kafka(%d)", uint8(k))
}

// Mode says how the window of a table is chosen.
type Mode uint8

const (
	Off   Mode = iota // rows are forwarded at once
	Auto              // the window follows from the load: Rule.Wanted
	Fixed             // the window is Rule.Window
)

// Rule is the setting of a table. The zero Rule smears nothing.
type Rule struct {
	Mode Mode
	// Threshold: partitions that cover as much time or more get their rows at once. Default 1 min.
	Threshold point.Nanos
	// Window is the longest delay in mode Fixed.
	Window point.Nanos
	// WindowMax bounds the window in mode Auto. Default 2 min. Longer: more servers share the load of narrow partitions, and more rows wait in staging.
	WindowMax point.Nanos
	// Kafka is where rows that came by Kafka wait.
	Kafka Kafka
	// Near: only rows whose time is at most this far from now wait. Others are no part of the load that all servers share. Default 5 min.
	Near point.Nanos
}

const (
	thresholdDefault = point.Nanos(time.Minute)
	windowMaxDefault = point.Nanos(2 * time.Minute)
	nearDefault      = point.Nanos(5 * time.Minute)

	// WindowLimit bounds every window: as long may an acked row wait in staging.
	WindowLimit = point.Nanos(10 * time.Minute)
)

// WithDefaults returns the rule with its zero fields replaced.
func (r Rule) WithDefaults() Rule {
	set := func(dst *point.Nanos, n point.Nanos) {
		if *dst == 0 {
			*dst = n
		}
	}
	set(&r.Threshold, thresholdDefault)
	set(&r.WindowMax, windowMaxDefault)
	set(&r.Near, nearDefault)
	return r
}

// Validate reports the first mistake. Errors are Invalid.
func (r Rule) Validate() error {
	for _, f := range []struct {
		name string
		v    point.Nanos
	}{{"threshold", r.Threshold}, {"window", r.Window}, {"longest window", r.WindowMax}, {"distance from now", r.Near}} {
		if f.v < 0 {
			return fault.Errorf(fault.Invalid, "smearing: the %s %v is negative", f.name, time.Duration(f.v))
		}
	}
	switch {
	case r.Mode > Fixed:
		return fault.Errorf(fault.Invalid, "smearing: mode %d is unknown", r.Mode)
	case r.Kafka > KafkaWait:
		return fault.Errorf(fault.Invalid, "smearing: %v is no place where rows of Kafka wait", r.Kafka)
	case r.Window > WindowLimit || r.WindowMax > WindowLimit:
		return fault.Errorf(fault.Invalid, "smearing: a window of %v is longer than %v", time.Duration(max(r.Window, r.WindowMax)), time.Duration(WindowLimit))
	case r.Mode == Fixed && r.Window == 0:
		return fault.Errorf(fault.Invalid, "smearing: mode fixed needs a window")
	}
	return nil
}

// Load describes the partitions that hold now.
type Load struct {
	Width   point.Nanos // of a partition
	Columns int         // ranges of the ring: that many partitions cover each moment; at least 1
	Servers int         // that may get placements
	// Bytes is the size at which a partition closes, Rate what one server accepts in a second. 0: unknown.
	Bytes, Rate float64
}

// Reason explains a window.
type Reason string

const (
	IsOff     Reason = "smearing is off for this table"
	OneServer Reason = "one server takes all partitions: nothing could be spread"
	Wide      Reason = "partitions are not narrower than the threshold"
	Spread    Reason = "long enough to fill partitions of all servers at once"
	Slow      Reason = "long enough for one server to take a partition's bytes"
	Capped    Reason = "the longest window allowed: more ring columns would reach all servers"
	AsSet     Reason = "as set"
	ColumnsDo Reason = "the ring's columns fill partitions of all servers at once already"
	TooShort  Reason = "the window is not longer than a partition: it would change nothing" // C37: peak inflow is bytes ÷ max(width, window)
)

// Delays returns the delays that suit a load, and why.
func (r Rule) Delays(l Load) (Delays, Reason) {
	window, why := r.Wanted(l)
	return DelaysOf(window, l.Width), why
}

// Wanted returns the window that suits a load, and why. 0: rows are forwarded at once.
//
// The peak inflow of a partition is Bytes ÷ max(Width, window) (C37). Partitions behind one another lie on the servers in turn, and the columns of a moment on servers
// Servers ÷ Columns apart. So a window of Servers ÷ Columns partitions fills partitions of each server, and one of a whole number of them, or of several times
// as many, by the same share at every moment; others fill a partition more on some servers.
func (r Rule) Wanted(l Load) (window point.Nanos, why Reason) {
	switch {
	case r.Mode == Off:
		return 0, IsOff
	case l.Width >= r.Threshold:
		return 0, Wide
	case l.Servers <= 1:
		return 0, OneServer
	case r.Mode == Fixed:
		if r.Window <= l.Width {
			return 0, TooShort
		}
		return r.Window, AsSet
	}
	servers, columns := point.Nanos(l.Servers), point.Nanos(max(l.Columns, 1))
	round := servers * l.Width / columns // fills partitions of all servers once
	if even := servers / gcd(servers, columns) * l.Width; even <= r.WindowMax {
		round = even
	} else if n := r.WindowMax / max(round, 1); n > 1 {
		round *= n
	}
	window, why = round, Spread
	if l.Bytes > 0 && l.Rate > 0 {
		if need := l.Bytes / l.Rate * 1e9; need > float64(window) {
			window, why = point.Nanos(min(need/float64(round)+1, float64(r.WindowMax/round+1)))*round, Slow
		}
	}
	switch {
	case why == Spread && columns >= servers:
		return 0, ColumnsDo
	case window > r.WindowMax:
		window, why = r.WindowMax/l.Width*l.Width, Capped
	}
	if window <= l.Width {
		return 0, TooShort
	}
	return window, why
}

func gcd(a, b point.Nanos) point.Nanos {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// ColumnsFor returns how many ring columns let windows of at most WindowMax fill partitions of all servers at once; 1 where one is enough.
func (r Rule) ColumnsFor(l Load) int {
	if l.Width <= 0 || l.Servers <= 1 {
		return 1
	}
	at := int(max(r.WindowMax/l.Width, 1)) // partitions of one column that are filled at once
	least := (l.Servers + at - 1) / at
	for n := least; n <= 2*least; n++ {
		if l.Servers%n == 0 {
			return n // they lie evenly
		}
	}
	return least
}
