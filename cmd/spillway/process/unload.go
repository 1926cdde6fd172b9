package process

import (
	"context"
	"time"

	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/budget"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/server"
	"github.com/spillwaydb/spillway/storage/unload/runner"
)

// openUnloads opens the mover of rows from partitions to their heirs, and returns the functions that start and stop it; nil: it is off.
func (p *storage) openUnloads() func(p lease.Partition, epoch point.Epoch, on, first bool) {
	if p.cfg.Storage.UnloadBytesPerSecond == 0 {
		return nil
	}
	p.unloads = runner.New(runner.Deps{
		Ways: unloadWays{stagingWays{p}}, Partitions: unloading{p}, Finished: func(part lease.Partition, epoch point.Epoch) { p.lead.Unloaded(part, epoch) },
		Borrow: func(ctx context.Context) (context.Context, *budget.Loan, error) {
			return lending{queries: p.accounts.queries}.borrow(ctx)
		},
		Log: p.log, Registerer: p.registerer,
	}, p.cfg.ForUnloads())
	return p.unloads.Set
}

// unloadWays are the ways of rows of partitions to their heirs.
type unloadWays struct{ stagingWays }

var _ runner.Ways = unloadWays{}

// HeirLeader implements runner.Ways.
func (w unloadWays) HeirLeader(parent lease.Partition, epoch point.Epoch, heir *topology.Partition) (topology.ServerID, point.Epoch, error) {
	l, err := w.p.view.Leaders.Find(parent.Table, heir, 0)
	if err != nil {
		return "", 0, err
	}
	if led, ok := w.p.lead.MayAct(parent.Table, parent.ID); !ok || led != epoch { // after the heir's row was read: storage/unload, ending
		return "", 0, fault.Errorf(fault.Unavailable, "partition %v is not led here under epoch %d any more", parent, epoch)
	}
	return l.Server, l.Epoch, nil
}

// Holders implements runner.Ways.
func (w unloadWays) Holders(ctx context.Context, parent lease.Partition, epoch point.Epoch, may func(point.PartitionID) bool) ([]topology.ServerID, bool) {
	servers, known := w.p.view.Leaders.Holders(parent, w.p.id, epoch, may)
	if !known {
		return nil, false
	}
	// A server registers before it leads, so rows that are read from now on name all earlier leaders.
	if err := w.p.view.Registry.CatchUp(ctx, w.p.view.Coord, time.Now()); err != nil || !w.p.view.Registry.AllEndSlices() {
		return nil, false
	}
	return servers, true
}

// asUnloads returns it for the server, or nil.
func (p *storage) asUnloads() server.Unloads {
	if p.unloads == nil {
		return nil
	}
	return p.unloads
}

// unloading are the partitions of the process's server, which is opened later.
type unloading struct{ p *storage }

// EndWrites implements runner.Partitions.
func (u unloading) EndWrites(ctx context.Context, part lease.Partition, epoch point.Epoch) error {
	return u.p.server.EndWrites(ctx, part, epoch)
}

// Bounds implements runner.Partitions.
func (u unloading) Bounds(part lease.Partition) (lo, hi point.Nanos, ok bool) {
	return u.p.server.Bounds(part)
}

// Rows implements runner.Partitions.
func (u unloading) Rows(ctx context.Context, part lease.Partition, epoch point.Epoch, lo, hi point.Nanos, f runner.Take) error {
	return u.p.server.Rows(ctx, part, epoch, lo, hi, f)
}
