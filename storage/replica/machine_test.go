package replica

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/protocols/point"
)

var (
	one, two = Member{Placement: 1, Server: "a"}, Member{Placement: 2, Server: "b"}
	root     = Segment{ID: point.SegmentID{Epoch: 1, Seq: 1}, Major: true, Size: 10, Checksum: 7, Ends: []point.EpochEnd{{Epoch: 1, Seq: 5}}}
	minor    = Segment{ID: point.SegmentID{Epoch: 1, Seq: 2}, Base: root.ID, Size: 10, Checksum: 8, Ends: []point.EpochEnd{{Epoch: 1, Seq: 9}}}
)

func place(n int) Key {
	return Key{Table: "t", Partition: point.PartitionID(n), Placement: point.PlacementID(n)}
}

// said draws effects: their types, and the reasons of declines.
func said(es []ReceiverEffect) string {
	var parts []string
	for _, e := range es {
		text := strings.TrimPrefix(fmt.Sprintf("%T", e), "replica.")
		switch e := e.(type) {
		case Decline:
			text += " " + e.Reason.String()
		case Accept:
			text += fmt.Sprint(" from ", e.Offset)
		}
		parts = append(parts, text)
	}
	return strings.Join(parts, ", ")
}

// A server's answers to offers, reason by reason.
func TestReceiverDeclinesWithTheReason(t *testing.T) {
	for _, c := range []struct {
		name string
		in   Offered
		want string
	}{
		{"nothing here, a major", Offered{Segment: root}, "Accept from 0"},
		{"nothing here, a minor", Offered{Segment: minor}, "Decline out of order"},
		{"on its base", Offered{Segment: minor, Has: Holding{Chain: []point.SegmentID{root.ID}, Ends: root.Ends}}, "Accept from 0"},
		{"it is here", Offered{Segment: root, Has: Holding{Chain: []point.SegmentID{root.ID}, Ends: root.Ends}}, "Decline exists"},
		{"it is here, and damaged", Offered{Segment: root, Has: Holding{Chain: []point.SegmentID{root.ID}, Ends: minor.Ends, Broken: []point.SegmentID{root.ID}}}, "Accept from 0"},
		{"in place of another minor that holds no more", Offered{Segment: minor, Has: Holding{Chain: []point.SegmentID{root.ID, {Epoch: 1, Seq: 3}}, Ends: minor.Ends}}, "Accept from 0"},
		{"in place of another minor that holds more", Offered{Segment: minor, Has: Holding{Chain: []point.SegmentID{root.ID, {Epoch: 1, Seq: 3}}, Ends: []point.EpochEnd{{Epoch: 1, Seq: 10}}}}, "Decline out of order"},
		{"a major that holds less", Offered{Segment: root, Has: Holding{Chain: []point.SegmentID{{Epoch: 1, Seq: 4}}, Ends: minor.Ends}}, "Decline out of order"},
		{"of an epoch that is over", Offered{Segment: root, Epoch: 1, Has: Holding{Epoch: 2}}, "Decline stale epoch"},
		{"to one that leads", Offered{Segment: root, Has: Holding{Leads: true}}, "Decline stale epoch"},
		{"to one that is not there", Offered{Segment: root, Has: Holding{Absent: true}}, "Decline stale epoch"},
		{"to one that follows the epoch in a moment", Offered{Segment: root, Has: Holding{Later: true}}, "Decline overloaded"},
		{"a full disk", Offered{Segment: Segment{ID: root.ID, Major: true, Size: 1 << 40}}, "Decline no space"},
	} {
		c.in.From, c.in.To, c.in.Slot, c.in.Free = one, place(1), 1, 1<<20
		if got := said(NewReceiver(Settings{}).Step(0, c.in, nil)); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}

// Slots are few, and none is held by a sender that disconnected.
func TestASlotIsGivenToAnotherWhenItsSenderIsSilent(t *testing.T) {
	r := NewReceiver(Settings{SlotsMax: 1, SlotIdle: 30 * time.Second})
	offer := func(now Time, from Member, at, slot int) string {
		return said(r.Step(now, Offered{From: from, To: place(at), Epoch: 1, Slot: uint64(slot), Segment: root, Free: 1 << 20}, nil))
	}
	for _, c := range []struct {
		now       time.Duration
		from      Member
		at, slot  int
		want, why string
	}{
		{0, one, 1, 1, "Accept from 0", "the first"},
		{time.Second, two, 2, 1, "Decline overloaded", "the slot is taken"},
		{time.Second, two, 1, 1, "Decline inflight", "another server sends it"},
		{29 * time.Second, two, 2, 2, "Decline overloaded", "not yet"},
		{31 * time.Second, two, 2, 3, "Discard, Accept from 0", "its sender was silent for too long"},
	} {
		if got := offer(c.now, c.from, c.at, c.slot); got != c.want {
			t.Errorf("%s: %s, want %s", c.why, got, c.want)
		}
	}
}

// The room of transfers under way is promised: offers that come beside them must not fill the disk together, which would stop writes.
func TestOffersTogetherDoNotFillTheDisk(t *testing.T) {
	r, big := NewReceiver(Settings{}), root
	big.Size = 60
	for _, c := range []struct {
		in   ReceiverInput
		want string
		full int
		why  string
	}{
		{Offered{From: one, To: place(1), Slot: 1, Segment: big, Free: 100}, "Accept from 0", 0, "there is room for one"},
		{Offered{From: one, To: place(2), Slot: 2, Segment: big, Free: 100}, "Decline no space", 1, "60 of 100 are promised"},
		{Came{From: one, To: place(1), Slot: 1, Upto: 50}, "", 1, "50 of them are here"},
		{Offered{From: one, To: place(2), Slot: 3, Segment: big, Free: 50}, "Decline no space", 1, "50 are free, and 10 promised"},
		{Offered{From: one, To: place(2), Slot: 4, Segment: big, Free: 70}, "Accept from 0", 0, "room was made"},
		{Unwritten{From: one, To: place(2), Slot: 4}, "Decline no space, Discard", 1, "another program took it"},
		{DroppedHere{place(2)}, "", 0, "it is gone"},
		{LinkEnded{From: one}, "", 0, ""},
		{Offered{From: one, To: place(1), Slot: 5, Segment: big, Free: 10}, "Accept from 50", 0, "the rest of it fits"},
	} {
		if got := said(r.Step(0, c.in, nil)); got != c.want {
			t.Errorf("%s: %s, want %s", c.why, got, c.want)
		}
		if got := r.NoRoom(); len(got) != c.full {
			t.Errorf("%s: without room are %v, want %d", c.why, got, c.full)
		}
	}
}

// A transfer continues where it was, after the connection was lost, only with the very same bytes.
func TestATransferGoesOnWhereItWas(t *testing.T) {
	for _, c := range []struct {
		checksum uint64
		want     string
	}{{root.Checksum, "Accept from 6"}, {99, "Discard, Accept from 0"}} {
		r := NewReceiver(Settings{})
		r.Step(0, Offered{From: one, To: place(1), Slot: 1, Segment: root, Free: 100}, nil)
		r.Step(0, Came{From: one, To: place(1), Slot: 1, Upto: 6}, nil)
		r.Step(0, LinkEnded{From: one}, nil)
		again := root
		again.Checksum = c.checksum
		if got := said(r.Step(time.Second, Offered{From: two, To: place(1), Slot: 9, Segment: again, Free: 100}, nil)); got != c.want {
			t.Errorf("%s, want %s", got, c.want)
		}
	}
}

// A commit before all bytes are here adopts nothing, and an answer to another adoption acknowledges nothing.
func TestOnlyWholeSegmentsAreAdoptedAndAcknowledged(t *testing.T) {
	r := NewReceiver(Settings{})
	r.Step(0, Offered{From: one, To: place(1), Slot: 1, Segment: root, Free: 100}, nil)
	r.Step(0, Came{From: one, To: place(1), Slot: 1, Upto: 9}, nil)
	if got := said(r.Step(0, Committed{From: one, To: place(1), Slot: 1}, nil)); got != "Decline invalid, Discard" {
		t.Error(got)
	}
	r.Step(0, Offered{From: one, To: place(1), Slot: 2, Segment: root, Free: 100}, nil)
	r.Step(0, Came{From: one, To: place(1), Slot: 2, Upto: 10}, nil)
	for _, c := range []struct {
		in   ReceiverInput
		want string
	}{
		{Adopted{To: place(1), ID: root.ID}, ""}, // nothing is being adopted yet
		{Committed{From: one, To: place(1), Slot: 1}, ""},
		{Committed{From: one, To: place(1), Slot: 2}, "Adopt"},
		{Adopted{To: place(1), ID: minor.ID}, ""},
		{Offered{From: two, To: place(1), Epoch: 3, Slot: 5, Segment: root, Free: 100}, "Decline inflight"},
		{Adopted{To: place(1), ID: root.ID}, "Ack"},
	} {
		if got := said(r.Step(0, c.in, nil)); got != c.want {
			t.Errorf("%+v: %s, want %s", c.in, got, c.want)
		}
	}
}

// A placement that declines a minor although it acknowledged its base is offered the major: its directory has changed.
func TestAfterOutOfOrderTheMajorIsSent(t *testing.T) {
	s := NewSender(Settings{})
	s.Step(0, Members{[]Member{one}}, nil)
	offered := func(now Time, in SenderInput) (slot uint64, id point.SegmentID) {
		for _, e := range s.Step(now, in, nil) {
			if o, ok := e.(Offer); ok {
				return o.Slot, o.Segment.ID
			}
		}
		return 0, point.SegmentID{}
	}
	slot, id := offered(0, Chain{[]Segment{root, minor}})
	if id != root.ID {
		t.Fatalf("%v is offered first", id)
	}
	if slot, id = offered(0, Acked{From: one, Slot: slot, ID: root.ID}); id != minor.ID {
		t.Fatalf("then %v", id)
	}
	if _, id = offered(0, Declined{From: one, Slot: slot, Reason: OutOfOrder}); !id.IsZero() {
		t.Fatalf("%v is offered without a pause", id)
	}
	if at, ok := s.Next(); !ok || at != 500*time.Millisecond {
		t.Fatalf("next at %v, %v", at, ok)
	}
	if _, id = offered(500*time.Millisecond, Tick{}); id != root.ID {
		t.Errorf("%v is offered after that, want the major", id)
	}
}

// TestACopyThatLetsNoSegmentWaitIsSentItOnce: one of an earlier build fetched the result of a compaction again and again until its leader had made a major.
func TestACopyThatLetsNoSegmentWaitIsSentItOnce(t *testing.T) {
	s := NewSender(Settings{})
	m := Member{Server: "m"}
	id := func(n uint64) point.SegmentID { return point.SegmentID{Epoch: 1, Seq: n} }
	ends := func(n uint64) []point.EpochEnd { return []point.EpochEnd{{Epoch: 1, Seq: n}} }
	offered := func(now Time, in SenderInput) (o Offer) {
		for _, e := range s.Step(now, in, nil) {
			if x, ok := e.(Offer); ok {
				o = x
			}
		}
		return o
	}
	s.Step(0, Members{All: []Member{m}}, nil)
	o := offered(0, Chain{Segments: []Segment{{ID: id(4), Major: true, Ends: ends(2)}, {ID: id(5), Base: id(4), Ends: ends(3)}}})
	if !covers(o.Segment.Ends, ends(3)) {
		t.Fatalf("offered is %+v", o)
	}
	offered(1, Declined{From: m, Slot: o.Slot, Reason: OutOfOrder, Ends: ends(3)})
	o = offered(Time(time.Minute), Tick{})
	if o.Segment.ID != id(4) || covers(o.Segment.Ends, ends(3)) {
		t.Errorf("offered again is %+v", o)
	}
	o = offered(Time(time.Minute), Chain{Segments: []Segment{{ID: id(6), Major: true, Ends: ends(3)}, {ID: id(7), Base: id(6), Ends: ends(4)}}})
	if o.Slot == 0 {
		o = offered(Time(2*time.Minute), Tick{})
	}
	offered(Time(2*time.Minute), Acked{From: m, Slot: o.Slot, ID: o.Segment.ID})
	o = offered(Time(2*time.Minute), Chain{Segments: []Segment{{ID: id(6), Major: true, Ends: ends(3)}, {ID: id(8), Base: id(6), Ends: ends(4)}, {ID: id(9), Base: id(8), Ends: ends(5)}}})
	for i := Time(3); o.Slot == 0 && i < 6; i++ {
		o = offered(i*Time(time.Minute), Tick{})
	}
	if !covers(o.Segment.Ends, ends(5)) {
		t.Errorf("once it has taken a segment, offered is %+v", o)
	}
}
