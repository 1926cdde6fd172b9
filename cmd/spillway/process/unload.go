package process

import (
	"context"

	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/protocols/budget"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/server"
	"github.com/spillwaydb/spillway/storage/unload/runner"
)

// openUnloads opens the mover of rows from partitions to their successors, and returns the functions that start and stop it; nil: it is off.
func (p *storage) openUnloads() func(p lease.Partition, epoch point.Epoch, on, first bool) {
	if p.cfg.Storage.UnloadBytesPerSecond == 0 {
		return nil
	}
	p.unloads = runner.New(runner.Deps{
		Ways: stagingWays{p}, Partitions: unloading{p}, Finished: func(part lease.Partition, epoch point.Epoch) { p.lead.Unloaded(part, epoch) },
		Borrow: func(ctx context.Context) (context.Context, *budget.Loan, error) {
			return lending{queries: p.accounts.queries}.borrow(ctx)
		},
		Log: p.log, Registerer: p.registerer,
	}, runner.Settings{BytesPerSecond: int64(p.cfg.Storage.UnloadBytesPerSecond)})
	return p.unloads.Set
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
