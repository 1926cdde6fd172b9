package figures

import (
	"cmp"
	"slices"
	"time"

	"github.com/spillwaydb/spillway/gateway/ui"
	"github.com/spillwaydb/spillway/metadata/registry"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
)

// behindFor is how long a copy that is one of the partition's placements may lack segments before it is shown: each flush of the leader is ahead for a moment.
const behindFor = 10 * time.Second

// Transfers are the rows of a partition on their way, by its leader, for the page and for partition show: to joining placements, to copies that lack segments for
// long, and to heirs.
func Transfers(p *topology.Partition, leader topology.ServerID, all []peer.Transfer, now time.Time) (out []ui.Transfer) {
	for _, x := range all {
		_, joins := p.JoiningOn(topology.ServerID(x.To))
		since := time.Unix(0, x.Since).UTC()
		if x.To != "" && !joins && now.Sub(since) < behindFor || x.To == "" && p.State != topology.Unload {
			continue
		}
		one := ui.Transfer{From: string(leader), To: x.To, Done: x.Done, Total: x.Total, BytesPerSecond: x.BytesPerSecond, Since: since}
		if x.To == "" {
			for _, id := range p.Into {
				one.Into = append(one.Into, uint64(id))
			}
		}
		if x.BytesPerSecond > 0 {
			left := time.Duration(float64(x.Total-min(x.Done, x.Total)) / float64(x.BytesPerSecond) * float64(time.Second))
			one.Left = &left
		}
		out = append(out, one)
	}
	slices.SortFunc(out, func(a, b ui.Transfer) int { return cmp.Compare(a.To, b.To) })
	return out
}

// Leaves returns the server that a partition is to leave, by a drain or a move (registry.Move); "": none.
func Leaves(p *topology.Partition, table string, server func(topology.ServerID) (registry.Server, bool)) topology.ServerID {
	for _, pl := range p.Placements {
		srv, ok := server(pl.Server)
		if !ok {
			continue
		}
		if _, asked := srv.MoveOf(table, pl.ID); asked || srv.Drain != nil {
			return pl.Server
		}
	}
	return ""
}

// SetLeaving sets the server that the partition leaves in the transfers to joining placements: the leader that fills them may be another one.
func SetLeaving(all []ui.Transfer, p *topology.Partition, leaving topology.ServerID) {
	for i := range all {
		if _, joins := p.JoiningOn(topology.ServerID(all[i].To)); joins && leaving != "" {
			all[i].From = string(leaving)
		}
	}
}

// TransfersOf are the transfers of a partition among the answers of all servers, of which the leader alone has any.
func TransfersOf(id point.PartitionID, stats *peer.Stats) (all []peer.Transfer) {
	for i := range stats.ByPartition {
		if stats.ByPartition[i].ID == id {
			all = append(all, stats.ByPartition[i].Transfers...)
		}
	}
	return all
}
