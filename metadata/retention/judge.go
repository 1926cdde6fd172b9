package retention

import (
	"fmt"
	"math"
	"time"

	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/clock"
	"github.com/spillwaydb/spillway/protocols/point"
)

// SlicesMax is how many slices of time a round may drop of a table whatever their share: steady retention
// drops one.
const SlicesMax = 2

// Clock holds the readings of the time.
type Clock struct {
	// Wall is the current reading of the wall clock.
	Wall point.Nanos
	// Seen is the clock that is remembered (clock.Memory); 0: none.
	Seen point.Nanos
	// Confirmed: a person confirms that the wall clock is right as long as it is not later than this; 0: not confirmed.
	Confirmed point.Nanos
}

// IsConfirmed reports whether a person vouches for the clock.
func (c Clock) IsConfirmed() bool { return c.Confirmed != 0 && c.Wall <= c.Confirmed }

// Jumped reports whether the clock went ahead further than it may.
func (c Clock) Jumped() bool {
	return c.Seen != 0 && !c.IsConfirmed() && c.Wall > c.Seen && c.Wall-c.Seen > int64(clock.JumpMax)
}

// Confirmed is the loss that a person confirmed when a table's retention became shorter. The zero Confirmed: none.
type Confirmed struct {
	// Retention is what it became: with a longer one nothing is confirmed any more.
	Retention time.Duration
	// From and Through bound the ends of the partitions that became too old by it: those up to From were too old before, and are not part of it.
	From, Through point.Nanos
}

// Stands reports whether a table still keeps its rows no longer than a person confirmed.
func (c Confirmed) Stands(m *topology.Map) bool {
	keep := m.Config.Retention
	return 0 < keep && keep <= c.Retention
}

// of returns which ids are of partitions that a person confirmed, and the others.
func (c Confirmed) of(m *topology.Map, ids []point.PartitionID) (confirmed, others []point.PartitionID) {
	if !c.Stands(m) {
		return nil, ids
	}
	for _, id := range ids {
		if p, ok := m.ByID(id); ok && c.covers(p) {
			confirmed = append(confirmed, id)
		} else {
			others = append(others, id)
		}
	}
	return confirmed, others
}

func (c Confirmed) covers(p *topology.Partition) bool {
	return c.From < p.TimeHi && p.TimeHi <= c.Through
}

// Left reports whether a table has partitions that a person confirmed the loss of.
func (c Confirmed) Left(m *topology.Map) bool {
	for p := range m.All() {
		if c.covers(p) {
			return true
		}
	}
	return false
}

// And adds an earlier loss to this one, if no partition lies in between.
func (c Confirmed) And(earlier Confirmed) Confirmed {
	if earlier.Retention >= c.Retention && earlier.From < c.From && c.From <= earlier.Through {
		c.From = earlier.From
	}
	return c
}

// Confirm is the loss by a shorter retention, of the map next in place of m; false: by this clock there is none.
func Confirm(m, next *topology.Map, now point.Nanos) (Confirmed, bool) {
	c := Confirmed{Retention: next.Config.Retention, From: latestEnd(m, now), Through: latestEnd(next, now)}
	return c, c.From < c.Through
}

// latestEnd is the end of the latest partition that is too old.
func latestEnd(m *topology.Map, now point.Nanos) point.Nanos {
	end := point.Nanos(math.MinInt64)
	for _, id := range m.Expired(now) {
		if p, ok := m.ByID(id); ok {
			end = max(end, p.TimeHi)
		}
	}
	return end
}

// Verdict is the decision on the expired partitions of a table: all are dropped, or all are held but those that a person confirmed.
type Verdict struct {
	Drop []point.PartitionID
	Held []point.PartitionID
	Why  string // they are held
}

// Judge decides about the partitions that lie wholly before the table's retention. A clock that jumped holds those that a person confirmed, too.
func Judge(m *topology.Map, c Clock, said Confirmed) Verdict {
	expired := m.Expired(c.Wall)
	if len(expired) == 0 {
		return Verdict{}
	}
	if c.Jumped() {
		return Verdict{Held: expired, Why: fmt.Sprintf("the clock says %s, %v after it was last seen", stamp(c.Wall), time.Duration(c.Wall-c.Seen).Round(time.Hour))}
	}
	confirmed, others := said.of(m, expired)
	old, all := slices(m, others)
	gone, _ := slices(m, confirmed)
	all -= gone
	if !c.IsConfirmed() && old > SlicesMax && 2*old > all {
		return Verdict{Drop: confirmed, Held: others,
			Why: fmt.Sprintf("by the clock, which says %s, %d of the %d slices of time of the table are older than its retention of %v", stamp(c.Wall), old, all, m.Config.Retention)}
	}
	return Verdict{Drop: expired}
}

// slices counts the ranges of time that the ids lie in, and those of the whole map.
func slices(m *topology.Map, ids []point.PartitionID) (some, all int) {
	ends, every := map[point.Nanos]bool{}, map[point.Nanos]bool{}
	for _, id := range ids {
		if p, ok := m.ByID(id); ok {
			ends[p.TimeHi] = true
		}
	}
	for p := range m.All() {
		every[p.TimeHi] = true
	}
	return len(ends), len(every)
}

func stamp(t point.Nanos) string { return time.Unix(0, t).UTC().Format(time.RFC3339) }
