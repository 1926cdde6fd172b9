package server

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
)

// copyMetrics count the partitions that reads named here and that another server leads. Label answer: sure, unsure (it may lack rows,
// and the reader accepts that), refused (it may lack rows).
type copyMetrics struct{ sure, unsure, refused prometheus.Counter }

func newCopyMetrics() (m copyMetrics, all prometheus.Collector) {
	v := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "spillway_server_copy_reads_total", Help: "Partitions that reads named and that are copies here, led elsewhere: answered as sure, answered although rows may be missing (unsure), or refused for that.",
	}, []string{"answer"})
	return copyMetrics{v.WithLabelValues("sure"), v.WithLabelValues("unsure"), v.WithLabelValues("refused")}, v
}

// wake makes the quiet copies of a read sure, all at once, where the read needs sure ones.
func (s *Server) wake(ctx context.Context, q *peer.Select) {
	if s.deps.Chains == nil || q.Copies == peer.UnsureCopies {
		return
	}
	var quiet []lease.Partition
	for _, id := range q.Partitions {
		if _, leads := s.leadership.MayAct(q.Table, id); leads {
			continue
		}
		if _, alone := s.leadership.Alone(q.Table, id); alone || q.Copies == peer.SureCopies {
			quiet = append(quiet, lease.Partition{Table: q.Table, ID: id})
		}
	}
	if len(quiet) > 0 {
		s.deps.Chains.Wake(ctx, quiet)
	}
}

// answersAsCopy decides whether a placement that does not lead answers a read. It answers if it surely has every acknowledged row at this
// moment, before a row is read; the reader may also accept one that may lack the newest. Errors are Stale.
//
// The leader alone knows when other partitions begin to own the rows of one that is being split. So a copy does not answer for it.
func (s *Server) answersAsCopy(q *peer.Select, id point.PartitionID, m *topology.Map) error {
	if q.Copies == peer.LeaderOnly || m == nil || !s.kept(q.Table, id) {
		return s.notLed(q.Table, id)
	}
	at, placed := m.ByID(id)
	pl, here := topology.Placement{}, false
	if placed {
		pl, here = at.On(s.settings.Server)
	}
	key := lease.Partition{Table: q.Table, ID: id}
	if p, ok := s.Placement(key); !here || !ok || p.Identity().Placement != pl.ID {
		return fault.Errorf(fault.Stale, "server %s has no copy of partition %s/%d (map %d here)", s.settings.Server, q.Table, id, m.Seq)
	}
	if q.MapSeq > 0 && (at.Split != nil || !at.Accepts()) {
		return fault.Errorf(fault.Stale, "partition %s/%d is being split: server %s, which has a copy of it, leaves the answer to its leader", q.Table, id, s.settings.Server)
	}
	switch {
	case s.deps.Chains.Sure(key):
		s.metrics.copies.sure.Inc()
	case q.Copies == peer.UnsureCopies && s.deps.Chains.Once(key):
		s.metrics.copies.unsure.Inc()
	default:
		s.metrics.copies.refused.Inc()
		return peer.Unsure(fault.Errorf(fault.Stale, "the copy of partition %s/%d on server %s may lack rows: its leader has not answered it for a second", q.Table, id, s.settings.Server))
	}
	return nil
}
