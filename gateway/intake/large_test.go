package intake

import (
	"testing"
	"time"
)

// TestALargeRequestGetsItsTurn: the rule, by what three requests ask and others hold. The budget is 96.
func TestALargeRequestGetsItsTurn(t *testing.T) {
	const max = 96
	t0 := time.Unix(1000, 0)
	at := func(ms int) time.Time { return t0.Add(time.Duration(ms) * time.Millisecond) }
	for _, c := range []struct {
		name             string
		held, need, used int64 // used by others
		rows             bool
		granted          bool
	}{
		{"it fits", 20, 40, 36, false, true},
		{"one too many", 20, 40, 37, false, false},
		{"beyond the budget, as good as alone", 60, 60, 12, false, true},
		{"beyond the budget beside others", 60, 60, 13, false, false},
		{"beyond what one gets, alone", 60, 61, 0, false, false},
		{"rows beyond what one gets, as good as alone", 60, 100, 12, true, true},
		{"rows beyond it beside others", 60, 100, 13, true, false},
	} {
		l, r := large{}, &largeRequest{held: c.held, need: c.need, rows: c.rows}
		if !l.ask(max, r) {
			t.Errorf("%s: it may not wait", c.name)
		}
		if got, n := l.step(t0, max, c.used+c.held); (got == r) != c.granted || c.granted && (n != c.need || r.need != 0 || r.held != c.held+n) {
			t.Errorf("%s: granted %v, %d", c.name, got, n)
		}
		if l.holder != r || (l.holdsBack(at(999)) > 0) == c.granted || l.holdsBack(at(1000)) != 0 {
			t.Errorf("%s: it holds back %v, later %v", c.name, l.holdsBack(at(999)), l.holdsBack(at(1000)))
		}
	}

	// n1 has the turn and waits, n2 waits behind it. A small one does not wait, nor does n3, which would hold too much meanwhile.
	l := large{}
	n1, n2, n3 := &largeRequest{held: 40, need: 40}, &largeRequest{held: 16, need: 48}, &largeRequest{held: 10, need: 48}
	if !l.ask(max, n1) {
		t.Error("n1 may not wait")
	}
	l.step(t0, max, 90)
	if !l.ask(max, n2) || l.ask(max, n3) || l.ask(max, &largeRequest{held: 1, need: 4}) {
		t.Error("others wait than those that are large and hold little")
	}
	// The memory of n2 does not stop n1: it would wait for ever.
	if got, _ := l.step(t0, max, 40+16+17); got != nil {
		t.Error("n1 gets memory that others hold")
	}
	l.heldBack = true
	if got, _ := l.step(at(300), max, 40+16+16); got != n1 || l.holdsBack(at(300)) != 0 {
		t.Error("n1 does not get what is free")
	}
	// n1 asks again within its turn, gets it, and ends. As it held others back, they have as long for themselves.
	if n1.need = 5; !l.ask(max, n1) {
		t.Error("n1 may not go on")
	}
	if got, _ := l.step(at(350), max, 80+16); got != n1 {
		t.Error("n1 does not get the rest")
	}
	l.leave(at(400), n1)
	if got, _ := l.step(at(799), max, 16); got != nil || l.holder != nil {
		t.Error("n2 gets no turn while others rest from the last")
	}
	if got, _ := l.step(at(800), max, 16); got != n2 || l.bytes != 0 {
		t.Errorf("n2 does not get its turn; %d bytes wait", l.bytes)
	}
	// No request was held back: the next turn begins at once. One that gives up leaves the queue.
	if !l.ask(max, n3) {
		t.Error("n3 may not wait")
	}
	n4 := &largeRequest{held: 9, need: 48}
	if !l.ask(max, n4) {
		t.Error("n4 may not wait")
	}
	l.leave(at(900), n3)
	l.leave(at(900), n2)
	if got, _ := l.step(at(900), max, 9); got != n4 || l.bytes != 0 || len(l.waiting) != 0 {
		t.Errorf("n4 does not get its turn: %d bytes and %d requests wait", l.bytes, len(l.waiting))
	}
	// A turn that held others back for long is followed by no longer rest than it may hold back.
	l.heldBack = true
	l.leave(at(60_000), n4)
	if got := l.rest; got != at(61_000) {
		t.Errorf("a rest until %v", got)
	}
}

// TestNewRequestsAreHeldBackWhileALargeOneWaits: only those of tables that hold much, and none is refused.
func TestNewRequestsAreHeldBackWhileALargeOneWaits(t *testing.T) {
	of := &budget{max: 96 << 20}
	busy := charge{of: of, table: "busy"}
	if err := busy.take(60 << 20); err != nil {
		t.Fatal(err)
	}
	begun := make(chan struct{})
	big := charge{of: of, table: "big", await: func(come <-chan struct{}) error {
		of.begin(t.Context(), "quiet") // holds nothing: it goes on at once
		go func() {
			of.begin(t.Context(), "busy")
			close(begun)
		}()
		for over := false; of.waiting() != 2 && !over; {
			select {
			case <-begun: // the machine was so slow that the second was over
				over = true
			case <-time.After(time.Millisecond):
			}
		}
		busy.release()
		<-come
		return nil
	}}
	if err := big.take(64 << 20); err != nil {
		t.Fatal(err)
	}
	<-begun
	if big.held != 64<<20 || of.used.Load() != 64<<20 {
		t.Errorf("%d bytes are held, %d in flight", big.held, of.used.Load())
	}
	big.release()
	if of.waiting() != 0 || of.open != nil || of.used.Load() != 0 || of.large.holder != nil {
		t.Errorf("left behind: %d waiting, %d bytes", of.waiting(), of.used.Load())
	}
}
