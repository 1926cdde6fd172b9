package intake

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spillwaydb/spillway/protocols/fault"
)

var errFull = fault.Errorf(fault.Throttled, "no room")

// TestTheBrakeLetsGoWhenThereIsRoom plays a store that has no room for a while.
func TestTheBrakeLetsGoWhenThereIsRoom(t *testing.T) {
	now := time.Unix(1000, 0)
	var b brake
	b.refused(now, errFull)
	b.refused(now, errFull) // of the same moment: counts once
	if b.pause != brakeLeast || b.most != brakeFirst/2 || b.begin(now) {
		t.Fatalf("%+v", b)
	}
	for range 20 { // probes that find no room
		now = now.Add(b.pause)
		if !b.begin(now) {
			t.Fatalf("after its pause none is let through: %+v", b)
		}
		b.refused(now, errFull)
		b.done(false)
	}
	if b.pause != brakeMost || b.most != 1 {
		t.Fatalf("pauses grow up to a bound: %+v", b)
	}
	now = now.Add(b.pause)
	for most := 1; !b.off(now); most++ { // there is room again
		if most > brakeOff {
			t.Fatalf("never off: %+v", b)
		}
		for range most {
			if !b.begin(now) {
				t.Fatalf("of %d at once one is refused: %+v", most, b)
			}
		}
		if b.begin(now) {
			t.Fatalf("more than %d at once", most)
		}
		for range most {
			b.done(true)
		}
	}
	var quiet brake
	quiet.refused(now, errFull)
	if at := now.Add(brakeLeast + brakeQuiet); quiet.off(at.Add(-1)) || !quiet.off(at) {
		t.Error("a table that was refused once is held back for ever")
	}
}

// TestTablesAreHeldBackAlone: the brake of one is not another's, and goes when it is off.
func TestTablesAreHeldBackAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s brakes
		s.refused("full", errFull)
		if by, err := s.begin(t.Context(), "other"); by != nil || err != nil {
			t.Errorf("other: %v %v", by, err)
		}
		for len(s.tables) > 0 {
			by, err := s.begin(t.Context(), "full")
			if err != nil {
				t.Fatal(err)
			}
			if by != nil {
				s.done("full", by, true)
			}
		}
	})
}

// TestTablesThatAreNotWrittenToAnyMoreHaveNoBrake: the brake of a table whose last request was refused was never removed. While the store was
// full, a sender that used each name once filled the memory.
func TestTablesThatAreNotWrittenToAnyMoreHaveNoBrake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s brakes
		for i := range 1000 {
			s.refused(fmt.Sprint("once", i), errFull)
		}
		by, err := s.begin(t.Context(), "once7")
		if by == nil || err != nil {
			t.Fatalf("%v %v", by, err)
		}
		time.Sleep(brakeMost + brakeQuiet)
		s.refused("full", errFull)
		if n := len(s.tables); n != 1 || s.tables["full"] == nil {
			t.Errorf("%d tables have a brake", n)
		}
		s.done("once7", by, true) // its brake is gone meanwhile
		if n := len(s.tables); n != 1 {
			t.Errorf("%d tables have a brake", n)
		}
	})
}

// TestRefusalsOfManyTablesDoNotHoldUpAllRequests: each refusal of a new table looked at the brakes of all others, under the lock that all
// requests need. With 20,000 names this was four seconds of a processor.
func TestRefusalsOfManyTablesDoNotHoldUpAllRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s brakes
		s.refused("a", errFull)
		time.Sleep(brakeQuiet / 2)
		s.refused("b", errFull)
		time.Sleep(brakeQuiet/2 + brakeMost)
		s.refused("c", errFull) // looks: a is off
		time.Sleep(brakeQuiet / 2)
		for i := range 1000 {
			s.refused(fmt.Sprint("once", i), errFull) // none looks, though b is off
		}
		if s.tables["a"] != nil || s.tables["b"] == nil {
			t.Errorf("a is there: %v, b: %v", s.tables["a"] != nil, s.tables["b"] != nil)
		}
		time.Sleep(brakeQuiet + brakeMost)
		s.refused("d", errFull)
		if n := len(s.tables); n != 1 {
			t.Errorf("%d tables have a brake", n)
		}
	})
}

// TestOverloadIsWaitedOut: delayed requests are let through in order of arrival as soon as there is room, and refused when
// that lasts too long; then their state is gone.
func TestOverloadIsWaitedOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s brakes
		s.refused("full", errFull)
		var mu sync.Mutex
		var order []int
		ask := func(i int) {
			by, err := s.begin(t.Context(), "full")
			if err != nil {
				t.Errorf("request %d: %v", i, err)
				return
			}
			mu.Lock()
			order = append(order, i)
			mu.Unlock()
			time.Sleep(time.Millisecond) // its decoding
			s.done("full", by, true)
		}
		for i := range 100 {
			go ask(i)
			synctest.Wait()
		}
		time.Sleep(turnTimeMax)
		synctest.Wait()
		for i, got := range order {
			if got-i >= brakeFirst || i-got >= brakeFirst { // so many at once
				t.Fatalf("request %d came in place %d", got, i)
			}
		}
		if len(order) != 100 || s.waiting != 0 {
			t.Fatalf("%d of 100 came, %d wait", len(order), s.waiting)
		}

		s.refused("full", errFull)
		by := []*brake{}
		for s.tables["full"].under < s.tables["full"].most { // slow bodies occupy all places
			b, err := s.begin(t.Context(), "full")
			if err != nil {
				t.Fatal(err)
			}
			by = append(by, b)
		}
		began := time.Now()
		if _, err := s.begin(t.Context(), "full"); !fault.Is(err, fault.Throttled) || time.Since(began) != turnTimeMax {
			t.Errorf("after %s: %v", time.Since(began), err)
		}
		leaving, leave := context.WithTimeout(t.Context(), time.Millisecond)
		defer leave()
		if _, err := s.begin(leaving, "full"); !fault.Is(err, fault.Throttled) {
			t.Error(err)
		}
		for _, b := range by {
			s.done("full", b, false)
		}
		if b := s.tables["full"]; b != nil && (b.under != 0 || len(b.queue) != 0) || s.waiting != 0 {
			t.Errorf("%+v, %d wait", b, s.waiting)
		}
	})
}

// TestNoMoreThanSoManyAreHeldBack: the next is refused at once.
func TestNoMoreThanSoManyAreHeldBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s brakes
		s.refused("full", errFull)
		s.waiting = turnsMax
		began := time.Now()
		if _, err := s.begin(t.Context(), "full"); !fault.Is(err, fault.Throttled) || time.Since(began) != 0 {
			t.Errorf("after %s: %v", time.Since(began), err)
		}
	})
}

// TestABodyIsNotReadForNothing: while the store has no room, requests are refused before they are decoded, and accepted again
// soon after there is.
func TestABodyIsNotReadForNothing(t *testing.T) {
	b := &brake{}
	now := time.Unix(1000, 0)
	b.refused(now, errFull)
	decoded := 0
	for range 1000 { // a second of requests, one a millisecond
		now = now.Add(time.Millisecond)
		if b.begin(now) {
			decoded++
			b.refused(now, b.why)
			b.done(false)
		}
	}
	if decoded == 0 || decoded > 30 {
		t.Errorf("%d of 1000 requests were decoded in vain", decoded)
	}
}
