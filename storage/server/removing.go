package server

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/spillwaydb/spillway/storage/brick"
	"github.com/spillwaydb/spillway/storage/replica"
)

// The files of dropped partitions are removed here, piece by piece, at a rate that falls while fsyncs of the log last longer than before
// (replica.Rate).
//
//	RemoveSome ─▶ a piece of 16 MiB, a file, or a directory ─▶ pause: its bytes ÷ rate ─▶ RemoveSome ─▶ … ─▶ nothing is left: after a second
//	each 250 ms   bytes removed, fsyncs of the log ─▶ rate
//	the disk is short of room ─▶ no pause

const (
	// removeBytesPerSecond is the highest rate; the lowest is an eighth. Freeing blocks costs a disk far less than writing them, and a drop of
	// terabytes is to end within hours. Larger: the disk has more to discard at once.
	removeBytesPerSecond = 512 << 20
	// removeFileBytes is what removing a file costs at least, so that a million small ones are no burden either.
	removeFileBytes = 256 << 10
	// removeDirBytes is what removing a directory costs: an fsync on the disk that the log may lie on.
	removeDirBytes = 1 << 20
	removeLook     = 250 * time.Millisecond
	removePeriod   = time.Second
)

// removeDropped removes until ctx ends.
func (s *Server) removeDropped(ctx context.Context) error {
	pace := replica.NewRate(removeBytesPerSecond)
	removed := uint64(0)
	step := func() float64 {
		begun, took := s.deps.Brick.Fsyncs()
		return pace.Step(replica.Work{Copied: removed, Fsyncs: begun, Fsyncing: took})
	}
	bytesPerSecond := step()
	look := time.NewTicker(removeLook)
	defer look.Stop()
	next := time.NewTimer(rand.N(removePeriod))
	defer next.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-look.C:
			bytesPerSecond = step()
		case <-next.C:
			cost, pause := s.removeSome(bytesPerSecond)
			removed += uint64(cost)
			next.Reset(pause)
		}
	}
}

// removeSome removes a piece, and returns what that cost and how long to wait before the next.
func (s *Server) removeSome(bytesPerSecond float64) (cost int64, pause time.Duration) {
	r, err := s.deps.Brick.RemoveSome()
	if err != nil {
		s.metrics.failures.WithLabelValues("remove").Inc()
		s.deps.Log.Warn("the files of a dropped partition could not be removed; they are tried again in a minute", "error", err)
	}
	switch cost = removalCost(r); {
	case !r.More:
		return 0, removePeriod + rand.N(removePeriod/10)
	case r.Hurry:
		return cost, 0
	}
	return cost, time.Duration(float64(cost) / bytesPerSecond * float64(time.Second))
}

func removalCost(r brick.Removed) int64 {
	if r.Ended {
		return removeDirBytes
	}
	return max(r.Bytes, removeFileBytes)
}
