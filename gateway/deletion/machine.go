package deletion

import (
	"slices"

	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
)

// Do is the kind of a step.
type Do uint8

// Steps.
const (
	// Find lists the servers on which rows of the table may be staged.
	Find Do = iota
	// Hold has Servers forward none of the staged rows that may match, and waits for those on their way. The outcome lists those that do; one of an older build does not, which
	// is no error.
	Hold
	// Partitions deletes in the partitions.
	Partitions
	// Staged deletes in the staged rows of Servers. Those in Held do so only if they held them from Hold on.
	Staged
	// StagedPart follows Partitions where it failed: it deletes in the staged rows of Servers at the times alone of which all partitions deleted. The outcome changes nothing.
	StagedPart
	// Release ends Hold at Servers, and never fails.
	Release
	// End ends the deletion with Err.
	End
)

// Step is the next thing to do. Its lists are the machine's, to be read alone.
type Step struct {
	Do      Do
	Servers []topology.ServerID
	Held    []topology.ServerID // of Staged and StagedPart
	Err     error
}

// roundsMax bounds the rounds in which rows are looked for that move from server to server.
const roundsMax = 5

// Machine is one deletion. One goroutine at a time; the zero Machine is ready.
type Machine struct {
	last    Do
	waits   bool // rows are staged
	deleted bool // in partitions
	all     []topology.ServerID
	held    []topology.ServerID
	asked   []topology.ServerID // in the round before
	rounds  int
	moving  bool // the last round had a new server
	err     error
}

// Begin returns the first step.
func (m *Machine) Begin() Step { return m.do(Find, nil) }

// Next returns what follows the last step: found are the servers that Find found or that hold, err why it failed.
func (m *Machine) Next(found []topology.ServerID, err error) Step {
	switch {
	case m.last == Release:
		return m.do(End, nil)
	case m.last == Hold:
		m.held = found
	}
	switch {
	case m.last == StagedPart:
		return m.end(m.err)
	case err != nil && m.last == Partitions && m.waits && !m.deleted:
		m.err = err
		return m.do(StagedPart, m.all)
	case err != nil:
		return m.end(err)
	}
	switch m.last {
	case Find:
		return m.found(found)
	case Hold:
		return m.do(Partitions, nil)
	case Partitions:
		if m.waits && !m.deleted {
			m.deleted = true
			return m.do(Find, nil)
		}
		return m.end(nil)
	}
	return m.round()
}

func (m *Machine) found(at []topology.ServerID) Step {
	switch {
	case !m.deleted && len(at) == 0:
		return m.do(Partitions, nil)
	case !m.deleted:
		m.waits, m.all = true, at
		return m.do(Hold, at)
	case len(at) == 0:
		return m.do(Partitions, nil)
	}
	m.rounds++
	m.moving = slices.ContainsFunc(at, func(id topology.ServerID) bool { return !slices.Contains(m.asked, id) })
	m.asked = at
	return m.do(Staged, at)
}

// round follows a deletion in staged rows.
func (m *Machine) round() Step {
	switch {
	case !m.moving:
		return m.do(Partitions, nil)
	case m.rounds == roundsMax:
		return m.end(fault.Errorf(fault.Unavailable, "rows that wait for the leaders of their partitions keep moving from server to server: some may be left, do it again"))
	}
	return m.do(Find, nil)
}

// end releases the holds, and then ends.
func (m *Machine) end(err error) Step {
	m.err = err
	if m.all != nil {
		return m.do(Release, m.all)
	}
	return m.do(End, nil)
}

func (m *Machine) do(what Do, at []topology.ServerID) Step {
	m.last = what
	s := Step{Do: what, Servers: at}
	switch what {
	case Staged, StagedPart:
		s.Held = m.held
	case End:
		s.Err = m.err
	}
	return s
}
