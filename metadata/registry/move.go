package registry

import (
	"slices"

	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/point"
)

// Move is one placement that a person, or the master for load, has leave a server. It ends when the map has the placement no more: a later placement of the partition on the same
// server is another one.
type Move struct {
	Table     string            `json:"table"`
	Partition point.PartitionID `json:"partition"`
	Placement point.PlacementID `json:"placement"`
	// To replaces it, while it is live and not drained; else the master chooses another.
	To   topology.ServerID `json:"to"`
	Note lease.Note        `json:"note"`
}

// MovesMax bounds the moves away from one server that have not ended: a server that is to have nothing is drained.
const MovesMax = 64

// Add adds a move, in the place of one of the same placement, after it has left out those that ended; false: there are MovesMax already.
func (s *Server) Add(m Move, stands func(Move) bool) bool {
	s.Moves = slices.DeleteFunc(slices.Clone(s.Moves), func(old Move) bool {
		return !stands(old) || old.Table == m.Table && old.Placement == m.Placement
	})
	if len(s.Moves) >= MovesMax {
		return false
	}
	s.Moves = append(s.Moves, m)
	return true
}

// MoveOf returns the move of a placement on the server.
func (s *Server) MoveOf(table string, id point.PlacementID) (Move, bool) {
	i := slices.IndexFunc(s.Moves, func(m Move) bool { return m.Table == table && m.Placement == id })
	if i < 0 {
		return Move{}, false
	}
	return s.Moves[i], true
}
