package chain

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// TestAnAnswerToAnEarlierRequestLosesNoAcknowledgedRow: M asked for the list M in an epoch that ended before the request was carried out. In its
// next epoch it asks for the list M T, and the late answer to the first request comes before that to the second: M treated it as a refusal of the second, did without
// T, which the map has no more, and acknowledged a row that T did not have, while the row of the lease listed T.
func TestAnAnswerToAnEarlierRequestLosesNoAcknowledgedRow(t *testing.T) {
	w := newWorld(1, "M", "T")
	head, other := w.node("M"), w.node("T")
	run := func(d time.Duration) { // the store carries out nothing meanwhile
		for until := w.now + d; w.now < until; w.now += 50 * time.Millisecond {
			for _, n := range w.nodes {
				n.step(Tick{})
			}
			for len(w.links) > 0 {
				w.deliver(0, false)
			}
		}
	}
	head.take(false)
	run(time.Second)
	other.kill(0)
	run(5 * time.Second)
	head.step(Lease{})
	w.row.list = []Member{head.member} // another request had the same effect
	head.take(false)
	other.start()
	run(5 * time.Second)
	if len(w.asks) != 2 || len(w.asks[0].Members) != 1 || len(w.asks[1].Members) != 2 || w.asks[0].Ask == w.asks[1].Ask {
		t.Fatalf("requests %+v\n%s", w.asks, strings.Join(w.trace, "\n"))
	}
	w.listStep()
	if !slices.Contains(w.row.list, other.member) {
		t.Fatalf("the row lists %s", names(w.row.list))
	}
	w.unmap("T")
	other.lazy = true
	first, second := w.answered[0], w.answered[1]
	w.answered = nil
	head.step(first.ListSet)
	head.write("f")
	run(5 * time.Second)
	if w.broken != "" || len(w.acked) > 0 {
		t.Fatalf("acknowledged %v: %s\n%s", w.acked, w.broken, strings.Join(w.trace, "\n"))
	}
	head.step(second.ListSet)
	other.lazy = false
	w.run(10 * time.Second)
	if w.broken != "" || len(w.acked) != 1 {
		t.Fatalf("acknowledged %v: %s\n%s", w.acked, w.broken, strings.Join(w.trace, "\n"))
	}
}
