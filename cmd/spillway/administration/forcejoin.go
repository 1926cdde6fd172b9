package administration

import (
	"context"
	"fmt"
	"time"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/master"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

// PartitionForceJoin lets a partition go on with one server, without the rows of disks that are gone.
type PartitionForceJoin struct {
	TableFlags   `embed:""`
	PartitionArg `embed:""`
	Server       topology.ServerID `arg:"" help:"Server that goes on with the partition."`
	Reason       string            `name:"reason" required:"" help:"What happened to the disks."`
	Yes          bool              `name:"yes" help:"Do not ask."`
}

// Run lets a partition go on without the placements that hold its rows: their disks are gone (C32).
func (c *PartitionForceJoin) Run() error {
	if !c.alone() {
		return c.with(c.run)
	}
	return c.order(c.path()+"/force-join", partitionOrder{Server: c.Server, Reason: c.Reason, Yes: c.Yes})
}

func (c *PartitionForceJoin) run(ctx context.Context, a *admin) error {
	m, _, err := a.partition(c.PartitionArg)
	if err != nil {
		return err
	}
	row, _, err := a.store.Get(ctx, lease.RowKey(c.key()))
	if err != nil {
		return err
	}
	beats, err := a.beats(ctx, row)
	if err != nil {
		return err
	}
	s, _, err := a.look(ctx) // a server without a heartbeat during the look is silent
	if err != nil {
		return err
	}
	f, err := master.ForceJoin(s, c.Table, point.PartitionID(c.ID), c.Server, point.PlacementID(a.rng.Uint64()|1), a.by, c.Reason)
	if err != nil {
		return err
	}
	if err := a.confirm(c.Yes, f.Loses); err != nil {
		return err
	}
	return a.act(ctx, c.Reason, fmt.Sprintf("force-join %s on %s, without the servers that hold its rows", c.key(), c.Server), func() error {
		return c.force(ctx, a, m, f, beats)
	})
}

// beats reads the heartbeats of the in-sync servers of a lease row: the write of the row compares them.
func (a *admin) beats(ctx context.Context, row coord.Row) (map[topology.ServerID]coord.Revision, error) {
	l, err := lease.DecodeLease(row.Value)
	if err != nil {
		return nil, nil // there is none, or it cannot be read: it names no leader
	}
	out := map[topology.ServerID]coord.Revision{}
	for _, member := range l.InSync {
		if out[member.Server], err = a.beat(ctx, member.Server); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// beat returns the revision of a server's heartbeat row, for a look at whether it is silent and a transaction that compares it afterwards. Where there is no row it writes
// one in its place, as those do that wait for a lease: that there is none cannot be compared. A server that lives writes its own over it during the look.
func (a *admin) beat(ctx context.Context, server topology.ServerID) (coord.Revision, error) {
	key := lease.BeatKey(server)
	for range 3 {
		row, there, err := a.store.Get(ctx, key)
		if err != nil || there {
			return row.Revision, err
		}
		row = coord.Row{Key: key, Value: lease.InPlace(server, fmt.Sprintf("%016x", a.rng.Uint64()), time.Now()).Encode()}
		rev, ok, err := a.store.Commit(ctx, []coord.Condition{{Key: key}}, []coord.Write{{Key: key, Value: row.Value}})
		if fault.Is(err, fault.Denied) {
			err = fault.Annotate(err, "server %s has no heartbeat row, and the storage server that was asked is too old to write one in its place; use --coord", server)
		}
		if err != nil || ok {
			return rev, err
		}
	}
	return 0, fault.Errorf(fault.Stale, "the heartbeat row of server %s is written and deleted again and again: find out by what, then run the command again", server)
}

// force changes the map, then the lease row. If it ends in between it can be run again.
func (c *PartitionForceJoin) force(ctx context.Context, a *admin, m *topology.Map, f master.Force, beats map[topology.ServerID]coord.Revision) error {
	if len(f.Ops) > 0 {
		seq := m.Seq
		var err error
		m, err = a.tables.Change(ctx, c.Table, func(m *topology.Map) ([]topology.Op, error) {
			if m.Seq != seq {
				return nil, fault.Errorf(fault.Stale, "the map of table %q changed meanwhile: run the command again", c.Table)
			}
			return f.Ops, nil
		})
		if err != nil {
			return err
		}
	}
	row, _, err := a.store.Get(ctx, lease.RowKey(c.key()))
	if err != nil {
		return err
	}
	born, _, err := a.store.Get(ctx, lease.BornKey(c.key()))
	if err != nil {
		return err
	}
	l, err := lease.DecodeLease(row.Value)
	if err != nil {
		l = lease.Lease{Epoch: point.Epoch(max(row.Revision, born.Revision))} // the next epoch of every server is above it
	}
	conditions := []coord.Condition{{Key: lease.RowKey(c.key()), Revision: row.Revision}, {Key: lease.BornKey(c.key()), Revision: born.Revision}}
	for _, s := range f.Silent {
		conditions = append(conditions, coord.Condition{Key: lease.BeatKey(s), Revision: beats[s]})
	}
	writes := []coord.Write{{Key: lease.RowKey(c.key()), Value: l.Forced(f.Member, m.Seq).Encode()}}
	if born.Revision == 0 {
		writes = append(writes, coord.Write{Key: lease.BornKey(c.key()), Value: []byte(`{"v":1}`)})
	}
	_, ok, err := a.store.Commit(ctx, conditions, writes)
	if err == nil && !ok {
		err = fault.Errorf(fault.Stale, "a server that holds its rows is alive, or its lease row changed: look again")
	}
	if err != nil {
		return fault.Annotate(err, "the map names %s, and no server leads %s: run the command again", c.Server, c.key())
	}
	return a.done("%s goes on with %s alone, and is marked as possibly incomplete", c.key(), c.Server)
}
