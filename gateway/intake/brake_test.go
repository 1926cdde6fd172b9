package intake

import (
	"testing"
	"time"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// TestTheBrakeLetsGoWhenThereIsRoom plays a store that has no room for a while.
func TestTheBrakeLetsGoWhenThereIsRoom(t *testing.T) {
	now := time.Unix(1000, 0)
	full := fault.Errorf(fault.Throttled, "no room")
	var b brake
	b.refused(now, full)
	b.refused(now, full) // of the same moment: counts once
	if b.pause != brakeLeast || b.begin(now) {
		t.Fatalf("%+v", b)
	}
	for range 20 { // probes that find no room
		now = now.Add(b.pause)
		if !b.begin(now) || b.begin(now) {
			t.Fatalf("after its pause one request is let through: %+v", b)
		}
		b.refused(now, full)
		b.done(false)
	}
	if b.pause != brakeMost || b.most != 1 {
		t.Fatalf("pauses grow up to a bound: %+v", b)
	}
	now = now.Add(b.pause)
	off := false
	for n := 1; !off; n *= 2 { // there is room again
		if n > 2*brakeOff {
			t.Fatalf("never off: %+v", b)
		}
		for range n {
			if !b.begin(now) {
				t.Fatalf("of %d at once one is refused: %+v", n, b)
			}
		}
		if b.begin(now) {
			t.Fatalf("more than %d at once", n)
		}
		for i := range n {
			off = b.done(i == 0) || off
		}
	}
}

// TestTablesAreHeldBackAlone: the brake of one is not another's, and goes when it is off.
func TestTablesAreHeldBackAlone(t *testing.T) {
	var s brakes
	s.refused("full", fault.Errorf(fault.Throttled, "no room"))
	if _, err := s.begin("full"); !fault.Is(err, fault.Throttled) {
		t.Errorf("full: %v", err)
	}
	if by, err := s.begin("other"); by != nil || err != nil {
		t.Errorf("other: %v %v", by, err)
	}
	for len(s.tables) > 0 {
		if by, _ := s.begin("full"); by != nil {
			s.done("full", by, true)
		}
	}
}

// TestABodyIsNotReadForNothing: while the store has no room, requests are refused before they are decoded, and taken again
// soon after there is.
func TestABodyIsNotReadForNothing(t *testing.T) {
	b := &brake{}
	now := time.Unix(1000, 0)
	b.refused(now, fault.Errorf(fault.Throttled, "no room"))
	decoded := 0
	for range 1000 { // a second of requests, one a millisecond
		now = now.Add(time.Millisecond)
		if b.begin(now) {
			decoded++
			b.refused(now, b.why)
			b.done(false)
		}
	}
	if decoded == 0 || decoded > 12 {
		t.Errorf("%d of 1000 requests were decoded in vain", decoded)
	}
}
