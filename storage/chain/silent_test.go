package chain

import (
	"fmt"
	"testing"
	"time"
)

// TestAListedMemberThatDoesNotAnswerIsCounted: one that is removed is counted until it is out, one that the list needs for as long as it is away. A chain at rest counts none.
func TestAListedMemberThatDoesNotAnswerIsCounted(t *testing.T) {
	w := newWorld(2, "H", "M", "T")
	w.node("H").take(false)
	silent := func(at, want string) {
		t.Helper()
		h := w.node("H")
		if got := fmt.Sprint(names(h.m.Silent(h.clock()))); got != want {
			t.Errorf("%s: silent are %q, want %q", at, got, want)
		}
	}
	w.run(time.Second)
	silent("all answer", "")
	w.node("T").kill(0)
	w.away = true
	w.run(3 * time.Second)
	silent("T is dead and the store is away", "T")
	w.away = false
	w.run(time.Second)
	silent("T is out of the list", "")
	w.node("M").kill(0)
	w.run(time.Minute)
	silent("M is dead, and the list needs it", "M")
	w.node("M").start()
	w.node("T").start()
	w.run(5 * time.Minute)
	if !w.node("H").m.Quiet() {
		t.Fatal("the chain is not at rest")
	}
	silent("at rest", "")
}
