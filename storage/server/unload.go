package server

import (
	"context"

	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/partition"
	"github.com/spillwaydb/spillway/storage/rows"
	"github.com/spillwaydb/spillway/storage/unload/runner"
)

// Unloads moves the rows of partitions to their heirs; *runner.Unloads does.
type Unloads interface {
	// Delete calls f, which deletes in a partition that unloads here, while none of its rows are on their way. Errors are Unavailable and Canceled, and those of f.
	Delete(ctx context.Context, p lease.Partition, f func() error) error
	// Of returns how far a partition is; false: its rows are not being moved here.
	Of(p lease.Partition) (runner.Progress, bool)
}

var _ runner.Partitions = (*Server)(nil)

// EndWrites implements runner.Partitions: when it returns, no row is accepted under an earlier epoch, and no change is under way. Errors are Stale, Canceled, and those of
// the store.
func (s *Server) EndWrites(ctx context.Context, key lease.Partition, epoch point.Epoch) error {
	p, ok := s.Placement(key)
	if !ok {
		return fault.Errorf(fault.Stale, "partition %v is not here", key)
	}
	if led, ok := s.leadership.MayAct(key.Table, key.ID); !ok || led != epoch {
		return s.notLed(key.Table, key.ID)
	}
	var err error
	if s.kept(key.Table, key.ID) {
		err = s.LeadCopies(ctx, key, epoch)
	} else {
		err = p.Lead(epoch)
	}
	if err != nil {
		return err
	}
	return s.tableOrNew(key.Table).gate(key.ID).wait(ctx)
}

// Bounds implements runner.Partitions.
func (s *Server) Bounds(key lease.Partition) (lo, hi point.Nanos, ok bool) {
	p, here := s.Placement(key)
	if !here {
		return 0, 0, false
	}
	return p.TimeBounds()
}

// unloadBatch is how many series are read at once: their rows of the times asked for are in memory together.
const unloadBatch = 64

// Rows implements runner.Partitions. Errors are Stale, Canceled, those of f and of a damaged partition.
func (s *Server) Rows(ctx context.Context, key lease.Partition, epoch point.Epoch, lo, hi point.Nanos, f runner.Take) error {
	if led, ok := s.leadership.MayAct(key.Table, key.ID); !ok || led != epoch {
		return s.notLed(key.Table, key.ID)
	}
	p, ok := s.Placement(key)
	if !ok {
		return fault.Errorf(fault.Stale, "partition %v is not here", key)
	}
	v, err := p.View()
	if err != nil {
		return err
	}
	if v == nil { // not without rows: they would count as moved
		return fault.Errorf(fault.Stale, "partition %v is no longer here", key)
	}
	defer v.Close()
	v.Watch(checkOf(ctx))
	v.Within(lo, hi)
	all, err := v.MatchDefined(nil)
	if err != nil {
		return err
	}
	for from := 0; from < len(all); from += unloadBatch {
		batch := all[from:min(from+unloadBatch, len(all))]
		if err := unloadSome(v, batch, lo, hi, func(i int, r *runner.Series) error {
			r.At, r.Of, r.Labels = from+i, len(all), batch[i].Labels
			return f(r)
		}); err != nil {
			return err
		}
	}
	return nil
}

// unloadSome reads some series, those with rows or exemplars.
func unloadSome(v *partition.View, batch []partition.Series, lo, hi point.Nanos, f func(int, *runner.Series) error) error {
	exemplars := map[int][]point.ExemplarRow{}
	err := v.Exemplars(batch, lo, hi, func(i int, ex []point.ExemplarRow) error {
		exemplars[i] = ex
		return nil
	})
	if err != nil {
		return err
	}
	err = v.ReadRanked(batch, lo, hi, func(i int, r rows.Run) error {
		one := &runner.Series{Run: r, Exemplars: exemplars[i]}
		delete(exemplars, i)
		return f(i, one)
	})
	if err != nil {
		return err
	}
	for i, ex := range exemplars {
		if err := f(i, &runner.Series{Exemplars: ex}); err != nil {
			return err
		}
	}
	return nil
}

// unloads reports whether, by the newest map here, others own the rows of a partition; heir whether one unloads into this.
func (s *Server) unloads(table string, id point.PartitionID) (unloads, heir bool) {
	m, ok := s.deps.Maps.Get(table)
	if !ok {
		return false, false
	}
	at, ok := m.ByID(id)
	if !ok {
		return false, false
	}
	return at.State == topology.Unload, m.Inherits(at)
}
