package unload

import (
	"slices"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/point"
)

// heirWorld is the heir in the model: two servers that may lead it, and the slices of earlier leaders of its parent.
type heirWorld struct {
	rows      map[point.Nanos]ranked
	leader    int         // by the lease row
	epoch     point.Epoch // of the lease row
	leads     bool        // the process that acquired the lease still runs
	refusals  [2]*Refusals
	strays    []stray
	inserting []stray
	answers   []asking
	broken    rule // that is left out
}

// stray is a slice on its way, or in the midst of its insertion.
type stray struct {
	rows   map[point.Nanos]ranked
	parent point.Epoch
	under  point.Epoch
	to     int

	entered bool
}

// rule is one of those that keep slices of earlier leaders out.
type rule string

const (
	everyRule     rule = ""
	refuses       rule = "a server refuses slices of the epochs that were ended"
	waitsInserted rule = "a server answers once slices that entered are inserted"
	underItsLease rule = "a server accepts slices under the lease that they name alone"
)

var (
	heirNames = []topology.ServerID{"a", "b"}
	theParent = lease.Partition{Table: "t", ID: 1}
)

func newHeirWorld() *heirWorld {
	return &heirWorld{rows: map[point.Nanos]ranked{}, epoch: 1, leads: true, refusals: [2]*Refusals{{}, {}}}
}

// enter has a slice arrive: it begins to be inserted, or is refused.
func (h *heirWorld) enter(i int) {
	x := h.strays[i]
	h.strays = slices.Delete(h.strays, i, i+1)
	if !h.leads || x.to != h.leader || x.under != h.epoch && h.broken != underItsLease {
		return
	}
	if x.entered = h.refusals[x.to].Enter(theParent, x.parent); x.entered || h.broken == refuses {
		h.inserting = append(h.inserting, x)
	}
}

// insert inserts the rows of a slice with their ranks, unless the process has ended meanwhile.
func (h *heirWorld) insert(i int) {
	if !h.leads {
		return
	}
	x := h.inserting[i]
	h.inserting = slices.Delete(h.inserting, i, i+1)
	h.write(x)
	if x.entered {
		h.refusals[x.to].Leave(theParent, x.parent)
	}
}

// pass ends the slices on their way: they arrived in time, or never will.
func (h *heirWorld) pass() {
	for h.leads && len(h.inserting) > 0 {
		h.insert(0)
	}
	h.strays, h.inserting = nil, nil
}

func (h *heirWorld) write(x stray) {
	for at, r := range x.rows {
		if have, ok := h.rows[at]; !ok || have.rank < r.rank {
			h.rows[at] = r
		}
	}
}

// end has a request to end slices arrive.
func (h *heirWorld) end(x asking) {
	h.refusals[slices.Index(heirNames, x.Server)].End(theParent, x.epoch)
	h.answers = append(h.answers, x)
}

// answer ends a request; false: slices are still being inserted.
func (h *heirWorld) answer(i int) (x asking, ok bool) {
	x = h.answers[i]
	if !h.refusals[slices.Index(heirNames, x.Server)].Ended(theParent, x.epoch) && h.broken != waitsInserted {
		return x, false
	}
	h.answers = slices.Delete(h.answers, i, i+1)
	return x, true
}

// restart ends a server's process and begins another, which knows nothing, and does not have the lease that the row still names. It returns the requests that it
// did not answer.
func (h *heirWorld) restart(s int) (unanswered []asking) {
	h.refusals[s] = &Refusals{}
	all := h.answers
	h.answers = nil
	for _, x := range all {
		if x.Server == heirNames[s] {
			unanswered = append(unanswered, x)
		} else {
			h.answers = append(h.answers, x)
		}
	}
	if s == h.leader {
		h.leads = false
	}
	return unanswered
}

// acquire has a server lead the heir under the next epoch. An insert under way is in the log that it begins with, or never will be.
func (h *heirWorld) acquire(s int, inserted func() bool) {
	for _, x := range h.inserting {
		if inserted() {
			h.write(x)
		}
		if h.leads && x.entered {
			h.refusals[x.to].Leave(theParent, x.parent)
		}
	}
	h.inserting = nil
	h.leader, h.leads = s, true
	h.epoch++
}

// TestWhatKeepsEarlierSlicesOut plays histories in which a leader is suspended with a slice on its way and the next one deletes its row. Each fails without one of the rules.
func TestWhatKeepsEarlierSlicesOut(t *testing.T) {
	cases := []struct {
		name  string
		needs rule
		play  func(w *unloadWorld)
	}{
		{"the slice arrives after the deletion", refuses, func(w *unloadWorld) {
			w.ended()
			w.deleted()
			w.stray(0)
			w.inserted()
		}},
		{"the slice is being inserted while its end is asked for", waitsInserted, func(w *unloadWorld) {
			w.stray(0)
			w.ended()
			if !w.permitted { // the answer waits
				w.inserted()
				w.answer(0)
			}
			w.deleted()
			w.inserted()
		}},
		{"the heir's leader restarts between the answer and the slice", underItsLease, func(w *unloadWorld) {
			w.ended()
			w.deleted()
			w.restart(0)
			w.heirs.acquire(0, func() bool { return false })
			w.stray(0)
			w.inserted()
		}},
		{"the heir's leader restarts before it is asked", underItsLease, func(w *unloadWorld) {
			w.restart(0)
			w.ended()
			w.deleted()
			w.restart(0)
			w.heirs.acquire(0, func() bool { return false })
			w.stray(0)
			w.inserted()
		}},
		{"another leads the heir when its leader is asked", underItsLease, func(w *unloadWorld) {
			w.heirs.acquire(1, func() bool { return false })
			w.ended()
			w.deleted()
			w.restart(0)
			w.heirs.acquire(0, func() bool { return false })
			w.stray(0)
			w.inserted()
		}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			for _, broken := range []rule{everyRule, c.needs} {
				w := emptyUnloadWorld(true)
				w.had(5)
				w.lead(Begin{First: true})
				w.pass(1001)
				r := w.reads[0]
				w.reads = nil
				w.step(Read{ID: r.ID, To: r.To, Rows: 1, Bytes: 1})
				w.takeOver(Begin{})
				w.heirs.broken = broken
				w.last++
				w.erasure = &erasure{id: w.last, lo: 5, hi: 5}
				w.step(Delete{w.last})
				c.play(w)
				if wrong := w.wrong(); (wrong != "") != (broken != everyRule) {
					t.Errorf("without the rule %q: %s", broken, wrong)
				}
			}
		})
	}
}

// TestSlicesUnderTheSameEpochAreNotEnded: a leader whose lease lapsed with a slice on its way, and that leads again under its epoch, cannot have heirs refuse it.
func TestSlicesUnderTheSameEpochAreNotEnded(t *testing.T) {
	w := emptyUnloadWorld(true)
	w.had(5)
	w.lead(Begin{})
	w.pass(1001)
	r := w.reads[0]
	w.reads = nil
	w.step(Read{ID: r.ID, To: r.To, Rows: 1, Bytes: 1})
	w.takeOver(Begin{Again: true})
	w.last++
	w.erasure = &erasure{id: w.last, lo: 5, hi: 5}
	w.step(Delete{w.last})
	if len(w.finds) > 0 {
		w.ended()
	}
	if w.permitted {
		w.deleted()
		w.stray(0)
		w.inserted()
		t.Fatalf("a deletion may begin, and the slice arrives after it: %s", w.wrong())
	}
	w.pass(int(w.m.Wake().Sub(w.now) / time.Millisecond))
	if !w.permitted {
		t.Error("a deletion may not begin when the slice can be on its way no more")
	}
}

// restart restarts a server: those that wait for its answer see the connection break.
func (w *unloadWorld) restart(s int) {
	for _, x := range w.heirs.restart(s) {
		if x.m == w.m {
			w.step(Answered{ID: x.ID, Server: x.Server})
		}
	}
}

// ended has the new leader ask the heir's leader, which answers if it may.
func (w *unloadWorld) ended() {
	w.found(0)
	w.ask(0, false, false)
	w.answer(0)
	if len(w.heirs.answers) == 0 {
		w.found(0)
	}
}

// deleted ends the deletion.
func (w *unloadWorld) deleted() {
	if len(w.finds) > 0 {
		w.found(0)
	}
	if !w.permitted {
		panic("the deletion may not begin")
	}
	delete(w.parent, 5)
	w.step(Deleted{w.erasure.id})
	delete(w.heirs.rows, 5)
	delete(w.want, 5)
	w.erasure = nil
}

func (w *unloadWorld) inserted() {
	for len(w.heirs.inserting) > 0 {
		w.insert(0)
	}
}

// TestDeletionsWaitWhereAServerDoesNotAnswer: one of two servers is of an older build, or away.
func TestDeletionsWaitWhereAServerDoesNotAnswer(t *testing.T) {
	now := time.Unix(1700000000, 0)
	m := New(Settings{}, 0, 100)
	m.Step(now, Begin{})
	m.Step(now, Delete{1})
	m.Step(now, Leaders{ID: 1, Known: true, Servers: heirNames})
	for now.Sub(time.Unix(1700000000, 0)) < 9*time.Second {
		m.Step(now, Answered{ID: 1, Server: "a", OK: true})
		m.Step(now, Answered{ID: 1, Server: "b"})
		now = now.Add(100 * time.Millisecond)
		m.Step(now, Tick{})
		if out := m.Step(now, Leaders{ID: 1, Known: true, Servers: heirNames}); slices.Contains(out, Effect(Permit{1})) {
			t.Fatalf("after %v a deletion may begin", now)
		}
	}
	if out := m.Step(now.Add(time.Second), Tick{}); !slices.Contains(out, Effect(Permit{1})) {
		t.Fatalf("after ten seconds: %v", out)
	}
}

func TestRefusals(t *testing.T) {
	var r Refusals
	p := theParent
	expect := func(what string, got, want bool) {
		t.Helper()
		if got != want {
			t.Errorf("%s: %v", what, got)
		}
	}
	expect("enter 3", r.Enter(p, 3), true)
	expect("enter 4", r.Enter(p, 4), true)
	expect("end below 4", r.End(p, 4), true)
	expect("enter 3 again", r.Enter(p, 3), false)
	expect("enter 4 again", r.Enter(p, 4), true)
	expect("of another table", r.Enter(lease.Partition{Table: "u", ID: 1}, 3), true)
	expect("ended below 4", r.Ended(p, 4), false)
	r.Leave(p, 3)
	expect("ended below 4, after it left", r.Ended(p, 4), true)
	expect("ended below 5", r.Ended(p, 5), false)
	expect("a late end below 2", r.End(p, 2), true)
	expect("enter 3 after it", r.Enter(p, 3), false)
	r.EnterUnnamed("t")
	r.EnterUnnamed("t")
	r.LeaveUnnamed("t")
	expect("ended beside one that is not named", r.Ended(p, 4), false)
	expect("ended in another table", r.Ended(lease.Partition{Table: "u", ID: 1}, 3), true)
	r.LeaveUnnamed("t")
	expect("ended after it", r.Ended(p, 4), true)
	for i := range RefusalsMax {
		r.End(lease.Partition{Table: "t", ID: point.PartitionID(100 + i)}, 1)
	}
	expect("one too many", r.End(lease.Partition{Table: "v"}, 1), false)
	expect("one that is known", r.End(p, 9), true)
}
