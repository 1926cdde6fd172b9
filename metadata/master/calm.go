package master

import (
	"reflect"
	"slices"
	"time"

	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/point"
)

// calmFor is how long a plan without steps stays valid for an unchanged state: the effects of time alone (partitions ahead, retention,
// merges) need minutes.
const calmFor = time.Minute

// calm skips rounds that have nothing to plan, since a plan of a hundred thousand partitions costs a tenth of a second. It is pure.
//
//	changed since the plan    a map, a lease row, a server, sizes, metadata servers     → plan
//	a server                  is silent, or has just come                               → plan: rules wait for it by seconds
//	the plan before           had steps or alarms                                       → plan
//	else                                                                                → plan every calmFor
type calm struct {
	was  *calmState // nil: the last plan had steps, or there was none
	when point.Nanos
}

// calmState holds the inputs of a plan, as far as they are cheap to compare.
type calmState struct {
	tables   []*topology.Map
	servers  []Server // without the fields that change with every heartbeat
	rest     State    // Dropped, Dropping, JustSwept and Metadata
	rows     uint64   // Rows.changes
	sizes    int      // how often they changed
	settling bool
}

// calmOf extracts the compared fields from a state, which need not have the lease rows yet.
func calmOf(s State, set Settings, rows uint64, sizes int) *calmState {
	c := &calmState{tables: s.Tables, rows: rows, sizes: sizes,
		rest: State{Dropped: s.Dropped, Dropping: s.Dropping, JustSwept: s.JustSwept, Metadata: s.Metadata}}
	for _, x := range s.Servers {
		c.settling = c.settling || !x.Live || x.For < set.SettleAfter+set.Every
		x.For = 0
		x.Beat.N, x.Beat.Time, x.Beat.Load, x.Beat.Held, x.Beat.Room, x.Beat.Writes = 0, time.Time{}, 0, 0, 0, nil
		c.servers = append(c.servers, x)
	}
	slices.SortFunc(c.servers, func(a, b Server) int {
		return slices.Compare([]byte(a.ID), []byte(b.ID))
	})
	return c
}

// passes reports whether a round may be passed over.
func (c *calm) passes(now *calmState, at point.Nanos) bool {
	return c.was != nil && !c.was.settling && !now.settling && at >= c.when && at-c.when < int64(calmFor) && slices.Equal(c.was.tables, now.tables) &&
		c.was.rows == now.rows && c.was.sizes == now.sizes && reflect.DeepEqual(c.was.servers, now.servers) && reflect.DeepEqual(c.was.rest, now.rest)
}

// planned notes the outcome of a plan.
func (c *calm) planned(of *calmState, at point.Nanos, steps []Step) {
	if c.was, c.when = of, at; len(steps) > 0 {
		c.was = nil
	}
}
