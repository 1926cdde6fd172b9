package server

import (
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/protocols/rank"
	"github.com/spillwaydb/spillway/storage/partition"
)

// timely refuses a stamp that is too far ahead of the servers' clocks: once accepted, it stays. The later of their median and our own clock counts, since a gateway that
// is refused sets its stamps back: those of rows that it stages then would be behind the stamps of rows that others staged before.
func (s *Server) timely(stamp point.Stamp) error {
	now := s.latest()
	if !rank.Ahead(stamp, now) {
		return nil
	}
	s.metrics.ahead.Inc()
	return peer.NewAhead(now)
}

// rankAbove makes a partition that is about to be led rank its rows above those of the partitions whose keys it now owns. For a
// partition on this server that is its highest rank. On other servers no accepted rank is further ahead than AheadMax of the latest time
// by their clocks: by ours that may be later, if our clock is behind theirs, or if most clocks were set back since.
func (s *Server) rankAbove(t *table, p *partition.Partition, at *topology.Partition) {
	m, ok := s.deps.Maps.Get(t.name)
	if !ok {
		return
	}
	for _, other := range m.Overlapping(at.TimeLo, at.TimeHi-1) {
		if other.ID == at.ID || !at.SharesRing(other) {
			continue
		}
		p.RankAbove(rank.At(s.latest() + int64(rank.AheadMax)))
		if q, here := t.get(other.ID); here {
			p.RankAbove(q.HighestRank())
		}
	}
}
