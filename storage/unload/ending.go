package unload

import (
	"time"

	"github.com/spillwaydb/spillway/metadata/topology"
)

// ending is the end of the slices of earlier leaders, after a takeover.
//
//	Begin ─▶ FindLeaders ─▶ Leaders ─▶ EndSlices to each ─▶ Answered by all ─▶ deletions may begin
//	              ▲                        │ one did not, or the leaders are not known
//	              └──── after a pause ◀────┘
//
// A slice names its partition, the epoch of its sender, and the epoch of the heir's leader by a lease row that the sender had read before it found its own lease
// good. A leader accepts it under that epoch alone. So an earlier leader's slice names a lease that was acquired before this leader's own. By lease rows that are as
// new as its own, that lease is either still the heir's, and its holder is asked; or another has replaced it, and every process refuses the slice: the restart of a
// server, a new copy and a new leader need no care, as each has to acquire a lease, and with it a higher epoch.
//
// Slices under this leader's own epoch cannot be refused. Where the same process sent some before its lease lapsed (Begin.Again), no server is asked.
//
// Where not all answer, deletions wait for SendWithin, as slices are sent no longer than that.
type ending struct {
	id      uint64
	on      bool
	finding bool
	findAt  time.Time
	asked   map[topology.ServerID]bool // true: it has answered, false: it is being asked
}

// endSlices looks for the leaders, unless earlier slices are over by their time.
func (m *Machine) endSlices(now time.Time) {
	e := &m.ending
	e.on = e.on && now.Before(m.quiet)
	if e.on && !e.finding && !now.Before(e.findAt) {
		e.finding = true
		m.do(FindLeaders{e.id})
	}
}

// leaders asks those that have not answered. They may answer before or after they were found to lead: they have refused earlier slices since.
func (m *Machine) leaders(now time.Time, in Leaders) {
	e := &m.ending
	if !e.on || in.ID != e.id {
		return
	}
	e.finding, e.findAt = false, now.Add(m.set.PauseMin)
	over := in.Known
	for _, s := range in.Servers {
		answered, asked := e.asked[s]
		over = over && answered
		if in.Known && !asked {
			e.asked[s] = false
			m.do(EndSlices{e.id, s})
		}
	}
	if over {
		e.on, m.quiet = false, now
	}
}

func (m *Machine) answered(now time.Time, in Answered) {
	e := &m.ending
	switch {
	case !e.on || in.ID != e.id:
	case in.OK:
		e.asked[in.Server], e.findAt = true, now
	default:
		delete(e.asked, in.Server)
	}
}
