package clock

import (
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/spillwaydb/spillway/protocols/point"
)

// Problem describes the fault of the machine's clock and its consequences; "": there is none.
func (c *Clock) Problem() string {
	if c == nil {
		return State{}.problem(time.Now().UnixNano(), 0)
	}
	return c.State().problem(c.Both())
}

func (s State) problem(wall, steady point.Nanos) string {
	r := s.Read(wall, steady)
	says := "The clock of this machine says " + text(wall)
	ahead := time.Duration(wall - steady - s.Ref)
	side := "ahead of"
	if ahead < 0 {
		side = "behind"
	}
	by := ahead.Abs().Round(time.Second)
	switch {
	case r.Now != wall && s.Verdict != Unsure:
		return fmt.Sprintf("%s, %v %s the median of the storage servers' clocks. Rows and queries are judged by that median, and rows without a time get it: set the clock right.", says, by, side)
	case r.Now != wall:
		return fmt.Sprintf("%s: it was never set. Rows without a time get %s, the latest time that is known: set the clock, by NTP or by hand.", says, text(r.Now))
	case wall < point.ClockFirst:
		return says + ": it was never set. Rows without a time get this one, and queries of the last hours miss the rows of senders whose clock is right: set it, by NTP or by hand."
	case r.Earliest == r.Latest:
		return ""
	case s.Within == NearMax && ahead < 0:
		return fmt.Sprintf("%s, %v before where it was last seen. Rows of up to %s are accepted while that is so; rows without a time get this one: look whether it is right.", says, by, text(r.Latest))
	case s.Within == NearMax && ahead <= JumpMax: // the process was off for as long
		return ""
	case s.Within == NearMax:
		return fmt.Sprintf("%s, %v after where it was last seen. Rows are too old only by the earlier time, while that is so: look whether it is right.", says, by)
	}
	return fmt.Sprintf("%s, %v %s the storage servers' clocks, which are too few, or differ too much, to show which is wrong. Rows are refused only where they are wrong by both; rows without a time get this one: set the clocks right.", says, by, side)
}

func text(t point.Nanos) string { return time.Unix(0, t).UTC().Format(time.RFC3339) }

// Register shows the judgment as gauges. R may be nil.
func (c *Clock) Register(r prometheus.Registerer) {
	if r == nil || c == nil {
		return
	}
	r.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "spillway_clock_ahead_seconds", Help: "How far the clock of this machine is ahead of the median of the storage servers' clocks or, where the process is alone, of where it was last seen; 0 while neither is known.",
	}, func() float64 { return c.Ahead().Seconds() }))
	r.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "spillway_clock_wrong", Help: "1 while the clock of this machine is wrong, or may be: the status page says what follows.",
	}, func() float64 {
		if c.Problem() != "" {
			return 1
		}
		return 0
	}))
}
