package lease

import (
	"context"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/point"
)

// Cases too rare for storms, each made by hand.

var ourRow = Lease{State: Held, Holder: "s1", Boot: "b1", Store: "d1", Epoch: 5, InSync: []Member{{1, "s1", "d1"}}}

// hand holds a machine and answers it one request at a time. Requests that end a lapse are answered well and at once, unless kept.
type hand struct {
	t    *testing.T
	m    *Machine
	now  Time
	keep bool
}

func newHand(t *testing.T) *hand {
	m, err := New(Self{"s1", "b1", "d1"}, Settings{}, rand.New(rand.NewPCG(1, 1)))
	if err != nil {
		t.Fatal(err)
	}
	return &hand{t: t, m: m}
}

func (h *hand) step(at Time, in Input) []Effect {
	h.now = at
	out := h.m.Step(at, in, nil)
	for i := 0; i < len(out) && !h.keep; i++ {
		switch e := out[i].(type) {
		case Commit:
			if len(e.Writes) == 0 {
				out = h.m.Step(at, Answer{ID: e.ID, Outcome: Done}, out)
			}
		case List:
			if e.Prefix == tableKey("cpu") {
				out = h.m.Step(at, Answer{ID: e.ID, Outcome: Done}, out)
			}
		}
	}
	return out
}

// id finds the one request among effects.
func (h *hand) id(out []Effect, priority Priority, list bool) uint64 {
	h.t.Helper()
	for _, e := range out {
		switch e := e.(type) {
		case Commit:
			if !list && e.Priority == priority {
				return e.ID
			}
		case List:
			if list && e.Priority == priority {
				return e.ID
			}
		}
	}
	h.t.Fatalf("no such request among %v", out)
	return 0
}

func assigned(p Partition) Assigned {
	return Assigned{Partition: p, Placement: 1, Placements: []topology.Placement{{ID: 1, Server: "s1"}}, TableRow: 1}
}

func TestAProofFromBeforeALapseLetsNobodyAct(t *testing.T) {
	h := newHand(t)
	h.keep = true
	p := Partition{"cpu", 1}
	h.step(0, assigned(p))
	renew := h.id(h.step(ms(10), Answer{ID: 1, Outcome: Done, Revision: 1}), Renew, false)
	scan := h.id(h.step(ms(20), Answer{ID: renew, Outcome: Done, Revision: 2}), Renew, true)
	beat := coord.Row{Key: BeatKey("s1"), Value: Beat{Server: "s1", Boot: "b1", Store: "d1", N: 1}.Encode(), Revision: 2}
	proof := h.id(h.step(ms(30), Answer{ID: scan, Outcome: Done, Revision: 20, Rows: []coord.Row{beat, {Key: RowKey(p), Value: ourRow.Encode(), Revision: 19}}}), Renew, false)
	// The proof is late, renewals fail, and the lease that was never begun has expired.
	renew = h.id(h.step(ms(1200), Tick{}), Renew, false)
	h.step(ms(2200), Answer{ID: renew, Outcome: Unknown})
	find := h.id(h.step(ms(3500), Tick{}), Renew, true)
	renew = h.id(h.step(ms(3510), Answer{ID: find, Outcome: Done, Revision: 20, Rows: []coord.Row{beat}}), Renew, false)
	h.step(ms(3520), Answer{ID: renew, Outcome: Done, Revision: 21})
	h.keep = false
	again := false
	for _, e := range h.m.Step(ms(3530), Answer{ID: proof, Outcome: Done, Revision: 22}, nil) {
		c, ok := e.(Commit)
		again = again || ok && len(c.Writes) == 0
	}
	if _, ok := h.m.MayAct(p, ms(3531)); ok || !again {
		t.Errorf("acts %v, asks again %v: what was compared before the heartbeat lapsed says nothing of what others took meanwhile", ok, again)
	}
}

func ms(n int) Time { return time.Duration(n) * time.Millisecond }

func TestChangeFromBeforeTheListIsNoNews(t *testing.T) {
	h := newHand(t)
	p := Partition{"cpu", 1}
	h.step(0, Tick{})
	renew := h.id(h.step(ms(10), Answer{ID: 1, Outcome: Done, Revision: 1}), Renew, false)
	scan := h.id(h.step(ms(20), Answer{ID: renew, Outcome: Done, Revision: 2}), Renew, true)
	h.step(ms(30), Answer{ID: scan, Outcome: Done, Revision: 50})
	old := Watched{[]coord.Event{{Row: coord.Row{Key: RowKey(p), Value: ourRow.Encode(), Revision: 40}}}}
	h.step(ms(40), old)
	take := h.id(h.step(ms(50), assigned(p)), Acquire, false)
	h.step(ms(55), Answer{ID: take, Outcome: Conflict})
	if _, ok := h.m.MayAct(p, ms(56)); ok {
		t.Error("the list at 50 had no such row, so what it was at 40 is past")
	}
	old.Events[0].Revision = 60
	h.step(ms(60), old)
	if epoch, ok := h.m.MayAct(p, ms(61)); !ok || epoch != 5 {
		t.Error("a row at 60 that names us is ours")
	}
}

// TestARemovedProhibitionStaysRemoved: the watch shows that a person withdrew it, then the answer to an earlier list
// arrives; and the other way round: a prohibition written after the list is not forgotten.
func TestARemovedProhibitionStaysRemoved(t *testing.T) {
	h := newHand(t)
	p := Partition{"cpu", 1}
	h.step(0, assigned(p))
	no := Prohibit(p, "s1", Note{Who: "ann"})
	renew := h.id(h.step(ms(10), Answer{ID: 1, Outcome: Done, Revision: 1}), Renew, false)
	scan := h.id(h.step(ms(20), Answer{ID: renew, Outcome: Done, Revision: 2}), Renew, true)
	h.step(ms(30), Watched{[]coord.Event{{Row: coord.Row{Key: no.Key, Revision: 9}, Deleted: true}}})
	rows := []coord.Row{{Key: no.Key, Value: no.Value, Revision: 7}, {Key: RowKey(p), Value: ourRow.Encode(), Revision: 6}}
	h.step(ms(40), Answer{ID: scan, Outcome: Done, Revision: 8, Rows: rows})
	if _, ok := h.m.MayAct(p, ms(41)); !ok {
		t.Error("a prohibition that was deleted is back by a list from before")
	}

	h = newHand(t)
	h.step(0, assigned(p))
	renew = h.id(h.step(ms(10), Answer{ID: 1, Outcome: Done, Revision: 1}), Renew, false)
	scan = h.id(h.step(ms(20), Answer{ID: renew, Outcome: Done, Revision: 2}), Renew, true)
	h.step(ms(30), Watched{[]coord.Event{{Row: coord.Row{Key: no.Key, Value: no.Value, Revision: 9}}}})
	h.step(ms(40), Answer{ID: scan, Outcome: Done, Revision: 8, Rows: rows[1:]})
	if _, ok := h.m.MayAct(p, ms(41)); ok {
		t.Error("a prohibition that was written is forgotten by a list from before")
	}
	h.step(ms(50), Listed{Revision: 12, Rows: rows[1:]})
	if h.m.prohibited(h.m.entries[p], "s1") {
		t.Error("a list from after has no prohibition, and it still holds")
	}
}

func TestRowThatWasDeletedUnseenIsPutBackByNobody(t *testing.T) {
	for _, unseen := range []bool{true, false} {
		w := newWorld(1, 2, 1)
		w.start(0, true)
		w.start(1, true)
		w.run(5 * time.Second)
		p := w.parts[0]
		first := w.leaders()[p]
		w.kill(first)
		other := w.procs[1-first]
		if unseen {
			// Its watch missed changes: between its last view and the list there may have been another holder.
			if _, _, err := w.store.Commit(context.Background(), nil, []coord.Write{{Key: RowKey(p), Delete: true}}); err != nil {
				t.Fatal(err)
			}
			other.relist()
		} else {
			w.delete(RowKey(p))
		}
		w.run(20 * time.Second)
		if _, led := w.leaders()[p]; led == unseen {
			t.Errorf("deleted unseen %v: led %v\n%v", unseen, led, w.trace)
		}
	}
}

func TestUnreadableRowIsLedByNobody(t *testing.T) {
	w := newWorld(1, 2, 1)
	w.start(0, true)
	w.start(1, true)
	w.run(5 * time.Second)
	w.store.Commit(context.Background(), nil, []coord.Write{{Key: RowKey(w.parts[0]), Value: []byte(`{"v":9}`)}})
	for _, p := range w.procs {
		p.relist()
	}
	w.run(30 * time.Second)
	if who := w.leaders(); len(who) != 0 {
		t.Errorf("led by %v", who)
	}
}

func TestEpochIsAboveAllThatWasSeen(t *testing.T) {
	w := newWorld(1, 1, 1)
	w.start(0, true)
	p := w.parts[0]
	w.procs[0].step(Assigned{Partition: p, Placement: 1, Placements: []topology.Placement{{ID: 1, Server: "s1"}}, TableRow: 1, Seq: 1, BrickEpoch: 900})
	w.run(5 * time.Second)
	if epoch, ok := w.procs[0].actor0(p); !ok || epoch != point.Epoch(901) {
		t.Errorf("epoch %d after the brick's 900", epoch)
	}
}

func TestOfferMovesOnlyToSomebodyWhoCanTake(t *testing.T) {
	w := newWorld(1, 2, 1)
	w.start(0, true)
	w.start(1, true)
	w.run(5 * time.Second)
	p := w.parts[0]
	first := w.leaders()[p]
	w.kill(1 - first)
	w.run(15 * time.Second)
	w.procs[first].step(Offer{Partition: p, Why: "too much to do"})
	w.run(w.now + 100*time.Millisecond)
	if who, led := w.leaders()[p]; !led || who != first {
		t.Errorf("offered to nobody, led %v by %d, want %d all the time", led, who, first)
	}
	w.start(1-first, false)
	w.run(w.now + 10*time.Second)
	w.procs[first].step(Offer{Partition: p, Why: "too much to do"})
	w.run(w.now + 10*time.Second)
	if who, led := w.leaders()[p]; !led || who == first {
		t.Errorf("offered, led %v by %d, want the other", led, who)
	}
}

// TestStopsDistinguishesALapseFromALoss: after a lapse alone the row still names us, and a placement alone in sync may rely on that.
func TestStopsDistinguishesALapseFromALoss(t *testing.T) {
	lead := func() (*hand, Partition) {
		h := newHand(t)
		p := Partition{"cpu", 1}
		h.step(0, Assignments{[]Assigned{assigned(p)}})
		renew := h.id(h.step(ms(10), Answer{ID: 1, Outcome: Done, Revision: 1}), Renew, false)
		scan := h.id(h.step(ms(20), Answer{ID: renew, Outcome: Done, Revision: 2}), Renew, true)
		take := h.id(h.step(ms(30), Answer{ID: scan, Outcome: Done, Revision: 3}), Acquire, false)
		h.step(ms(35), Answer{ID: take, Outcome: Conflict})
		h.step(ms(40), Watched{[]coord.Event{{Row: coord.Row{Key: RowKey(p), Value: ourRow.Encode(), Revision: 60}}}})
		if _, ok := h.m.MayAct(p, ms(41)); !ok {
			t.Fatal("a row that names us is not ours")
		}
		return h, p
	}
	stops := func(out []Effect) Stops {
		for _, e := range out {
			if s, ok := e.(Stops); ok {
				return s
			}
		}
		t.Fatalf("no Stops among %v", out)
		return Stops{}
	}
	h, _ := lead()
	if s := stops(h.step(ms(3100), Tick{})); !s.Lapsed {
		t.Errorf("%+v after the heartbeat ran out", s)
	}
	h, p := lead()
	lost := ourRow
	lost.Holder, lost.Boot = "s2", "b2"
	if s := stops(h.step(ms(50), Watched{[]coord.Event{{Row: coord.Row{Key: RowKey(p), Value: lost.Encode(), Revision: 61}}}})); s.Lapsed {
		t.Errorf("%+v after another took the row", s)
	}
	h, p = lead()
	if s := stops(h.step(ms(50), Watched{[]coord.Event{{Row: coord.Row{Key: RowKey(p), Value: ourRow.TakenOffline(Note{Who: "ann"}).Encode(), Revision: 61}}}})); s.Lapsed {
		t.Errorf("%+v after the row was taken offline", s)
	}
}
