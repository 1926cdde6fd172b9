package forward

import (
	"context"
	"errors"
	"time"

	"github.com/spillwaydb/spillway/metadata/lease/leaders"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
)

// Leaders tells whom to send a partition's rows to; leaders.View does.
type Leaders interface {
	// Find names the server. Where it can only guess, each try may name another. Errors are Unavailable and say why.
	Find(table string, p *topology.Partition, try int) (leaders.Lead, error)
	// Changed gives a channel that is closed when an answer of Find may change.
	Changed() <-chan struct{}
}

// constant are the leaders of a process that is alone: the first placement of each partition, for ever.
type constant struct{}

func (constant) Find(_ string, p *topology.Partition, _ int) (leaders.Lead, error) {
	return leaders.Lead{Server: p.Placements[0].Server}, nil
}

func (constant) Changed() <-chan struct{} { return nil }

// errMoved ends an attempt whose leader says nothing while another server has the lease.
var errMoved = errors.New("another server leads the partition by now")

// follow ends an attempt, once it has taken long, when somebody else leads the partition: a server that is cut off or
// stopped answers nothing at all.
func (f *Forwarder) follow(ctx context.Context, cancel context.CancelCauseFunc, table string, p *topology.Partition, asked topology.ServerID) {
	for {
		changed := f.leaders.Changed()
		if lead, err := f.leaders.Find(table, p, 0); err == nil && !lead.Guess && lead.Server != asked {
			cancel(errMoved)
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// silenceMax is how long a leader may say nothing before it is looked whether it still leads.
const silenceMax = 500 * time.Millisecond

// server finds the leader of a partition and the way to it.
func (f *Forwarder) server(table string, p *topology.Partition, try int) (leaders.Lead, peer.Storage, error) {
	lead, err := f.leaders.Find(table, p, try)
	if err != nil {
		return lead, nil, err
	}
	s, ok := f.deps.Servers.Server(lead.Server)
	if !ok {
		return lead, nil, fault.Errorf(fault.Unavailable, "storage server %q, leader of partition %s/%d, is not known here", lead.Server, table, p.ID)
	}
	return lead, s, nil
}
