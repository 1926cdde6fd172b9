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

// rankAbove makes a partition that is about to be led rank its rows above those of the partitions whose keys it now owns. For one that is led here, and takes no rows
// any more, that is its highest rank. On other servers no accepted rank is further ahead than AheadMax of the latest time
// by their clocks: by ours that may be later, if our clock is behind theirs, or if most clocks were set back since.
//
// A rank that is ahead has a price. Rows that are staged keep the rank of their gateway, which is of now: those that overwrite rows of a second ago that ranked a second ahead would be lost.
func (s *Server) rankAbove(t *table, p *partition.Partition, at *topology.Partition) {
	m, ok := s.deps.Maps.Get(t.name)
	if !ok {
		return
	}
	if at.State == topology.Unload { // it ranks no row any more, and its heirs, which rank above it, would be ahead as well
		return
	}
	for _, other := range m.Overlapping(at.TimeLo, at.TimeHi-1) {
		if other.ID == at.ID || !at.SharesRing(other) {
			continue
		}
		q, here := t.get(other.ID)
		known := here && s.hasAllRows(t, q, other) // before its rank is read: a row that was under way would have a higher one
		if here {
			p.RankAbove(q.HighestRank())
		}
		if !known {
			p.RankAbove(rank.At(s.latest() + int64(rank.AheadMax)))
		}
	}
}

// hasAllRows reports whether a partition that is here has all rows that were ever accepted for it, and gets no more: it unloads, is led here, and no row is under way.
func (s *Server) hasAllRows(t *table, q *partition.Partition, at *topology.Partition) bool {
	if at.State != topology.Unload || !t.gate(at.ID).quiet() {
		return false
	}
	epoch, leads := s.leadership.MayAct(t.name, at.ID)
	return leads && q.Leads(epoch)
}
