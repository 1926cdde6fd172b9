package server

import (
	"context"

	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/chain/runner"
	"github.com/spillwaydb/spillway/storage/partition"
)

// Chains keep the copies of partitions; storage/chain/runner implements it.
type Chains interface {
	// Kept reports whether a partition that is placed here has a chain. Called for every request; costs a look-up.
	Kept(table string, id point.PartitionID) bool
	// Lead makes a placement lead its chain in an epoch; when it returns the placement accepts rows. Errors are Stale and those of the store.
	Lead(ctx context.Context, p lease.Partition, at *partition.Partition, epoch point.Epoch) error
	// Accepts returns the reason why a partition that is led here refuses rows now. Errors are Unavailable, Throttled and Stale.
	Accepts(p lease.Partition) error
	// Stalled returns the reason why rows would wait for a placement that is away. Errors are Unavailable.
	Stalled(p lease.Partition) error
	// Wake has placements that are quiet, and not sure for that alone, become sure. It waits a moment for that at most.
	Wake(ctx context.Context, ps []lease.Partition)
	// Sure reports whether the placement here surely has every acknowledged row.
	Sure(p lease.Partition) bool
	// Once reports whether the placement here was listed in sync at some time since this process started: its store has lost no row since.
	Once(p lease.Partition) bool
}

var (
	_ Chains            = (*runner.Chains)(nil)
	_ runner.Partitions = (*Server)(nil)
)

func (s *Server) kept(name string, id point.PartitionID) bool {
	return s.deps.Chains != nil && s.deps.Chains.Kept(name, id)
}

// delayFlushes keeps placements that may have copies elsewhere from flushing until this process has learned which of
// them leads: their segments would have the names of the leader's.
// At a start no lease is known yet. A partition that flushed its replayed rows now would number the segment as the
// leader elsewhere numbers its own, with other rows in it (I4).
func (s *Server) delayFlushes() error {
	if s.deps.Chains == nil {
		return nil
	}
	for _, t := range s.tables() {
		m, ok := s.deps.Maps.Get(t.name)
		for _, p := range t.all() {
			if ok && !chained(m, p.Identity().Partition) {
				continue
			}
			if err := p.FollowLeader(0); err != nil {
				return err
			}
		}
	}
	return nil
}

// WithSurplus returns the placements here with frames set aside that a leader never had.
func (s *Server) WithSurplus() (all []*partition.Partition) {
	for _, t := range s.tables() {
		for _, p := range t.all() {
			if p.HasSurplus() {
				all = append(all, p)
			}
		}
	}
	return all
}

// chained reports whether, by a map, a partition may have copies elsewhere.
func chained(m *topology.Map, id point.PartitionID) bool {
	at, ok := m.ByID(id)
	return m.Config.Replicas > 1 || ok && m.Chained(at)
}

// Placement implements runner.Partitions.
func (s *Server) Placement(p lease.Partition) (*partition.Partition, bool) {
	t, ok := s.table(p.Table)
	if !ok {
		return nil, false
	}
	return t.get(p.ID)
}

// Copy implements runner.Partitions.
func (s *Server) Copy(key lease.Partition, placement point.PlacementID) (*partition.Partition, error) {
	t := s.tableOrNew(key.Table)
	p, ok := t.get(key.ID)
	if ok && p.Identity().Placement == placement {
		return p, nil
	}
	if ok {
		return nil, fault.Errorf(fault.Stale, "an older placement, %s, of partition %v is still here", p.Identity().Placement, key)
	}
	at, pl, err := s.placedOrJoining(t, key.ID)
	if err != nil {
		return nil, err
	}
	// A leader with an older map must not fill a placement that the newest map does not have: its files would lie here beside those of the one that it has.
	if pl.ID != placement {
		return nil, fault.Errorf(fault.Stale, "partition %v has placement %s here by the newest map, not %s", key, pl.ID, placement)
	}
	// Epoch 0: the placement has promised nothing. Its chain raises the epoch of the leader durably before it accepts a
	// frame.
	return s.create(t, at, pl, 0)
}

// placedOrJoining is placed, for a placement that may still be joining.
func (s *Server) placedOrJoining(t *table, id point.PartitionID) (*topology.Partition, topology.Placement, error) {
	at, pl, err := s.placed(t, id)
	if m, ok := s.deps.Maps.Get(t.name); err != nil && ok {
		if at, ok := m.ByID(id); ok {
			for _, j := range at.Joining {
				if j.Server == s.settings.Server {
					return at, j, nil
				}
			}
		}
	}
	return at, pl, err
}

// LeadCopies implements runner.Partitions. A placement that the map has no more accepts no rows of writers, but if the other placements in sync are lost it
// must fill those that the map has.
func (s *Server) LeadCopies(ctx context.Context, key lease.Partition, epoch point.Epoch) error {
	t := s.tableOrNew(key.Table)
	p, ok := t.get(key.ID)
	if !ok {
		return fault.Errorf(fault.Stale, "partition %v is not here", key)
	}
	m, ok := s.deps.Maps.Get(t.name)
	if !ok {
		return fault.Errorf(fault.Stale, "table %q is not known here", t.name)
	}
	at, ok := m.ByID(key.ID)
	if !ok {
		return fault.Errorf(fault.Stale, "partition %v does not exist by map %d", key, m.Seq)
	}
	s.rankAbove(ctx, t, p, at, epoch)
	return s.deps.Chains.Lead(ctx, key, p, epoch)
}
