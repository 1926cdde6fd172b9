package registry

import (
	"slices"

	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/point"
)

// Move is one placement that a person has leave a server. It ends when the map has the placement no more: a later placement of the partition on the same
// server is another one.
type Move struct {
	Table     string            `json:"table"`
	Partition point.PartitionID `json:"partition"`
	Placement point.PlacementID `json:"placement"`
	// To takes its place, while it lives and is not drained; else the master chooses another.
	To   topology.ServerID `json:"to"`
	Note lease.Note        `json:"note"`
}

// MovesMax bounds the moves away from one server that have not ended: a server that is to have nothing is drained.
const MovesMax = 64

// MoveOf returns the move of a placement on the server.
func (s *Server) MoveOf(table string, id point.PlacementID) (Move, bool) {
	i := slices.IndexFunc(s.Moves, func(m Move) bool { return m.Table == table && m.Placement == id })
	if i < 0 {
		return Move{}, false
	}
	return s.Moves[i], true
}
