package server

import (
	"context"
	"math"

	"github.com/spillwaydb/spillway/protocols/peer"
)

// Stats implements peer.Storage.
func (s *Server) Stats(_ context.Context, name string, topN int) (*peer.Stats, error) {
	t, ok := s.table(name)
	if !ok {
		return &peer.Stats{}, nil
	}
	st := t.index.Stats(topN)
	st.MinTime, st.MaxTime = math.MaxInt64, math.MinInt64
	for _, p := range t.all() {
		st.Partitions++
		st.HeadRows += uint64(p.HeadRows())
		if lo, hi, ok := p.TimeBounds(); ok {
			st.MinTime, st.MaxTime = min(st.MinTime, lo), max(st.MaxTime, hi)
		}
		for _, g := range p.Segments() {
			st.Segments++
			st.SegmentRows += g.Rows
			st.SegmentBytes += uint64(g.Size)
		}
	}
	if st.MinTime > st.MaxTime {
		st.MinTime, st.MaxTime = 0, 0
	}
	return &st, nil
}
