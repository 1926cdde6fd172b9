package runner

import (
	"slices"

	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/partition"
	"github.com/spillwaydb/spillway/storage/replica"
)

// A leader with a damaged file asks its followers, which have the same bytes. They offer it their segments, and it accepts the damaged ones.
//
//	leader   Broken ── SegmentDecline, slot 0 ─▶ ◀─ offers, oldest first ── exists, exists, accept ─▶ ◀─ pieces, commit ── Adopt: mended
//	follower           mend: a sender with the leader as its only member; it ends a while after the leader has asked last

// mendFor is for how many periods of BrokenEvery a follower goes on after its leader asked last.
const mendFor = 3

// sender is the sender of a partition's placement here, whether it leads or mends its leader.
func (c *Copier) sender(p lease.Partition) *sending {
	if s := c.senders[p]; s != nil {
		return s
	}
	return c.menders[p]
}

// mend begins to offer segments to a leader that asked for them, or goes on.
func (c *Copier) mend(p lease.Partition, id point.PlacementID, epoch point.Epoch, leader lease.Member) {
	copy, ok := c.deps.Chains.Copy(p, id)
	if !ok || !copy.Joined || copy.Epoch != epoch {
		return
	}
	s := c.menders[p]
	// Another epoch, or a placement that was removed and made again, needs a machine without the answers of before.
	if s == nil || s.copy.Epoch != epoch || s.copy.At != copy.At {
		if s != nil {
			s.end()
		}
		s = newSending(copy, c.settings.Machine)
		c.menders[p] = s
		c.deps.Log.Info("the leader has damaged segments; it is offered those of this copy", "partition", p.String(), "server", string(leader.Server))
	}
	s.until = c.deps.Clock() + mendFor*c.settings.BrokenEvery
	c.renewMender(s, []lease.Member{leader})
}

// lookAtMending ends the senders that no leader needs any more, and lets time go by for the others.
func (c *Copier) lookAtMending() {
	for p, s := range c.menders {
		if copy, ok := c.deps.Chains.Copy(p, s.copy.Self.Placement); !ok || !copy.Joined || copy.Epoch != s.copy.Epoch || copy.At != s.copy.At || c.deps.Clock() >= s.until {
			s.end()
			delete(c.menders, p)
			continue
		}
		c.renewMender(s, s.members)
	}
}

// renewMender is renew for a placement that follows: segments that are damaged here are not offered.
func (c *Copier) renewMender(s *sending, to []lease.Member) {
	if members := c.linked(to); !slices.Equal(members, s.members) {
		s.members = members
		c.step(s, replica.Members{All: members})
	}
	if st := s.copy.At.State(); st != s.state {
		s.state = st
		c.step(s, replica.Chain{Segments: wholeOf(s.copy.At, st)})
	}
	if at, ok := s.machine.Next(); ok && c.deps.Clock() >= at {
		c.step(s, replica.Tick{})
	}
}

// wholeOf returns the segments with files that are not known to be damaged.
func wholeOf(p *partition.Partition, st *partition.State) []replica.Segment {
	broken, _ := p.Broken()
	return slices.DeleteFunc(segmentsOf(st), func(g replica.Segment) bool { return slices.Contains(broken, g.ID) })
}
