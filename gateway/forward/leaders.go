package forward

import (
	"github.com/spillwaydb/spillway/metadata/lease/leaders"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
)

// constant are the leaders of a process that is alone: the first placement of each partition, for ever.
type constant struct{}

func (constant) Find(_ string, p *topology.Partition, _ int) (leaders.Lead, error) {
	return leaders.Lead{Server: p.Placements[0].Server}, nil
}

func (constant) Changed() <-chan struct{} { return nil }

// server finds the leader of a partition and the way to it.
func (f *Forwarder) server(table string, p *topology.Partition, try int) (leaders.Lead, peer.Storage, error) {
	lead, err := f.follow.Leaders.Find(table, p, try)
	if err != nil {
		return lead, nil, err
	}
	s, ok := f.deps.Servers.Server(lead.Server)
	if !ok {
		return lead, nil, fault.Errorf(fault.Unavailable, "storage server %q, leader of partition %s/%d, is not known here", lead.Server, table, p.ID)
	}
	return lead, s, nil
}

// dead reports whether a server sends no heartbeats. Its lease rows name it as the leader until another server acquires them, and where it alone had the rows none does.
func (f *Forwarder) dead(server topology.ServerID) bool {
	return f.deps.Live != nil && !f.deps.Live(server)
}

// full reports whether a server says that it accepts no rows. It is asked only after an answer without rows kept: what heartbeats say may be a second old.
func (f *Forwarder) full(server topology.ServerID) bool {
	return f.deps.ReadOnly != nil && f.deps.ReadOnly(server) != ""
}
