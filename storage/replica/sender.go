package replica

import (
	"cmp"
	"slices"
	"time"

	"github.com/spillwaydb/spillway/protocols/point"
)

// Settings are numbers a user sets.
type Settings struct {
	// AnswerIn is how long an offer or a commit may be without an answer before it is repeated. Default 10 s.
	AnswerIn time.Duration
	// RetryMin and RetryMax are the first and the longest pause after a decline; pauses double. Default 500 ms and 30 s.
	RetryMin, RetryMax time.Duration
	// SlotsMax is how many segments a server receives at once. Default 4. More: more of the disk is for copying.
	SlotsMax int
	// SlotIdle is how long nothing of a segment may arrive before its slot is given to another. Default 30 s.
	SlotIdle time.Duration
	// InvalidMax is how often one segment may arrive damaged before its own bytes are suspected. Default 3.
	InvalidMax int
}

func (s *Settings) setDefaults() {
	s.AnswerIn = cmp.Or(s.AnswerIn, 10*time.Second)
	s.RetryMin = cmp.Or(s.RetryMin, 500*time.Millisecond)
	s.RetryMax = cmp.Or(s.RetryMax, 30*time.Second)
	s.SlotsMax = cmp.Or(s.SlotsMax, 4)
	s.SlotIdle = cmp.Or(s.SlotIdle, 30*time.Second)
	s.InvalidMax = cmp.Or(s.InvalidMax, 3)
}

// SenderInput is an input of a Sender.
type SenderInput interface{ senderInput() }

type (
	// Tick reports that time went on.
	Tick struct{}
	// Chain is the leader's chain of segments as it is now: a major, then minors.
	Chain struct{ Segments []Segment }
	// Members are the placements that should have it, the leader's own not among them.
	Members struct{ All []Member }
	// Accepted answers an offer: the bytes from Offset on are asked for.
	Accepted struct {
		From         Member
		Slot, Offset uint64
	}
	// Declined answers an offer or a commit. Ends are those of the segments that the placement holds. Slot 0: no offer; a segment that the
	// placement has is damaged there. A leader sends that, too, and its followers offer their segments.
	Declined struct {
		From   Member
		Slot   uint64
		Reason Reason
		Ends   []point.EpochEnd
	}
	// Acked answers a commit: the segment is durable there, or waits for those above it.
	Acked struct {
		From Member
		Slot uint64
		ID   point.SegmentID
	}
	// Sent says that the runner sent all bytes of a slot, and Commit behind them; or that it could not read them.
	Sent struct {
		To   Member
		Slot uint64
		OK   bool
	}
	// Unlinked reports that the connection to a member's server ended: data on its way is lost.
	Unlinked struct{ Member Member }
)

func (Tick) senderInput()     {}
func (Chain) senderInput()    {}
func (Members) senderInput()  {}
func (Accepted) senderInput() {}
func (Declined) senderInput() {}
func (Acked) senderInput()    {}
func (Sent) senderInput()     {}
func (Unlinked) senderInput() {}

// SenderEffect is an action requested by a Sender; the order counts.
type SenderEffect interface{ senderEffect() }

type (
	// Offer offers a segment to a placement.
	Offer struct {
		To      Member
		Slot    uint64
		Segment Segment
	}
	// Transit sends the bytes from Offset on, then the commit. Answered by Sent.
	Transit struct {
		To           Member
		Slot, Offset uint64
		ID           point.SegmentID
	}
	// Stop ends the sending of a slot, if it is under way.
	Stop struct {
		To   Member
		Slot uint64
	}
	// Flush asks for a segment of the frames which a placement has in segments of a former leader, and this one in its log.
	Flush struct{ For Member }
	// Compact asks for a major: the placement's segments are other ones with frames that minors hold here, and its program does not wait for these.
	Compact struct{ For Member }
	// Suspect reports that a segment arrived damaged again and again: its own bytes must be verified.
	Suspect struct{ ID point.SegmentID }
	// Level says that a placement holds the whole chain.
	Level struct {
		Member Member
		ID     point.SegmentID // the newest
	}
	// Overtaken reports that a placement has promised a higher epoch: this one leads no longer.
	Overtaken struct{ By Member }
)

func (Offer) senderEffect()     {}
func (Transit) senderEffect()   {}
func (Stop) senderEffect()      {}
func (Flush) senderEffect()     {}
func (Compact) senderEffect()   {}
func (Suspect) senderEffect()   {}
func (Level) senderEffect()     {}
func (Overtaken) senderEffect() {}

// Sender is a leader's part for one partition and epoch; or a follower's, for a leader with damaged files.
type Sender struct {
	set   Settings
	chain []Segment
	slots uint64
	peers []*peerState // in the order in which they were named
	out   []SenderEffect
	now   Time
}

// peerState is the leader's view of one placement.
type peerState struct {
	member  Member
	newest  point.SegmentID // that it acknowledged; zero: not reported yet
	level   point.SegmentID // reported as Level last
	slot    uint64          // of the offer under way; 0: none
	segment Segment         // that was offered
	until   Time            // when it is repeated
	moving  bool            // its bytes are on their way: the sender waits for the transfer's end, not for a time
	pause   time.Duration
	next    Time // not before
	invalid int
	early   bool // it did not let a segment wait: until it takes one, none is sent that would have to
}

// NewSender makes the machine. Settings that are zero get their defaults.
func NewSender(set Settings) *Sender {
	set.setDefaults()
	return &Sender{set: set}
}

// Step handles an input and appends the effects.
func (s *Sender) Step(now Time, in SenderInput, out []SenderEffect) []SenderEffect {
	s.now, s.out = now, out
	switch in := in.(type) {
	case Chain:
		s.chain = slices.Clone(in.Segments)
	case Members:
		s.members(in.All)
	case Accepted:
		if p := s.under(in.From, in.Slot); p != nil && !p.moving {
			p.moving = true
			s.do(Transit{To: p.member, Slot: p.slot, Offset: in.Offset, ID: p.segment.ID})
		}
	case Declined:
		if p := s.peer(in.From); p != nil && in.Slot == 0 && p.slot == 0 {
			p.newest, p.level = point.SegmentID{}, point.SegmentID{} // it is offered all again, and accepts those that it lacks
		} else if p := s.under(in.From, in.Slot); p != nil {
			s.declined(p, in)
		}
	case Acked:
		if p := s.under(in.From, in.Slot); p != nil && p.segment.ID == in.ID {
			s.taken(p)
		}
	case Sent:
		if p := s.under(in.To, in.Slot); p != nil && p.moving {
			p.moving, p.until = false, now+s.set.AnswerIn
			if !in.OK {
				s.again(p)
			}
		}
	case Unlinked:
		if p := s.peer(in.Member); p != nil && p.slot != 0 {
			s.do(Stop{To: p.member, Slot: p.slot})
			s.again(p)
		}
	}
	for _, p := range s.peers {
		s.offer(p)
	}
	out, s.out = s.out, nil
	return out
}

// Next returns the latest time for a Tick; ok is false if the machine waits for nothing.
func (s *Sender) Next() (at Time, ok bool) {
	for _, p := range s.peers {
		t := p.until
		switch {
		case p.moving:
			continue
		case p.slot == 0:
			if s.owed(p) < 0 {
				continue
			}
			t = p.next
		}
		if !ok || t < at {
			at, ok = t, true
		}
	}
	return at, ok
}

// Owing counts the placements that lack segments of the chain.
func (s *Sender) Owing() (n int) {
	for _, p := range s.peers {
		if s.owed(p) >= 0 {
			n++
		}
	}
	return n
}

// Behind is how far a placement is that lacks segments of the chain.
type Behind struct {
	Member Member
	Slot   uint64 // of the segment that was offered last, whose bytes may be on their way; 0: none
	Done   uint64 // bytes of the chain that it has
	Total  uint64 // bytes of the chain
}

// Behind lists the placements that lack segments of the chain.
func (s *Sender) Behind() (all []Behind) {
	for _, p := range s.peers {
		next := s.owed(p)
		if next < 0 {
			continue
		}
		b := Behind{Member: p.member, Slot: p.slot}
		for i := range s.chain {
			b.Total += s.chain[i].Size
			if i < next && p.newest != (point.SegmentID{}) {
				b.Done += s.chain[i].Size
			}
		}
		all = append(all, b)
	}
	return all
}

func (s *Sender) do(e SenderEffect) { s.out = append(s.out, e) }

func (s *Sender) peer(m Member) *peerState {
	for _, p := range s.peers {
		if p.member == m {
			return p
		}
	}
	return nil
}

// under returns the placement that has the offer of that number under way.
func (s *Sender) under(m Member, slot uint64) *peerState {
	if p := s.peer(m); p != nil && slot != 0 && p.slot == slot {
		return p
	}
	return nil
}

func (s *Sender) members(all []Member) {
	var peers []*peerState
	for _, m := range all {
		p := s.peer(m)
		if p == nil {
			p = &peerState{member: m}
		}
		peers = append(peers, p)
	}
	for _, p := range s.peers {
		if p.slot != 0 && !slices.Contains(peers, p) {
			s.do(Stop{To: p.member, Slot: p.slot})
		}
	}
	s.peers = peers
}

// owed is the index of the next segment for a placement; -1: none.
func (s *Sender) owed(p *peerState) int {
	if len(s.chain) == 0 {
		return -1
	}
	if i := s.index(p.newest); i >= 0 {
		if i++; i < len(s.chain) {
			return i
		}
		return -1
	}
	for i := len(s.chain) - 1; i > 0; i-- {
		if s.chain[i].Major {
			return i
		}
	}
	return 0
}

func (s *Sender) index(id point.SegmentID) int {
	return slices.IndexFunc(s.chain, func(g Segment) bool { return g.ID == id })
}

// offer makes the next offer; it gives up one that got no answer, or one with a segment that is gone.
func (s *Sender) offer(p *peerState) {
	if p.slot != 0 && s.index(p.segment.ID) < 0 { // compacted away meanwhile
		s.do(Stop{To: p.member, Slot: p.slot})
		p.slot, p.moving = 0, false
	}
	if p.slot != 0 && !p.moving && s.now >= p.until {
		s.again(p)
	}
	i := s.owed(p)
	if i < 0 {
		if n := len(s.chain); n > 0 && p.level != s.chain[n-1].ID {
			p.level = s.chain[n-1].ID
			s.do(Level{Member: p.member, ID: p.level})
		}
		return
	}
	if p.slot != 0 || s.now < p.next {
		return
	}
	s.slots++
	p.slot, p.segment, p.until, p.moving = s.slots, s.chain[i], s.now+s.set.AnswerIn, false
	offered := p.segment
	if !p.early { // it may wait there for those above it
		offered.Ends = s.chain[len(s.chain)-1].Ends
	}
	s.do(Offer{To: p.member, Slot: p.slot, Segment: offered})
}

// taken records that the placement has the offered segment.
func (s *Sender) taken(p *peerState) {
	p.newest, p.slot, p.moving, p.pause, p.next, p.invalid = p.segment.ID, 0, false, 0, 0, 0
	p.early = false
}

// again repeats the offer after a pause that doubles.
func (s *Sender) again(p *peerState) {
	p.slot, p.moving = 0, false
	p.pause = min(max(2*p.pause, s.set.RetryMin), s.set.RetryMax)
	p.next = s.now + p.pause
}

func (s *Sender) declined(p *peerState, in Declined) {
	if p.moving {
		s.do(Stop{To: p.member, Slot: p.slot})
	}
	switch in.Reason {
	case Exists:
		s.taken(p)
	case StaleEpoch:
		s.again(p)
		s.do(Overtaken{By: p.member})
	case OutOfOrder:
		s.again(p)
		switch n := len(s.chain); {
		case covers(p.segment.Ends, in.Ends): // its base is not there
			p.newest = point.SegmentID{} // from the newest major on, after the pause
		case n > 0 && covers(s.chain[n-1].Ends, in.Ends):
			p.early = true
			s.do(Compact{For: p.member})
		default:
			s.do(Flush{For: p.member})
		}
	case Invalid:
		s.again(p)
		if p.invalid++; p.invalid >= s.set.InvalidMax {
			p.invalid = 0
			s.do(Suspect{ID: p.segment.ID})
		}
	default:
		s.again(p)
	}
}
