package process

import (
	"context"
	"slices"

	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/server"
)

// parents are the partitions whose keys others have now, and that other servers lead.
type parents struct{ p *storage }

var _ server.Parents = parents{}

// HighestRank implements server.Parents. A leader without a heartbeat is not asked: it would be waited for.
func (w parents) HighestRank(ctx context.Context, table string, at *topology.Partition) (point.Stamp, error) {
	of := lease.Partition{Table: table, ID: at.ID}
	holder, _, led := w.p.view.Leaders.Leader(of)
	if !led || !w.p.view.Leaders.Live(holder) {
		return 0, fault.Errorf(fault.Unavailable, "no server that lives leads partition %v", of)
	}
	leader, known := w.p.storageOf(holder)
	ranker, ok := leader.(peer.SealedRanker)
	if !known || !ok {
		return 0, fault.Errorf(fault.Unavailable, "server %s, which leads partition %v, is not known", holder, of)
	}
	return ranker.HighestRank(ctx, table, at.ID)
}

// InSync implements server.Parents.
func (w parents) InSync(ctx context.Context, table string, at *topology.Partition, placement point.PlacementID) bool {
	if err := w.p.view.Leaders.CaughtUp(ctx); err != nil {
		return false
	}
	row, ok := w.p.view.Leaders.Lease(lease.Partition{Table: table, ID: at.ID})
	if !ok || row.State == lease.Held && w.p.view.Leaders.Live(row.Holder) {
		return false
	}
	return slices.Contains(row.InSync, lease.Member{Placement: placement, Server: w.p.id, Store: lease.StoreID(w.p.brick.ID().String())})
}
