package replica

import (
	"slices"

	"github.com/spillwaydb/spillway/protocols/point"
)

// Key names a partition's placement on this server.
type Key struct {
	Table     string
	Partition point.PartitionID
	Placement point.PlacementID
}

// Holding is the state of a placement: its segments and the epoch that it promised to follow.
type Holding struct {
	Epoch  point.Epoch
	Chain  []point.SegmentID // oldest first; then those that wait for others above them
	Ends   []point.EpochEnd  // of its segments
	Leads  bool              // it leads itself: then nothing is accepted (C57) but the bytes of its own damaged files
	Absent bool              // it is not here, or is being dropped
	Later  bool              // it is about to follow the sender's epoch, and accepts nothing yet
	// Broken are segments of the chain whose files are damaged: the same bytes are received again.
	Broken []point.SegmentID
}

// ReceiverInput is an input of a Receiver.
type ReceiverInput interface{ receiverInput() }

type (
	// Offered is an offer that arrived, with the present state of the placement. Free are the bytes that may be written, beside those that are here.
	Offered struct {
		From    Member // the sender's placement
		To      Key
		Epoch   point.Epoch // of the sender
		Slot    uint64      // the sender's number
		Segment Segment
		Has     Holding
		Free    uint64
	}
	// Came reports that bytes of a segment were written, up to an offset.
	Came struct {
		From Member
		To   Key
		Slot uint64
		Upto uint64
	}
	// Unwritten reports that bytes of a segment could not be written to its unfinished file.
	Unwritten struct {
		From Member
		To   Key
		Slot uint64
	}
	// Committed says that the sender sent all bytes.
	Committed struct {
		From Member
		To   Key
		Slot uint64
	}
	// Adopted answers Adopt. Refused: the bytes do not match, or the chain has changed meanwhile.
	Adopted struct {
		To      Key
		ID      point.SegmentID
		Refused Reason           // 0: it is durable
		Ends    []point.EpochEnd // of the segments that the placement holds
	}
	// LinkEnded says that the connection to a server ended.
	LinkEnded struct{ From Member }
	// DroppedHere says that the placement is gone.
	DroppedHere struct{ Key Key }
)

func (Tick) receiverInput()        {}
func (Offered) receiverInput()     {}
func (Came) receiverInput()        {}
func (Unwritten) receiverInput()   {}
func (Committed) receiverInput()   {}
func (Adopted) receiverInput()     {}
func (LinkEnded) receiverInput()   {}
func (DroppedHere) receiverInput() {}

// ReceiverEffect is an action requested by a Receiver; the order counts.
type ReceiverEffect interface{ receiverEffect() }

type (
	// Accept asks for the bytes from Offset on. The runner opens the unfinished file of the segment, or makes it.
	Accept struct {
		To           Member
		At           Key
		Epoch        point.Epoch // of the offer
		Slot, Offset uint64
		Segment      Segment
	}
	// Decline refuses an offer or a commit.
	Decline struct {
		To     Member
		At     Key
		Epoch  point.Epoch // of the offer
		Slot   uint64
		Reason Reason
		Ends   []point.EpochEnd
	}
	// Adopt verifies the finished file and makes it part of the placement, durably. Answered by Adopted.
	Adopt struct {
		At      Key
		Epoch   point.Epoch // of the sender
		Segment Segment
	}
	// Ack says that the segment is durable here, or waits for those above it.
	Ack struct {
		To    Member
		At    Key
		Epoch point.Epoch // of the offer
		Slot  uint64
		ID    point.SegmentID
	}
	// Discard removes the unfinished file of a segment.
	Discard struct {
		At Key
		ID point.SegmentID
	}
)

func (Accept) receiverEffect()  {}
func (Decline) receiverEffect() {}
func (Adopt) receiverEffect()   {}
func (Ack) receiverEffect()     {}
func (Discard) receiverEffect() {}

// Receiver is a server's part for all placements that it follows with.
type Receiver struct {
	set   Settings
	slots []*slot
	// noRoom are the placements whose last offer found no room, at most noRoomMax.
	noRoom []Key
	now    Time
	out    []ReceiverEffect
}

// noRoomMax bounds Receiver.noRoom. Those beyond it are reported when others have room.
const noRoomMax = 64

// slot is one segment on its way, or the unfinished file of one that lost its sender.
type slot struct {
	at       Key
	from     Member
	number   uint64 // the sender's; 0: the sender disconnected, its bytes are kept for a while
	epoch    point.Epoch
	segment  Segment
	upto     uint64 // bytes that are here
	until    Time   // when it expires
	adopting bool
}

// NewReceiver makes the machine. Settings that are zero get their defaults.
func NewReceiver(set Settings) *Receiver {
	set.setDefaults()
	return &Receiver{set: set}
}

// Step handles an input and appends the effects.
func (r *Receiver) Step(now Time, in ReceiverInput, out []ReceiverEffect) []ReceiverEffect {
	r.now, r.out = now, out
	r.expire()
	switch in := in.(type) {
	case Offered:
		r.offered(in)
	case Came:
		if s := r.find(in.To, in.From, in.Slot); s != nil && !s.adopting && in.Upto > s.upto {
			s.upto, s.until = in.Upto, now+r.set.SlotIdle
		}
	case Unwritten:
		if s := r.find(in.To, in.From, in.Slot); s != nil && !s.adopting {
			r.answered(in.To, NoSpace)
			r.do(Decline{To: in.From, At: in.To, Epoch: s.epoch, Slot: in.Slot, Reason: NoSpace})
			r.drop(func(x *slot) bool { return x == s })
		}
	case Committed:
		r.committed(in)
	case Adopted:
		r.adopted(in)
	case LinkEnded:
		for _, s := range r.slots {
			if s.from == in.From {
				s.number, s.until = 0, now+r.set.SlotIdle
			}
		}
	case DroppedHere:
		r.drop(func(s *slot) bool { return s.at == in.Key })
		r.answered(in.Key, 0)
	}
	out, r.out = r.out, nil
	return out
}

// NoRoom returns the placements whose last offer found no room on the disk. The caller does not change it.
func (r *Receiver) NoRoom() []Key { return r.noRoom }

// answered notes whether the last offer to a placement found room. The list is a new one where it changes: the caller may keep the old one.
func (r *Receiver) answered(at Key, reason Reason) {
	switch i := slices.Index(r.noRoom, at); {
	case reason == NoSpace && i < 0 && len(r.noRoom) < noRoomMax:
		r.noRoom = append(slices.Clone(r.noRoom), at)
	case reason != NoSpace && i >= 0:
		r.noRoom = slices.Delete(slices.Clone(r.noRoom), i, i+1)
	}
}

// Next returns the latest time for a Tick; ok is false if no slot is in use.
func (r *Receiver) Next() (at Time, ok bool) {
	for _, s := range r.slots {
		if !s.adopting && (!ok || s.until < at) {
			at, ok = s.until, true
		}
	}
	return at, ok
}

func (r *Receiver) do(e ReceiverEffect) { r.out = append(r.out, e) }

func (r *Receiver) find(at Key, from Member, number uint64) *slot {
	for _, s := range r.slots {
		if s.at == at && s.from == from && s.number == number && number != 0 {
			return s
		}
	}
	return nil
}

// drop ends slots with segments that are not just being adopted, and removes their files.
func (r *Receiver) drop(which func(*slot) bool) {
	r.slots = slices.DeleteFunc(r.slots, func(s *slot) bool {
		if s.adopting || !which(s) {
			return false
		}
		r.do(Discard{At: s.at, ID: s.segment.ID})
		return true
	})
}

func (r *Receiver) expire() { r.drop(func(s *slot) bool { return r.now >= s.until }) }

// offered decides about an offer, in the order of the reasons.
func (r *Receiver) offered(in Offered) {
	reason := r.refuses(&in)
	r.answered(in.To, reason)
	if reason != 0 {
		r.do(Decline{To: in.From, At: in.To, Epoch: in.Epoch, Slot: in.Slot, Reason: reason, Ends: in.Has.Ends})
		return
	}
	s := r.resumed(&in)
	if s == nil {
		// Another segment of this placement without a sender makes room.
		r.drop(func(s *slot) bool { return s.at == in.To })
		if len(r.slots) >= r.set.SlotsMax {
			r.drop(func(s *slot) bool { return s.number == 0 })
		}
		s = &slot{at: in.To, segment: in.Segment}
		r.slots = append(r.slots, s)
	}
	s.from, s.number, s.epoch, s.until = in.From, in.Slot, in.Epoch, r.now+r.set.SlotIdle
	r.do(Accept{To: in.From, At: in.To, Epoch: in.Epoch, Slot: in.Slot, Offset: s.upto, Segment: in.Segment})
}

func (r *Receiver) refuses(in *Offered) Reason {
	has := &in.Has
	switch {
	case in.Epoch < has.Epoch || has.Absent || has.Leads && in.Epoch != has.Epoch:
		return StaleEpoch
	case has.Later:
		return Overloaded
	case slices.Contains(has.Broken, in.Segment.ID):
	case slices.Contains(has.Chain, in.Segment.ID):
		return Exists
	case has.Leads: // followers offer all their segments to a leader with damaged files, and it accepts those alone
		return StaleEpoch
	case !in.Segment.Major && !slices.Contains(has.Chain, in.Segment.Base):
		return OutOfOrder
	case !covers(in.Segment.Ends, has.Ends): // frames above the base, or below a major, would be lost: the sender has them in no segment
		return OutOfOrder
	}
	for _, s := range r.slots {
		if s.at == in.To && (s.adopting || s.from != in.From && s.number != 0 && s.epoch >= in.Epoch) {
			return Inflight
		}
	}
	taken, resumes, free, need := 0, false, in.Free, in.Segment.Size
	for _, s := range r.slots {
		switch {
		case s.at == in.To:
			resumes = true
		case s.number != 0 || s.adopting:
			taken++
			free -= min(free, s.segment.Size-s.upto) // its room is promised
		}
	}
	if s := r.resumed(in); s != nil {
		need -= s.upto
	}
	switch {
	case !resumes && taken >= r.set.SlotsMax:
		return Overloaded
	case free < need:
		return NoSpace
	}
	return 0
}

// resumed returns the unfinished file of the very same segment.
func (r *Receiver) resumed(in *Offered) *slot {
	for _, s := range r.slots {
		if s.at == in.To && s.segment.ID == in.Segment.ID && s.segment.Checksum == in.Segment.Checksum && s.segment.Size == in.Segment.Size {
			return s
		}
	}
	return nil
}

func (r *Receiver) committed(in Committed) {
	s := r.find(in.To, in.From, in.Slot)
	switch {
	case s == nil || s.adopting:
	case s.upto != s.segment.Size:
		r.do(Decline{To: in.From, At: in.To, Epoch: s.epoch, Slot: in.Slot, Reason: Invalid})
		r.drop(func(x *slot) bool { return x == s })
	default:
		s.adopting = true
		r.do(Adopt{At: s.at, Epoch: s.epoch, Segment: s.segment})
	}
}

func (r *Receiver) adopted(in Adopted) {
	i := slices.IndexFunc(r.slots, func(s *slot) bool { return s.at == in.To && s.adopting && s.segment.ID == in.ID })
	if i < 0 {
		return
	}
	s := r.slots[i]
	r.slots = slices.Delete(r.slots, i, i+1)
	r.answered(in.To, in.Refused)
	if in.Refused != 0 {
		r.do(Discard{At: s.at, ID: s.segment.ID})
	}
	switch {
	case s.number == 0: // the sender disconnected; it offers again, and gets the answer that the segment exists
	case in.Refused != 0:
		r.do(Decline{To: s.from, At: s.at, Epoch: s.epoch, Slot: s.number, Reason: in.Refused, Ends: in.Ends})
	default:
		r.do(Ack{To: s.from, At: s.at, Epoch: s.epoch, Slot: s.number, ID: s.segment.ID})
	}
}
