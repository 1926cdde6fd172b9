package server

import (
	"slices"

	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/storage/partition"
)

// Unmapped lists the placements that are held here and that no map places anywhere. Their rows are read; rows for their time are refused,
// because a newer placement of the same partition would be created beside them. A process that runs alone has none, unless its maps were
// lost or are older than its rows.
func (s *Server) Unmapped() (out []partition.Identity) {
	for _, t := range s.tables() {
		m, ok := s.deps.Maps.Get(t.name)
		for _, p := range t.all() {
			id := p.Identity()
			if !ok || !placed(m, id) {
				out = append(out, id)
			}
		}
	}
	return out
}

func placed(m *topology.Map, id partition.Identity) bool {
	p, ok := m.ByID(id.Partition)
	return ok && slices.ContainsFunc(p.Placements, func(pl topology.Placement) bool { return pl.ID == id.Placement })
}
