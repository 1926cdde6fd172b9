package server

import (
	"context"
	"sync"

	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/unload"
)

// sliceRefusals are the refused slices of partitions that unload into partitions led here. unload.Refusals has the rules.
type sliceRefusals struct {
	mu struct {
		sync.Mutex
		refusals unload.Refusals
		left     chan struct{} // closed when the next slice is inserted; nil: no goroutine waits for it
	}
}

// enter begins the insertion of a slice, which the caller leaves. Errors are Stale.
func (s *sliceRefusals) enter(table string, from *peer.Slice) (leave func(), err error) {
	p := lease.Partition{Table: table, ID: from.Partition}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.mu.refusals.Enter(p, from.Epoch) {
		return nil, fault.Errorf(fault.Stale, "a later leader of partition %v moves its rows, and not the one of epoch %d any more", p, from.Epoch)
	}
	return func() { s.leave(func(r *unload.Refusals) { r.Leave(p, from.Epoch) }) }, nil
}

// enterUnnamed begins the insertion of a slice that does not name its sender, which the caller leaves.
func (s *sliceRefusals) enterUnnamed(table string) (leave func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.refusals.EnterUnnamed(table)
	return func() { s.leave(func(r *unload.Refusals) { r.LeaveUnnamed(table) }) }
}

func (s *sliceRefusals) leave(how func(*unload.Refusals)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	how(&s.mu.refusals)
	if s.mu.left != nil {
		close(s.mu.left)
		s.mu.left = nil
	}
}

// ended returns nil if no slice of an epoch below the given one is being inserted, else a channel that is closed when the next slice is inserted.
func (s *sliceRefusals) ended(p lease.Partition, below point.Epoch) <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.refusals.Ended(p, below) {
		return nil
	}
	if s.mu.left == nil {
		s.mu.left = make(chan struct{})
	}
	return s.mu.left
}

func (s *sliceRefusals) end(p lease.Partition, below point.Epoch) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.refusals.End(p, below)
}

var _ peer.SliceEnder = (*Server)(nil)

// EndSlices implements peer.SliceEnder.
func (s *Server) EndSlices(ctx context.Context, table string, parent point.PartitionID, below point.Epoch) error {
	p := lease.Partition{Table: table, ID: parent}
	if !s.refused.end(p, below) {
		return fault.Errorf(fault.Unavailable, "server %s refuses slices of %d partitions, as many as it can remember", s.settings.Server, unload.RefusalsMax)
	}
	for {
		left := s.refused.ended(p, below)
		if left == nil {
			return nil
		}
		select {
		case <-left:
		case <-ctx.Done():
			return fault.Wrap(ctx.Err(), fault.Canceled, "slices of partition %v are still being inserted", p)
		}
	}
}

// underItsLease reports why rows of another partition may not be inserted under the epoch of a pass: their sender chose this server by another lease. A sender
// of an older build cannot name the lease and is believed: beside such builds no leader counts on refusals. Errors are Stale.
func underItsLease(table string, in *peer.Insert, pa pass) error {
	if of := in.Staging; of != nil && of.Do == peer.Inherit && of.From != nil && of.From.Under != pa.epoch {
		return fault.Errorf(fault.Stale, "partition %s/%d is led under epoch %d, and not under %d, as the sender of the slice of partition %d had read", table, in.Partition, pa.epoch, of.From.Under, of.From.Partition)
	}
	return nil
}

// enterUnnamed begins the insertion of rows that may be of a slice that does not name its sender, which the caller leaves. It comes first: such a slice is not refused, however long it
// waits for something else.
func (s *Server) enterUnnamed(table string, in *peer.Insert) (leave func()) {
	if of := in.Staging; of == nil || of.Do != peer.Inherit || !of.Unnamed {
		return func() {}
	}
	return s.refused.enterUnnamed(table)
}

// enterSlice begins the insertion of rows that may be of a slice which names its sender. It comes last before they are appended: a slice that waits for something else is refused afterwards. Errors are Stale.
func (s *Server) enterSlice(table string, in *peer.Insert) (leave func(), err error) {
	if in.Staging == nil || in.Staging.From == nil {
		return func() {}, nil
	}
	return s.refused.enter(table, in.Staging.From)
}
