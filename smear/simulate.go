package smear

import (
	"time"

	"github.com/spillwaydb/spillway/protocols/point"
)

// Scenario is a cluster under a load whose rows all have the time at which they are sent.
type Scenario struct {
	Load
	Window   point.Nanos
	Duration point.Nanos // whole seconds
	// Place gives the servers, 0 to Servers-1, that hold a partition: number slot in time, number column on the ring.
	Place func(slot, column int) []int
	// Rate is the load at a time, in any unit; nil: constant.
	Rate func(at point.Nanos) float64
}

// Loads is the rows that each server accepted: Servers[server][i] in second i of the scenario.
type Loads struct {
	Servers [][]float64
}

// Simulate runs a scenario through Due, tick by tick and group by group.
func Simulate(s Scenario) Loads {
	second := point.Nanos(time.Second)
	out := Loads{Servers: make([][]float64, s.Servers)}
	for i := range out.Servers {
		out.Servers[i] = make([]float64, int((s.Duration+second-1)/second))
	}
	in := InForce{delays: DelaysOf(s.Window, s.Width)}
	rule := Rule{Mode: Fixed, Threshold: s.Width + 1, Near: s.Duration}
	columns := max(s.Columns, 1)
	slot, placed := -1, make([][]int, columns)
	for now := Tick / 2; now < s.Duration; now += Tick {
		if at := int(now / s.Width); at != slot {
			slot = at
			for column := range placed {
				placed[column] = s.Place(slot, column)
			}
		}
		rate := 1.0
		if s.Rate != nil {
			rate = s.Rate(now)
		}
		for group := range uint64(Groups) {
			part := rate * float64(Tick) / float64(second) / Groups
			due, _ := rule.Due(Row{Ring: group << (64 - groupBits), Time: now, Width: s.Width}, in, now)
			if due >= s.Duration {
				continue
			}
			for _, server := range placed[int(group)*columns/Groups] {
				out.Servers[server][due/second] += part
			}
		}
	}
	return out
}

// Busiest is the largest load of a server over any span between from and the end, in terms of the mean of all servers over that span.
func (l Loads) Busiest(from, span time.Duration) float64 {
	worst := 0.0
	seconds, n := int(from/time.Second), int(span/time.Second)
	for ; len(l.Servers) > 0 && seconds+n <= len(l.Servers[0]); seconds++ {
		most, all := 0.0, 0.0
		for _, loads := range l.Servers {
			sum := 0.0
			for _, v := range loads[seconds : seconds+n] {
				sum += v
			}
			most, all = max(most, sum), all+sum
		}
		if all > 0 {
			worst = max(worst, most*float64(len(l.Servers))/all)
		}
	}
	return worst
}
