package runner

import (
	"slices"

	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/replica"
	"github.com/spillwaydb/spillway/storage/segment"
)

// offered handles an offer of a leader.
func (c *Copier) offered(p lease.Partition, from lease.Member, to point.PlacementID, epoch point.Epoch, m *peer.SegmentOffer) {
	if copy, ok := c.deps.Chains.Copy(p, to); (!ok || !copy.Leads) && epoch >= c.leaders[keyOf(p, to)].epoch { // a leader before may still offer
		c.leaders[keyOf(p, to)] = leader{from, epoch}
	}
	g := replica.Segment{ID: m.ID, Base: m.Base, Major: m.Major, Size: m.Size, Checksum: m.Checksum, Ends: m.Ends}
	c.receive(replica.Offered{From: from, To: keyOf(p, to), Epoch: epoch, Slot: m.Slot, Segment: g, Has: c.holding(p, to, epoch), Free: c.free()})
}

// holding is the state of a placement, for an offer of an epoch. A placement that is not here yet is made when its leader begins the epoch.
// Later has the receiver wait instead of decline: a chain that begins has its first offers before its placement has
// joined.
func (c *Copier) holding(p lease.Partition, id point.PlacementID, epoch point.Epoch) replica.Holding {
	copy, ok := c.deps.Chains.Copy(p, id)
	if !ok {
		return replica.Holding{Later: true}
	}
	st := copy.At.State()
	broken, mendable := copy.At.Broken()
	h := replica.Holding{Epoch: copy.Epoch, Ends: st.Ends, Leads: copy.Leads, Broken: broken}
	h.Later = !copy.Joined && !copy.Leads || copy.Epoch != epoch || !mendable
	for i := range st.Segments {
		h.Chain = append(h.Chain, st.Segments[i].ID)
	}
	h.Chain = append(h.Chain, copy.At.Ahead()...)
	return h
}

// receive gives the receiver an input, and performs its effects.
func (c *Copier) receive(in replica.ReceiverInput) {
	for _, e := range c.receiver.Step(c.deps.Clock(), in, nil) {
		switch e := e.(type) {
		case replica.Accept:
			c.accept(e)
		case replica.Decline:
			c.reply(e.To, e.At, e.Epoch, &peer.SegmentDecline{Slot: e.Slot, Reason: peer.DeclineReason(e.Reason), Ends: e.Ends})
		case replica.Ack:
			c.reply(e.To, e.At, e.Epoch, &peer.SegmentAck{Slot: e.Slot, ID: e.ID})
		case replica.Adopt:
			c.adopt(e)
		case replica.Discard:
			c.discard(fileOf{e.At, e.ID})
		}
	}
	c.metrics.unfinished.Set(float64(len(c.files)))
	var all []lease.Partition
	for _, key := range c.receiver.NoRoom() {
		all = append(all, partitionOf(key))
	}
	c.noRoom.Store(&all)
}

// reply answers an offer under the epoch of the offer.
func (c *Copier) reply(to lease.Member, at replica.Key, epoch point.Epoch, m peer.LinkMessage) {
	c.send(to, &peer.Route{Table: at.Table, Partition: at.Partition, From: at.Placement, To: to.Placement, Epoch: epoch}, m)
}

// accept opens the unfinished file, after an earlier transfer of the same segment has ended.
// Both would write the same path: the second begins only when the first has closed it, and removed it if it was discarded.
func (c *Copier) accept(e replica.Accept) {
	f := newIncoming(c, e)
	id := fileOf{e.At, e.Segment.ID}
	before := c.files[id]
	if before != nil {
		before.stop()
		c.release(before)
	}
	c.files[id] = f
	removed := c.removing[id]
	c.mu.Lock()
	c.mu.incoming[f.slot] = f
	c.mu.Unlock()
	c.work.Go(func() {
		if before != nil {
			<-before.done
		}
		if removed != nil {
			<-removed
		}
		f.run()
	})
}

// release ends the arrival of pieces.
func (c *Copier) release(f *incoming) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.incoming[f.slot] == f {
		delete(c.mu.incoming, f.slot)
	}
}

// discard removes an unfinished file.
func (c *Copier) discard(id fileOf) {
	f := c.files[id]
	if f == nil {
		return
	}
	delete(c.files, id)
	f.stop()
	c.release(f)
	removed := make(chan struct{})
	c.removing[id] = removed
	c.work.Go(func() {
		<-f.done
		f.remove()
		close(removed)
		c.post(func() {
			if c.removing[id] == removed {
				delete(c.removing, id)
			}
		})
	})
}

// adopt verifies a finished file and has its placement adopt it.
// The steps, and a crash between them: verified against size and checksum of the offer (crash: the file is removed by
// the start) ─▶ renamed and entered in the catalogue by Partition.AdoptVerified, in an order of its own ─▶ Ack (crash
// before it: the sender offers again, and the answer is that it exists).
func (c *Copier) adopt(e replica.Adopt) {
	f := c.files[fileOf{e.At, e.Segment.ID}]
	if f == nil {
		fault.Bug("a segment without a file is adopted: %v", e.Segment.ID)
	}
	c.release(f)
	c.work.Go(func() {
		<-f.done
		err := c.adopted(f, e)
		if err != nil {
			c.deps.Log.Warn("a segment of another copy is not taken", "table", e.At.Table, "partition", e.At.Partition, "segment", e.Segment.ID.String(), "error", err)
		}
		c.post(func() { c.answerAdoption(e, err) })
	})
}

func (c *Copier) adopted(f *incoming, e replica.Adopt) error {
	p := partitionOf(e.At)
	copy, ok := c.deps.Chains.Copy(p, e.At.Placement)
	if !ok {
		return fault.Errorf(fault.Stale, "partition %v is no longer here", p)
	}
	info := segment.Info{Size: int64(e.Segment.Size), Checksum: e.Segment.Checksum}
	info.ID = e.Segment.ID
	info, err := copy.At.Verified(info, f.path)
	if err != nil {
		return err
	}
	broken, _ := copy.At.Broken()
	err = c.deps.Chains.Adopt(c.ctx, p, e.At.Placement, e.Epoch, info, f.path)
	if err == nil && slices.Contains(broken, info.ID) {
		c.metrics.mended.Inc()
	}
	return err
}

// The file is forgotten only after the machine has its answer: a Discard that the answer brings must find the file.
// After a success the path is that of the segment, and no file of this name is left.
func (c *Copier) answerAdoption(e replica.Adopt, err error) {
	h := c.holding(partitionOf(e.At), e.At.Placement, e.Epoch)
	if err == nil {
		c.metrics.adopted.Inc()
	}
	c.receive(replica.Adopted{To: e.At, ID: e.Segment.ID, Refused: reasonOf(err, !h.Later), Ends: h.Ends})
	if err == nil {
		delete(c.files, fileOf{e.At, e.Segment.ID})
		c.metrics.unfinished.Set(float64(len(c.files)))
	}
}

// leader is the sender of a placement's newest offer.
type leader struct {
	member lease.Member
	epoch  point.Epoch
}

// lookAtBroken asks leaders for the segments that are damaged here, and followers for those of placements that lead: an answer to no offer
// makes them offer all again.
func (c *Copier) lookAtBroken() {
	now := c.deps.Clock()
	if now-c.looked < c.settings.BrokenEvery {
		return
	}
	c.looked = now
	n := 0
	for key, l := range c.leaders {
		copy, ok := c.deps.Chains.Copy(partitionOf(key), key.Placement)
		if !ok {
			delete(c.leaders, key)
			continue
		}
		if !copy.Leads {
			c.lookAtDoubted(copy)
		}
		if broken, mendable := copy.At.Broken(); len(broken) > 0 && !copy.Leads {
			if n += len(broken); mendable && copy.Joined && copy.Epoch == l.epoch {
				c.reply(l.member, key, l.epoch, &peer.SegmentDecline{Reason: peer.DeclineOutOfOrder})
			}
		}
	}
	for p, s := range c.senders {
		broken, mendable := s.copy.At.Broken()
		if n += len(broken); len(broken) == 0 || !mendable {
			continue
		}
		for _, m := range s.members {
			c.reply(m, keyOf(p, s.copy.Self.Placement), s.copy.Epoch, &peer.SegmentDecline{Reason: peer.DeclineInvalid})
		}
	}
	c.metrics.broken.Set(float64(n))
}

// lookAtFiles lets time go by for unfinished files, and discards those of placements that are gone.
func (c *Copier) lookAtFiles() {
	gone := map[replica.Key]bool{}
	for id := range c.files {
		if _, ok := c.deps.Chains.Copy(partitionOf(id.at), id.at.Placement); !ok {
			gone[id.at] = true
		}
	}
	for _, key := range c.receiver.NoRoom() {
		if _, ok := c.deps.Chains.Copy(partitionOf(key), key.Placement); !ok {
			gone[key] = true
		}
	}
	for key := range gone {
		c.receive(replica.DroppedHere{Key: key})
	}
	if at, ok := c.receiver.Next(); ok && c.deps.Clock() >= at {
		c.receive(replica.Tick{})
	}
}
