package cluster

import (
	"context"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

// madeAtOnce is how many partitions one transaction makes.
const madeAtOnce = 1000

// make makes a table as it was: its settings, its columns, and its partitions, on servers of the target. One with rows keeps them.
func (r *restorer) make(ctx context.Context, was *topology.Map) error {
	c := r.to.Fit(was.Config)
	now, err := r.to.Create(ctx, was.Table, c)
	if err != nil {
		return err
	}
	if now.Len() == 0 {
		if _, err := r.to.Change(ctx, was.Table, func(m *topology.Map) ([]topology.Op, error) { return settings(m, was, c), nil }); err != nil {
			return err
		}
	}
	// Those that unload have heirs, which get their rows; rows of expired ones would be left out.
	expired := func(p *topology.Partition) bool {
		return c.Retention > 0 && p.TimeHi <= time.Now().UnixNano()-int64(c.Retention)
	}
	all := slices.DeleteFunc(slices.Collect(was.All()), func(p *topology.Partition) bool { return !p.Accepts() || expired(p) })
	for some := range slices.Chunk(all, madeAtOnce) {
		if _, err := r.to.Change(ctx, was.Table, func(m *topology.Map) ([]topology.Op, error) { return r.partitions(m, some) }); err != nil {
			return err
		}
	}
	return nil
}

// settings are the ops that give a table without partitions its settings. Columns that began at a boundary of another partition width are set under a width that has it.
func settings(m, was *topology.Map, c topology.Config) (ops []topology.Op) {
	if m.Len() > 0 {
		return nil // rows came meanwhile
	}
	for _, l := range was.Layouts {
		fits := c
		if at, _ := c.Aligned(l.From); at != l.From {
			fits.PartitionWidth, fits.Retention = time.Duration(max(l.From, -l.From)), 0
		}
		ops = append(ops, topology.SetConfig{Config: fits}, topology.SetColumns{Now: time.Now().UnixNano(), Layout: l})
	}
	return append(ops, topology.SetConfig{Config: c})
}

// partitions is the op that makes those that lie where the map has none.
func (r *restorer) partitions(m *topology.Map, all []*topology.Partition) ([]topology.Op, error) {
	var out topology.Create
	next := m.NextID
	for _, p := range all {
		if slices.ContainsFunc(m.Overlapping(p.TimeLo, p.TimeHi-1), p.SharesRing) {
			continue
		}
		fresh := topology.Partition{ID: next, PointLo: p.PointLo, PointHi: p.PointHi, TimeLo: p.TimeLo, TimeHi: p.TimeHi}
		for _, s := range r.to.Place(m.Table, next) {
			fresh.Placements = append(fresh.Placements, topology.Placement{ID: point.PlacementID(rand.Uint64()), Server: s})
		}
		if len(fresh.Placements) == 0 {
			return nil, fault.Errorf(fault.Unavailable, "no storage server takes partitions of table %q now: each is away, leaves, or has a full disk; spillway doctor says which", m.Table)
		}
		out.Partitions = append(out.Partitions, fresh)
		next++
	}
	if len(out.Partitions) == 0 {
		return nil, nil
	}
	return []topology.Op{out}, nil
}
