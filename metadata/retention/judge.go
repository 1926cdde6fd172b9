package retention

import (
	"fmt"
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

// Verdict is the decision on the expired partitions of a table: all are dropped, or all are held.
type Verdict struct {
	Drop []point.PartitionID
	Held []point.PartitionID
	Why  string // they are held
}

// Judge decides about the partitions that lie wholly before the table's retention.
func Judge(m *topology.Map, c Clock) Verdict {
	expired := m.Expired(c.Wall)
	if len(expired) == 0 {
		return Verdict{}
	}
	hold := func(format string, args ...any) Verdict {
		return Verdict{Held: expired, Why: fmt.Sprintf(format, args...)}
	}
	if c.Jumped() {
		return hold("the clock says %s, %v after it was last seen", stamp(c.Wall), time.Duration(c.Wall-c.Seen).Round(time.Hour))
	}
	old, all := slices(m, expired)
	if !c.IsConfirmed() && old > SlicesMax && 2*old > all {
		return hold("by the clock, which says %s, %d of the %d slices of time of the table are older than its retention of %v", stamp(c.Wall), old, all, m.Config.Retention)
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
