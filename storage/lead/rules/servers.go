package rules

import (
	"slices"

	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/topology"
)

// servers are the registered ones that may keep copies.
type servers struct {
	copies map[topology.ServerID]bool
	hosts  int // on which a partition may get placements: of those that are not drained
}

func serversOf(all []Server) *servers {
	s, hosts := &servers{copies: map[topology.ServerID]bool{}}, map[string]bool{}
	for _, x := range all {
		if !x.Copies {
			continue
		}
		s.copies[x.ID] = true
		if !x.Leaves {
			hosts[x.Host] = true
		}
	}
	s.hosts = len(hosts)
	return s
}

// first returns the placements on live servers that make up the list of a first row, and the minimum number of them.
//
// A placement whose server keeps no copies would ack nothing: rows would wait until the chain removes it, again in each new partition while a cluster is being
// upgraded.
//
// A cluster with fewer hosts than the table has replicas cannot have as many placements: one server alone accepts rows, of which there is one copy then, and two
// keep each row on both. Servers that are silent count: where three are registered and two are dead, a row is not acknowledged with one copy. The list never
// shrinks below the table's minimum once it has reached that (chain.Machine, lease.Machine), so that a list of one is left behind as soon as others have
// joined. Where a person has set the minimum, fewer accept no rows.
func (m *Machine) first(p *part, placed []lease.Member) ([]lease.Member, int) {
	if m.servers == nil {
		return placed, p.least
	}
	set := m.table(p.id.Table).least.set
	placed = slices.DeleteFunc(slices.Clone(placed), func(x lease.Member) bool {
		return x.Server != m.server && !m.servers.copies[x.Server]
	})
	mapped := 0
	for _, pl := range slices.Concat(p.assigned.Placements, p.assigned.Joining) {
		if pl.Server == m.server || m.servers.copies[pl.Server] {
			mapped++
		}
	}
	if set {
		return placed, p.least
	}
	possible := topology.Config{Replicas: max(m.servers.hosts, mapped, 1)}
	return placed, min(p.least, possible.MinInSync())
}
