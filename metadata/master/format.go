package master

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spillwaydb/spillway/metadata/registry"
	"github.com/spillwaydb/spillway/metadata/topology"
)

// Format writes steps for people, one aligned line each: kind, table, change and reason. Without steps it writes one line that
// says so.
func Format(steps []Step) string {
	if len(steps) == 0 {
		return "nothing to do\n"
	}
	var b strings.Builder
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, s := range steps {
		table := s.Table
		if table == "" {
			table = "-"
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", s.Kind, table, s.What, s.Why)
	}
	_ = t.Flush() // a Builder accepts everything
	return b.String()
}

// MoveByLoad is a move of a copy that a master began because of load, as people see it.
type MoveByLoad struct {
	registry.Move
	From topology.ServerID
	// For is the time since it began or, where Ended, since it was given up because the target did not get every row; by the wall clock, and 0 where ClockAhead.
	For   time.Duration
	Ended bool
	// ClockAhead: it began, or was given up, later than now, by the clock of the master of that time.
	ClockAhead bool
	// PassedOver is why a move that would make loads more even does not begin, in words; "": it has begun.
	PassedOver string
	// Rests is the time for which neither the partition nor the target has part in another move; 0 while this one is under way, and where ClockAhead: then only
	// the master knows, which counts from the moment when it first saw the note.
	Rests time.Duration
}

// PassedOver lists the moves by load that cannot begin because the registry row of the server that the copy would leave has no room for one more, each copy
// once. The field PassedOver of a move is that error, with advice. A partition of which another copy moves instead has none.
func PassedOver(s State, set Settings, rng *rand.Rand) (out []MoveByLoad) {
	for _, m := range plan(s, set, rng).passed {
		if !slices.ContainsFunc(out, func(x MoveByLoad) bool { return x.Table == m.Table && x.Placement == m.Placement }) {
			out = append(out, m)
		}
	}
	return out
}

// clockSlack is how far the clocks of a master and of the machine that runs the command may differ without being named.
const clockSlack = time.Minute

// MovesByLoad lists the moves by load that are under way, then those after which partitions and targets rest, as the rows of servers in a state have them.
func MovesByLoad(s *State, set Settings) (out []MoveByLoad) {
	set.SetDefaults()
	list := func(moves []registry.Move, from topology.ServerID, ended bool) {
		for _, m := range moves {
			age := time.Duration(s.Now - m.Note.When.UnixNano())
			x := MoveByLoad{Move: m, From: from, Ended: ended, For: max(age, 0), ClockAhead: age < -clockSlack}
			if ended && !x.ClockAhead {
				x.Rests = set.MovedFor - x.For
			}
			if isRelief(m) && (!ended || x.ClockAhead || x.Rests > 0) {
				out = append(out, x)
			}
		}
	}
	for _, srv := range s.Servers {
		list(srv.Moves, srv.ID, false)
	}
	for _, srv := range s.Servers {
		list(srv.Unfilled, srv.ID, true)
	}
	return out
}
