package registry

import (
	"slices"
	"time"

	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
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

// moveSpare is how much of RowMax moves leave free, besides the longest list of staged tables: what the server itself and a drain write must fit beside them.
const moveSpare = 8 << 10

// Add adds a move, in the place of one of the same placement, after it has left out those that ended. Errors are Throttled (there are MovesMax already) and TooLarge
// (the row would be too long, and longer than it is); then the server has the moves that it had.
func (s *Server) Add(m Move, stands func(Move) bool) error {
	next := *s
	next.Moves = slices.DeleteFunc(slices.Clone(s.Moves), func(old Move) bool {
		return !stands(old) || old.Table == m.Table && old.Placement == m.Placement
	})
	if len(next.Moves) >= MovesMax {
		return fault.Errorf(fault.Throttled, "%d partitions are being moved away from %s, and more at a time are not taken: wait, or use `spillway server drain %s`", len(next.Moves), s.ID, s.ID)
	}
	next.Moves, next.Staging = append(next.Moves, m), ""
	before := *s
	before.Staging = ""
	if n, most := len(next.Encode()), RowMax-stagingBytesMax-moveSpare; n > most && n > len(before.Encode()) {
		return fault.Errorf(fault.TooLarge, "with this move the row of server %s would have %d bytes beside its staged tables, and at most %d are taken, with the reasons of all moves: wait until some have ended, or give shorter reasons", s.ID, n, most)
	}
	s.Moves = next.Moves
	return nil
}

// unfilledMax bounds the moves that are remembered as unfilled. One move for load is under way in a cluster at a time, and lasts half an hour before it ends so.
const unfilledMax = 4

// AddUnfilled adds a move to those that ended unfilled, in the place of one with the same target, and leaves out those that were noted before a time.
func (s *Server) AddUnfilled(m Move, before time.Time) {
	s.Unfilled = slices.DeleteFunc(slices.Clone(s.Unfilled), func(old Move) bool { return old.To == m.To || old.Note.When.Before(before) })
	s.Unfilled = append(s.Unfilled[max(0, len(s.Unfilled)-unfilledMax+1):], m)
	if len(s.Encode()) > RowMax {
		s.Unfilled = nil
	}
}

// MoveOf returns the move of a placement on the server.
func (s *Server) MoveOf(table string, id point.PlacementID) (Move, bool) {
	i := slices.IndexFunc(s.Moves, func(m Move) bool { return m.Table == table && m.Placement == id })
	if i < 0 {
		return Move{}, false
	}
	return s.Moves[i], true
}
