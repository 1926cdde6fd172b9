package main

import (
	"slices"
	"time"

	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/chain"
)

// parcel is a message from one placement to another. Those of a pair of servers that are sent at one moment arrive together, as on the one
// stream that servers have; each is lost, doubled or late with the others.
type parcel struct {
	id    lease.Partition
	from  lease.Member
	to    point.PlacementID
	store lease.StoreID // of the receiver: a link to another directory is another link
	msg   chain.Message
	frame *frame

	// About segments, of an epoch.
	segment any
	epoch   point.Epoch
	file    *segmentFile
}

// post sends a parcel. Messages that are sent within a moment go together.
func (s *server) post(to topology.ServerID, p parcel) {
	i := s.w.indexOf(to)
	if len(s.posted[i]) == 0 {
		s.after(100*time.Microsecond, "link", func() {
			all := s.posted[i]
			s.posted[i] = make([]parcel, 0, len(all)) // as many as the last time
			s.w.send(s.node, i, true, "chain", func() {
				s.w.nodes[i].do(func() { s.w.servers[i].receive(all) })
			})
		})
	}
	s.posted[i] = append(s.posted[i], p)
}

// receive passes received messages to the chains.
func (s *server) receive(all []parcel) {
	for _, p := range all {
		if p.store != s.disk.id {
			continue
		}
		if p.segment != nil {
			s.aboutSegments(p)
			continue
		}
		if x := s.reach(p); x != nil {
			x.receive(p)
		}
	}
}

func (x *link) receive(p parcel) {
	msg := p.msg
	if m, ok := msg.(chain.Pass); ok {
		if end, _ := x.m.End(); x.s.w.opt.broken == gapsTaken && end.Less(m.Serial) {
			m.Prev = end
		}
		msg = m
	}
	x.post(chainInput{in: chain.Received{From: p.from, Message: msg}, frame: p.frame})
}

// reach finds the chain that a parcel is for. One that begins an epoch makes the placement, if the map has it here.
func (s *server) reach(p parcel) *link {
	x := s.links[p.id]
	if x != nil && x.alive() && x.self.Placement == p.to {
		return x
	}
	r := s.disk.copies[p.id]
	if _, begins := p.msg.(chain.Begin); !begins || r != nil && r.placement != p.to || s.disk.fenced {
		return nil
	}
	if r == nil {
		m := s.on(p.id.Table).m
		if m == nil || s.disk.isFull(s.w) {
			return nil
		}
		at, ok := m.ByID(p.id.ID)
		if !ok {
			return nil
		}
		here := slices.ContainsFunc(append(slices.Clone(at.Placements), at.Joining...), func(pl topology.Placement) bool { return pl.Server == s.id && pl.ID == p.to })
		if !here {
			return nil
		}
		r = s.disk.raise(p.id, p.to, 0)
		s.w.mark(copyMade)
	}
	return s.link(p.id, r)
}
