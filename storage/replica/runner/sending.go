package runner

import (
	"context"
	"io"
	"slices"
	"sync/atomic"
	"time"

	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
	chains "github.com/spillwaydb/spillway/storage/chain/runner"
	"github.com/spillwaydb/spillway/storage/partition"
	"github.com/spillwaydb/spillway/storage/replica"
)

// sending is the leader's part of a partition and epoch; or a follower's, for a leader with damaged files. Owned by the loop.
type sending struct {
	copy    chains.Copy // as it was when the epoch began
	machine *replica.Sender
	// A State is never changed: another pointer means that there may be other segments, and an equal one that there are
	// none.
	state   *partition.State // whose segments the machine has
	members []lease.Member
	moving  map[uint64]*transit    // transfers by slot
	begun   map[lease.Member]begun // of members that are behind
	making  bool                   // a flush or compaction that the machine requested is under way
	until   replica.Time           // of a follower's

	// Of a leader's.
	comparer *replica.Comparer
	last     point.Serial
	rests    replica.Time // since when it is the last
}

// transit is the transfer of a segment.
type transit struct {
	stop context.CancelFunc
	// Written by the goroutine that sends, read by the loop for Transfers.
	at atomic.Uint64 // bytes of the segment that are sent
}

func newSending(copy chains.Copy, set replica.Settings) *sending {
	return &sending{copy: copy, machine: replica.NewSender(set), moving: map[uint64]*transit{}, begun: map[lease.Member]begun{}}
}

// lookAtLeading begins and ends the senders of epochs, and gives them the segments and members that changed.
// It polls (lookEvery), since a flush, a new epoch and a new link are seen in different places: a new segment leaves at
// most a quarter of a second later.
func (c *Copier) lookAtLeading() {
	behind := 0
	transfers := map[lease.Partition][]peer.Transfer{}
	led := map[lease.Partition]bool{}
	for _, copy := range c.deps.Chains.Leading() {
		led[copy.Partition] = true
		s := c.senders[copy.Partition]
		if s != nil && (s.copy.Epoch != copy.Epoch || s.copy.At != copy.At) {
			s.end()
			s = nil
		}
		if s == nil {
			s = newSending(copy, c.settings.Machine)
			s.comparer = replica.NewComparer(c.deps.Clock()+c.settings.Compare.CompareAgain, c.settings.Compare)
			c.senders[copy.Partition] = s
		}
		c.renew(s, copy.Others)
		c.lookAtDoubted(copy)
		if all := s.transfers(c.deps.Clock(), time.Now()); len(all) > 0 {
			behind += len(all)
			transfers[copy.Partition] = all
		}
	}
	for key, s := range c.senders {
		if !led[key] {
			s.end()
			delete(c.senders, key)
		}
	}
	c.transfers.Store(&transfers)
	c.metrics.behind.Set(float64(behind))
}

// begun is when a member was first seen behind, and how many bytes it had then.
type begun struct {
	at   replica.Time
	wall point.Nanos
	had  uint64
}

// transfers returns how far the members are that lack segments.
func (s *sending) transfers(now replica.Time, wall time.Time) (all []peer.Transfer) {
	was := s.begun
	s.begun = map[lease.Member]begun{}
	for _, b := range s.machine.Behind() {
		x := peer.Transfer{To: string(b.Member.Server), Done: b.Done, Total: b.Total}
		if t := s.moving[b.Slot]; t != nil {
			x.Done += t.at.Load()
		}
		from, ok := was[b.Member]
		if !ok || x.Done < from.had { // a compaction made other segments: it begins again
			from = begun{at: now, wall: wall.UnixNano(), had: x.Done}
		}
		s.begun[b.Member] = from
		x.Since = from.wall
		if took := (now - from.at).Seconds(); took > 0 {
			x.BytesPerSecond = uint64(float64(x.Done-from.had) / took)
		}
		all = append(all, x)
	}
	return all
}

// end stops all transfers of an epoch that is over.
// Their goroutines report to a sending that is in no map by then, which sent ignores.
func (s *sending) end() {
	for _, t := range s.moving {
		t.stop()
	}
}

func (c *Copier) renew(s *sending, others []lease.Member) {
	if members := c.linked(others); !slices.Equal(members, s.members) {
		s.members = members
		c.step(s, replica.Members{All: members})
	}
	if st := s.copy.At.Offered(); st != s.state && s.copy.At.Damaged() == nil {
		s.state = st
		c.step(s, replica.Chain{Segments: segmentsOf(st)})
	}
	if at, ok := s.machine.Next(); ok && c.deps.Clock() >= at {
		c.step(s, replica.Tick{})
	}
}

// linked returns the members that can be reached now: one that comes back is asked again which segments it has.
func (c *Copier) linked(others []lease.Member) (members []lease.Member) {
	for _, m := range others {
		if l, ok := c.links[string(m.Server)]; ok && chains.StoreOf(l.Peer().Store) == m.Store {
			members = append(members, m)
		}
	}
	return members
}

// segmentsOf returns the chain of segments, each with the ends of all up to it. It ends before a segment without a checksum, which an
// early version wrote: the next compaction gives it one.
func segmentsOf(st *partition.State) (list []replica.Segment) {
	for i := range st.Segments {
		g := &st.Segments[i]
		if g.Checksum == 0 {
			break
		}
		list = append(list, replica.Segment{ID: g.ID, Base: g.Base, Major: g.Major, Size: uint64(g.Size), Checksum: g.Checksum, Ends: st.EndsUpTo(i)})
	}
	return list
}

// step gives a sender an input, and performs its effects.
func (c *Copier) step(s *sending, in replica.SenderInput) {
	for _, e := range s.machine.Step(c.deps.Clock(), in, nil) {
		c.perform(s, e)
	}
}

func (c *Copier) perform(s *sending, e replica.SenderEffect) {
	p, at := s.copy.Partition, s.copy.At
	switch e := e.(type) {
	case replica.Offer:
		c.metrics.offers.Inc()
		g := e.Segment
		c.send(e.To, s.route(e.To), &peer.SegmentOffer{Slot: e.Slot, ID: g.ID, Base: g.Base, Major: g.Major, Size: g.Size, Checksum: g.Checksum, Ends: g.Ends})
	case replica.Transit:
		ctx, stop := context.WithCancel(c.ctx)
		t := &transit{stop: stop}
		t.at.Store(e.Offset)
		s.moving[e.Slot] = t
		l := c.links[string(e.To.Server)]
		c.work.Go(func() {
			ok := c.transit(ctx, s, l, e, t)
			c.post(func() { c.sent(s, e, ok) })
		})
	case replica.Stop:
		if t := s.moving[e.Slot]; t != nil {
			t.stop()
		}
	case replica.Flush:
		c.make(s, func() error { return at.Flush(c.ctx, partition.ByRequest) })
	case replica.Compact:
		c.make(s, func() error { return at.Compact(c.ctx, partition.ByRequest) })
	case replica.Suspect:
		c.metrics.suspects.Inc()
		c.deps.Log.Warn("a segment arrived damaged again and again: its own bytes are verified", "partition", p.String(), "segment", e.ID.String())
		c.work.Go(func() { c.suspect(p, at, e.ID) })
	case replica.Level:
		c.deps.Log.Debug("a placement has all segments", "partition", p.String(), "server", string(e.Member.Server), "newest", e.ID.String())
	case replica.Overtaken:
		c.deps.Log.Debug("a placement follows a higher epoch", "partition", p.String(), "server", string(e.By.Server), "epoch", s.copy.Epoch)
	}
}

func (s *sending) route(to lease.Member) *peer.Route {
	p := s.copy.Partition
	return &peer.Route{Table: p.Table, Partition: p.ID, From: s.copy.Self.Placement, To: to.Placement, Epoch: s.copy.Epoch}
}

// make runs a flush or compaction that the machine requested, one at a time.
// A request that comes meanwhile is dropped: the machine makes it again as long as a member needs it.
func (c *Copier) make(s *sending, f func() error) {
	if s.making || !s.copy.Leads { // a leader has no use for segments that its follower makes
		return
	}
	s.making = true
	c.work.Go(func() {
		if err := f(); err != nil && c.ctx.Err() == nil {
			c.deps.Log.Warn("no segment could be made that a placement needs; it is tried again", "partition", s.copy.Partition.String(), "error", err)
		}
		c.post(func() { s.making = false })
	})
}

// lookAtDoubted checks the segments in which a read met damage.
func (c *Copier) lookAtDoubted(x chains.Copy) {
	for _, id := range x.At.Doubted() {
		c.metrics.suspects.Inc()
		c.work.Go(func() { c.suspect(x.Partition, x.At, id) })
	}
}

// suspect reads a segment of a placement here. One that is damaged makes its partition unreadable here, until another copy has sent it.
func (c *Copier) suspect(p lease.Partition, at *partition.Partition, id point.SegmentID) {
	found, err := at.CheckSegment(c.ctx, id, func(bytes int) error {
		c.copied.Add(uint64(bytes))
		return c.sends.WaitN(c.ctx, min(bytes, pieceBytes))
	})
	switch {
	case found == partition.FoundDamaged:
		c.deps.Log.Error("a segment is damaged here: another copy is asked for it", "partition", p.String(), "segment", id.String())
	case err != nil && c.ctx.Err() == nil:
		c.deps.Log.Warn("a segment could not be verified", "partition", p.String(), "segment", id.String(), "error", err)
	}
}

// sent reports the end of a transfer to its sender, if its epoch goes on.
func (c *Copier) sent(s *sending, e replica.Transit, ok bool) {
	if t := s.moving[e.Slot]; t != nil {
		t.stop()
		delete(s.moving, e.Slot)
	}
	if c.sender(s.copy.Partition) == s {
		c.step(s, replica.Sent{To: e.To, Slot: e.Slot, OK: ok})
	}
}

// transit sends the bytes of a segment, then the commit.
func (c *Copier) transit(ctx context.Context, s *sending, l peer.Link, e replica.Transit, t *transit) bool {
	err := fault.Errorf(fault.Unavailable, "there is no link to %s", e.To.Server)
	if l != nil {
		err = c.sendFile(ctx, s, l, e, t)
	}
	if err != nil && ctx.Err() == nil {
		c.deps.Log.Info("a segment is not sent whole; it is tried again", "partition", s.copy.Partition.String(), "segment", e.ID.String(), "server", string(e.To.Server), "error", err)
	}
	return err == nil
}

// The file is open for the whole transfer: a compaction may remove its name meanwhile, and the bytes stay. The rate is
// paid before each piece, and then Piece waits for the link's window, which carries frames of chains first.
func (c *Copier) sendFile(ctx context.Context, s *sending, l peer.Link, e replica.Transit, t *transit) error {
	f, err := s.copy.At.OpenSegment(e.ID)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // only read
	c.held.Add(pieceBytes)
	defer c.held.Add(-pieceBytes)
	route, buf := s.route(e.To), make([]byte, pieceBytes)
	for at := e.Offset; ; {
		n, err := f.ReadAt(buf, int64(at))
		if err != nil && err != io.EOF {
			return fault.Wrap(err, fault.Unavailable, "read segment %v", e.ID)
		}
		// The end of the file, which is a sealed segment and grows no more.
		if n == 0 {
			return l.Send(route, &peer.SegmentCommit{Slot: e.Slot})
		}
		if err := c.sends.WaitN(ctx, n); err != nil {
			return fault.Wrap(err, fault.Canceled, "send segment %v", e.ID)
		}
		if err := l.Piece(ctx, route, peer.SegmentPiece{Slot: e.Slot, Offset: at}, buf[:n]); err != nil {
			return err
		}
		c.metrics.sentBytes.Add(float64(n))
		c.copied.Add(uint64(n))
		at += uint64(n)
		t.at.Store(at)
	}
}

// answer handles a placement's answer to an offer. Answers to offers of another epoch are late.
func (c *Copier) answer(p lease.Partition, to point.PlacementID, epoch point.Epoch, in replica.SenderInput) {
	if d, ok := in.(replica.Declined); ok && d.Slot == 0 {
		c.mend(p, to, epoch, d.From)
	}
	if s := c.sender(p); s != nil && s.copy.Epoch == epoch && s.copy.Self.Placement == to {
		if d, ok := in.(replica.Declined); ok && d.Slot != 0 {
			c.metrics.declines.WithLabelValues(d.Reason.String()).Inc()
		}
		c.step(s, in)
	}
}
