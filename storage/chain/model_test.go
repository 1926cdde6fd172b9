package chain

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestModel plays random histories: messages lost, doubled and out of order, links cut one way, slow disks, those of which their servers say so, crashes that lose
// unsynced frames, emptied directories, acquisitions at any moment (also while the holder runs and believes that it leads), a
// coordination store that is away, clocks within 10 % of the truth. The world's checks hold after every event; once the faults stop all placements
// become equal and accept rows again, unless no listed disk is left.
func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := randomWorld(t)
		for range 20 + 3*pick(t, 128) {
			w.event(t)
			if w.broken != "" {
				t.Fatalf("%s\n%s\n%s", w.broken, w.draw(), strings.Join(w.trace, "\n"))
			}
		}
		w.away = false
		w.listStep() // requests on their way may leave only lost disks in the list
		if !w.listedDiskLives() {
			return
		}
		if why := w.recovers(); why != "" || w.broken != "" {
			t.Fatalf("%s %s\n%s\n%s", why, w.broken, w.draw(), strings.Join(w.trace, "\n"))
		}
	})
}

// pick draws one of n with no preference for small numbers, which rapid's own ranges have.
func pick(t *rapid.T, n int) int {
	x := 0
	for m := 1; m < n; m *= 2 {
		x *= 2
		if bit.Draw(t, "") {
			x++
		}
	}
	return x % n
}

var bit = rapid.Bool()

func randomWorld(t *rapid.T) *world {
	all := []string{"H", "M", "T", "X"}[:2+pick(t, 3)]
	w := newWorld(1+pick(t, len(all)), all...)
	w.set = Settings{RelistAfter: time.Second, ReachAfter: 500 * time.Millisecond, WindowBytes: 300, JoinLagBytes: 200, QuietAfter: Time(1+pick(t, 3)) * 500 * time.Millisecond, QuietPingEvery: 2 * time.Second}
	for _, n := range w.nodes {
		n.rate = 0.9 + 0.1*float64(pick(t, 3))
		n.lazy = true
		n.start()
		n.uninvited = false
	}
	return w
}

func (w *world) event(t *rapid.T) {
	n := w.nodes[pick(t, len(w.nodes))]
	switch x := pick(t, 120); {
	case x < 55:
		if len(w.links) > 0 {
			i := 0
			if x < 5 {
				i = pick(t, len(w.links))
			}
			w.deliver(i, x == 0)
		}
	case x < 57:
		if len(w.links) > 0 {
			w.links = w.links[1:]
		}
	case x < 70:
		w.now += Time(1+pick(t, 400)) * time.Millisecond
		for _, n := range w.nodes {
			n.step(Tick{})
		}
	case x < 80:
		if n.m != nil {
			n.write(fmt.Sprintf("f%d", len(w.frames)))
		}
	case x < 95:
		if n.m != nil {
			n.settle()
			n.fsync()
		}
	case x < 98:
		if n.m != nil {
			n.take(x == 97)
		}
	case x < 99:
		if n.m != nil {
			n.kill(pick(t, 3))
			if x == 98 && pick(t, 10) == 0 {
				n.empty()
			}
		}
	case x < 102:
		if n.m == nil {
			n.start()
		}
	case x < 103:
		o := w.nodes[pick(t, len(w.nodes))]
		w.cut[[2]string{n.name, o.name}] = true
	case x < 106:
		clear(w.cut)
	case x < 107:
		switch pick(t, 5) {
		case 0:
			w.unmap(w.nodes[pick(t, len(w.nodes))].name)
		case 1:
			var names []string
			for _, n := range w.nodes {
				if pick(t, 3) == 0 {
					names = append(names, n.name)
				}
			}
			w.saySlow(names...)
		case 2:
			w.lapsed = !w.lapsed
			if pick(t, 2) == 0 { // else the heads do not learn of it yet
				w.saySlow(w.slow...)
			}
		default:
			w.away = !w.away
		}
	case x < 111:
		w.listStep()
	case x < 115:
		w.answerStep()
	case x < 116:
		if n.m != nil {
			n.fail()
		}
	case x < 117:
		n.step(Lease{})
	case x < 118:
		n.step([]Input{Leaving{}, Wanted{}, Linked{w.nodes[pick(t, len(w.nodes))].member.Server}}[pick(t, 3)])
	default:
		for range 30 { // so that chains form
			if len(w.links) > 0 {
				w.deliver(0, false)
			}
		}
	}
	w.check()
}

func (w *world) listedDiskLives() bool {
	return slices.ContainsFunc(w.nodes, func(n *node) bool { return slices.Contains(w.row.list, n.member) })
}

// recovers ends all faults, and returns the failures of the recovery.
func (w *world) recovers() string {
	clear(w.cut)
	w.away, w.lapsed = false, false
	w.unmap("")
	w.saySlow()
	for _, n := range w.nodes {
		n.lazy = false
		if n.m != nil && n.m.leaving { // its process ends, as it said
			n.kill(len(n.log))
		}
		if n.m == nil {
			n.start()
		}
		n.settle()
		n.fsync()
	}
	w.run(5 * time.Second)
	for range 3 { // a head that began without all may have to be replaced
		h := w.node(w.row.holder0(w))
		if epoch, leads := h.m.Epoch(); !leads || epoch != w.row.epoch || !slices.Contains(w.row.list, h.member) {
			for _, n := range w.nodes {
				if slices.Contains(w.row.list, n.member) {
					n.take(false)
					break
				}
			}
		}
		w.run(15 * time.Second)
	}
	h := w.node(w.row.holder)
	if !h.write("last") {
		return "no row is taken after the faults;"
	}
	w.run(5 * time.Second)
	if last := h.log[len(h.log)-1].serial; !slices.Contains(w.acked, last) {
		return "nothing is acknowledged after the faults;"
	}
	for _, n := range w.nodes { // a chain that is quiet by now wakes for a read
		n.step(Wanted{})
	}
	w.run(600 * time.Millisecond)
	for _, n := range w.nodes {
		if !slices.Equal(n.log, h.log) {
			return n.name + " has another log than " + h.name + ";"
		}
		if !n.m.Sure(n.clock()) {
			return n.name + " is not sure;"
		}
	}
	return ""
}

// saySlow has these nodes say that their disks are slow.
func (w *world) saySlow(names ...string) {
	w.slow = names
	for _, n := range w.nodes {
		n.step(w.placements())
	}
}

// unmap has the map place all nodes but one; "": all.
func (w *world) unmap(name string) {
	w.unmapped = name
	for _, n := range w.nodes {
		n.step(w.placements())
	}
}

func (r *row) holder0(w *world) string {
	if r.holder == "" {
		return w.nodes[0].name
	}
	return r.holder
}
