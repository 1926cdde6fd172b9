package master

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

// Force describes the change that lets a partition go on without the placements that hold its rows (C32).
type Force struct {
	// Ops change the map; none: it is changed already, because an earlier try ended in between.
	Ops []topology.Op
	// Member is the placement that goes on, for the lease row.
	Member lease.Member
	// Silent are the servers of the in-sync list without heartbeats: these must not come back before the row is written.
	Silent []topology.ServerID
	// Loses describes the rows that readers will miss, and the conditions that must hold before.
	Loses string
}

// ForceJoin plans how a partition goes on with one server alone. fresh is the id of its placement, if it has none that it keeps.
// Errors are NotFound, Invalid and Unavailable: a server that has every acked row is live, or may be.
func ForceJoin(s State, table string, id point.PartitionID, to topology.ServerID, fresh point.PlacementID, by, reason string) (Force, error) {
	v := newIndex(s, Settings{})
	key := lease.Partition{Table: table, ID: id}
	i := slices.IndexFunc(v.Tables, func(m *topology.Map) bool { return m.Table == table })
	if i < 0 {
		return Force{}, fault.Errorf(fault.NotFound, "there is no table %q", table)
	}
	p, ok := v.Tables[i].ByID(id)
	if !ok {
		return Force{}, fault.Errorf(fault.NotFound, "table %q has no p%d", table, id)
	}
	if v.Empty(key) {
		return Force{}, fault.Errorf(fault.Invalid, "no row of %s was ever acked, so nothing is lost: the master moves it by itself once its server is silent for half a minute", key)
	}
	st := v.servers[to]
	if st == nil || !st.Live {
		return Force{}, fault.Errorf(fault.Invalid, "server %q is not registered, or silent: choose one that `spillway server list` shows as live", to)
	}
	f := Force{Member: lease.Member{Placement: fresh, Server: to, Store: st.Store}}
	row, known := v.Leases[key]
	if !known || row.State == "" || len(row.InSync) == 0 {
		return Force{}, fault.Errorf(fault.Invalid, "the lease row of %s is gone, or names no server that holds its rows: put it back first, with `spillway partition restore %s p%d`", key, table, id)
	}
	var held []string
	for _, m := range row.InSync {
		was := v.servers[m.Server]
		switch {
		case was != nil && was.Live && was.Store == m.Store:
			return Force{}, fault.Errorf(fault.Invalid, "server %s is alive, and its disk holds every acked row of %s: nothing needs to be lost. If it does not lead, see `spillway partition show %s p%d`", m.Server, key, table, id)
		case was != nil && was.Live:
			held = append(held, fmt.Sprintf("%s (its disk was replaced)", m.Server))
		default:
			f.Silent = append(f.Silent, m.Server)
			held = append(held, fmt.Sprintf("%s (%s)", m.Server, silentFor(was)))
		}
	}
	copied := ""
	if pl, on := placedOn(p, to); on && !slices.ContainsFunc(row.InSync, func(m lease.Member) bool { return m.Placement == pl.ID }) {
		f.Member.Placement = pl.ID // its copy is incomplete, and better than nothing
		copied = fmt.Sprintf(" beyond what %s has of it", to)
	}
	if !slices.Equal(p.Placements, []topology.Placement{{ID: f.Member.Placement, Server: to}}) || !p.Incomplete {
		if p.State == topology.Splitting {
			f.Ops = append(f.Ops, topology.SplitAbort{Partition: id, Low: p.Split.Low.ID})
		}
		f.Ops = append(f.Ops, topology.ForceJoin{Partition: id, Placement: topology.Placement{ID: f.Member.Placement, Server: to}, By: by, Reason: reason})
	}
	f.Loses = fmt.Sprintf("%s goes on with %s alone. Its rows are held only by %s.\nEvery row with a time from %s to %s that was acked until now is lost to readers%s.\n"+
		"If such a server can be started with its disk, do that instead. If one may still run somewhere, stop it first: what it acks from now on would be lost too.\n"+
		"The partition stays marked as possibly incomplete: lists show it, and queries over it warn.", key, to, strings.Join(held, ", "), stamp(p.TimeLo), stamp(p.TimeHi), copied)
	return f, nil
}

func silentFor(st *standing) string {
	if st == nil {
		return "not registered"
	}
	return fmt.Sprintf("silent for %v", st.For.Round(time.Second))
}

// placedOn finds the placement of a partition on a server, live or joining.
func placedOn(p *topology.Partition, s topology.ServerID) (topology.Placement, bool) {
	if pl, ok := p.On(s); ok {
		return pl, true
	}
	return p.JoiningOn(s)
}
