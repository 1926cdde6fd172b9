package chain

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// TestASlowMemberIsListedAgainWhileRowsComeAllTheTime: a member was slow, and its disk is well again. Rows come all the time: whenever the head
// looks, the newest frame is not passed on yet. The member keeps up for 30 s all the same, and is listed again.
func TestASlowMemberIsListedAgainWhileRowsComeAllTheTime(t *testing.T) {
	w := newWorld(2, "H", "M", "T")
	h, slow := w.node("H"), w.node("T")
	h.take(false)
	w.quiet()
	w.run(300 * time.Millisecond)
	slow.lazy = true
	h.write("first")
	w.quiet()
	w.run(6 * time.Second)
	if drawn := w.draw(); !strings.Contains(drawn, "list H M;") {
		t.Fatalf("T is slow, and in the list:\n%s", drawn)
	}
	slow.lazy = false
	slow.fsync()
	slow.settle()

	passes := []Passed{}
	h.passes = &passes
	answer := func() {
		was := passes
		passes = []Passed{}
		for _, p := range was {
			h.step(p)
		}
	}
	for i := range 34 * 20 {
		h.write(fmt.Sprint(i))
		w.quiet()
		if i%4 > 0 { // three of four looks find a frame that is not passed on
			w.now += 50 * time.Millisecond
			for _, n := range w.nodes {
				n.step(Tick{})
			}
			answer()
			w.quiet()
			continue
		}
		answer()
		w.quiet()
		answer()
		w.run(50 * time.Millisecond)
	}
	if drawn := w.draw(); !strings.Contains(drawn, "list H M T;") {
		t.Errorf("T has kept up for 34 s, and is not listed:\n%s", drawn[:min(len(drawn), 300)])
	}
}
