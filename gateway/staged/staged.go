// Package staged knows where rows are staged, and chooses the servers that stage more.
//
// Servers announce the tables of which rows are staged on them before they ack the first one (registry.Server.Staging). A gateway also
// remembers for a moment where it staged rows itself, so that its readers need not wait for the announcement to arrive. One that cannot read the
// announcements asks every server that it knows.
package staged

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/spillwaydb/spillway/gateway/follow"
	"github.com/spillwaydb/spillway/metadata/registry"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
)

// Registry is the list of servers; registry.View implements it.
type Registry interface {
	All() []registry.Server
	Staging(table string) []topology.ServerID
	// Age is for how long a server may have announced a table unseen.
	Age(now time.Time) time.Duration
}

// View is one gateway's knowledge of staged rows. Safe for concurrent use.
type View struct {
	// Constant after New.
	registry Registry
	may      func(topology.ServerID) bool
	stages   bool

	mu struct {
		sync.Mutex
		noted map[note]time.Time
	}
}

type note struct {
	table  string
	server topology.ServerID
}

// notedFor is how long a gateway remembers where it staged rows.
const notedFor = 10 * time.Second

// freshTimeout bounds the reading of the registry before a deletion.
const freshTimeout = 5 * time.Second

// New makes a View. may reports whether a server is live and accepts rows; stages whether this gateway stages rows.
func New(r Registry, may func(topology.ServerID) bool, stages bool) *View {
	v := &View{registry: r, may: may, stages: stages}
	v.mu.noted = map[note]time.Time{}
	return v
}

// Note records that rows of a table were staged on servers.
func (v *View) Note(now time.Time, table string, servers []topology.ServerID) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, s := range servers {
		v.mu.noted[note{table, s}] = now
	}
}

// Of lists the servers on which rows of a table may be staged, sorted: all there are, if rows are staged at all and this gateway has not read their announcements for follow.DoubtAge.
func (v *View) Of(now time.Time, table string) []topology.ServerID {
	all := v.registry.Staging(table)
	if v.stages && v.registry.Age(now) >= follow.DoubtAge {
		for _, s := range v.registry.All() {
			all = append(all, s.ID)
		}
	}
	v.mu.Lock()
	for n, at := range v.mu.noted {
		switch {
		case now.Sub(at) > notedFor:
			delete(v.mu.noted, n)
		case n.table == table:
			all = append(all, n.server)
		}
	}
	v.mu.Unlock()
	slices.Sort(all)
	return slices.Compact(all)
}

// Stagers lists the servers that delete in their staged rows before a deletion in partitions, sorted: those on which rows of the table may be staged, by the rows of
// the registry that fresh reads, and, if there is one, all that may accept some. Without fresh rows it goes by those at hand where nothing was ever staged; else
// errors are those of fresh: an announcement could have been missed.
func (v *View) Stagers(ctx context.Context, now time.Time, table string, fresh func(context.Context) ([]registry.Server, error)) ([]topology.ServerID, error) {
	within, stop := context.WithTimeout(ctx, freshTimeout)
	defer stop()
	rows, err := fresh(within)
	if err != nil {
		if rows = v.registry.All(); v.stages || slices.ContainsFunc(rows, func(s registry.Server) bool { return s.Staging != "" }) {
			return nil, err
		}
	}
	all := v.Of(now, table)
	for i := range rows {
		if rows[i].Stages(table) {
			all = append(all, rows[i].ID)
		}
	}
	if len(all) == 0 {
		return nil, nil
	}
	for i := range rows {
		if v.may(rows[i].ID) {
			all = append(all, rows[i].ID)
		}
	}
	slices.Sort(all)
	return slices.Compact(all), nil
}

// Takers counts the live servers that accept rows.
func (v *View) Takers() (n int) {
	for _, s := range v.registry.All() {
		if s.Takes() && v.may(s.ID) {
			n++
		}
	}
	return n
}

// Holders chooses n servers for a frame: in zones of their own, else on hosts of their own, among live ones that are not in avoid. nonce spreads
// the frames. Errors are Unavailable: there are not so many.
func (v *View) Holders(n int, nonce uint64, avoid []topology.ServerID) ([]topology.ServerID, error) {
	var all []registry.Server
	for _, s := range v.registry.All() {
		if s.Takes() && v.may(s.ID) && !slices.Contains(avoid, s.ID) {
			all = append(all, s)
		}
	}
	chosen := choose(all, n, nonce)
	if len(chosen) < n {
		return nil, fault.Errorf(fault.Unavailable, "%d storage servers can stage rows, %d have to", len(chosen), n)
	}
	return chosen, nil
}

// choose picks one server after another: each the one that shares least with those before.
func choose(all []registry.Server, n int, nonce uint64) (chosen []topology.ServerID) {
	if len(all) == 0 {
		return nil
	}
	by := int(nonce % uint64(len(all)))
	all = slices.Concat(all[by:], all[:by])
	var taken []registry.Server
	for len(taken) < n && len(all) > 0 {
		shares := func(s registry.Server) (cost int) {
			for _, t := range taken {
				if s.Host == t.Host {
					cost += 2
				}
				if s.Zone != "" && s.Zone == t.Zone {
					cost++
				}
			}
			return cost
		}
		best := 0
		for i := range all {
			if cmp.Compare(shares(all[i]), shares(all[best])) < 0 {
				best = i
			}
		}
		taken = append(taken, all[best])
		all = slices.Delete(all, best, best+1)
	}
	for _, s := range taken {
		chosen = append(chosen, s.ID)
	}
	return chosen
}
