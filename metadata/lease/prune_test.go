package lease

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/point"
)

// unassign removes a partition's placement from every server, from some sooner than from others. The rest of the
// table is assigned again, since its row changed.
func (w *world) unassign(part Partition) {
	w.parts = slices.DeleteFunc(w.parts, func(p Partition) bool { return p == part })
	w.change(Guard{Partition: part, Dropped: true})
	w.tracef("%s is dropped", part)
	for i, p := range w.procs {
		w.after(w.delay(), func() {
			p.do(func() { p.step(Unassigned{part}) })
			if w.procs[i] == p && !p.dead {
				p.do(func() { w.tellAll(i) })
			}
		})
	}
}

// bear makes a partition that is placed on all servers.
func (w *world) bear(part Partition) {
	w.parts = append(w.parts, part)
	delete(w.acted, part) // by an earlier partition of that number
	w.change()
	w.tracef("%s is made", part)
	for i, p := range w.procs {
		w.after(w.delay(), func() {
			if w.procs[i] == p && !p.dead {
				p.do(func() { w.tellAll(i) })
			}
		})
	}
}

// tellAll assigns a server all partitions there are, by the table as it is now.
func (w *world) tellAll(i int) {
	p := w.procs[i]
	var placements []topology.Placement
	for j, q := range w.procs {
		placements = append(placements, topology.Placement{ID: point.PlacementID(j + 1), Server: q.self.Server})
	}
	row, _, _ := w.store.Get(context.Background(), tableKey("cpu"))
	for _, part := range w.parts {
		p.step(Assigned{Partition: part, Placement: placements[i].ID, Placements: placements, TableRow: row.Revision, Seq: w.txn, BrickEpoch: w.bricks[p.self.Store][part]})
	}
}

// sweepOf returns the writes with which the master deletes the rows of a partition that neither the map of transaction seq nor any later one
// has. The commit compares the lease row, after the master saw that no server holds it. An acquisition by an older map, which finds no row
// any more, finds the Swept row. (metadata/master sweeps many at a time, so that first acquisitions under way conflict once.)
func sweepOf(p Partition, seq uint64) []coord.Write {
	return []coord.Write{{Key: RowKey(p), Delete: true}, {Key: bornKey(p), Delete: true}, {Key: SweptKey(p.Table), Value: Swept{Seq: seq}.Encode()}}
}

// forget deletes a dropped partition's rows once no server holds it, as the master does; it reports whether they are gone.
func (w *world) forget(part Partition) bool {
	row, ok, _ := w.store.Get(context.Background(), RowKey(part))
	if ok {
		l, err := DecodeLease(row.Value)
		if err != nil {
			panic(err)
		}
		if l.State == Held && slices.ContainsFunc(w.procs, func(p *process) bool { return !p.dead && p.self.Boot == l.Boot }) {
			return false
		}
	}
	writes := sweepOf(part, w.txn)
	if w.broken == unguarded {
		writes = writes[:2]
	}
	if _, ok := w.commit([]coord.Condition{{Key: RowKey(part), Revision: row.Revision}}, writes); !ok {
		return false
	}
	w.tracef("%s is forgotten", part)
	delete(w.listed, part)
	return true
}

// known returns the partitions that a server has entries of.
func (p *process) known() (out []Partition) {
	for _, e := range p.actor.(*Machine).sorted() {
		out = append(out, e.p)
	}
	return out
}

// takenAfterTheDrop makes partitions and drops them while acquisitions are on their way, and returns how many were acquired after they were gone.
func takenAfterTheDrop(seed uint64, rule string) (n int) {
	w := newWorld(seed, 2, 2)
	w.broken = rule
	for i := range w.procs {
		w.start(i, true)
	}
	w.run(3 * time.Second)
	for next := point.PartitionID(3); next < 40; next++ {
		p := Partition{"cpu", next}
		w.bear(p)
		w.run(w.now + time.Duration(w.rng.IntN(40))*time.Millisecond)
		w.unassign(p)
		if !w.forget(p) {
			continue
		}
		w.run(w.now + 500*time.Millisecond)
		if w.listed[p].Epoch > 0 {
			n++
		}
	}
	return n
}

// TestNobodyTakesWhatWasDropped, and the model notices it if maps change without guards in the lease rows.
func TestNobodyTakesWhatWasDropped(t *testing.T) {
	seen := 0
	for seed := range uint64(20) {
		if n := takenAfterTheDrop(seed, ""); n > 0 {
			t.Fatalf("seed %d: %d partitions were taken after they were dropped", seed, n)
		}
		seen += takenAfterTheDrop(seed, unguarded)
	}
	if seen == 0 {
		t.Error("without a word in the lease rows the same takes do no harm: the test is too tame")
	}
	t.Logf("without guards: %d", seen)
}

// Partitions are made, dropped and forgotten under all faults, some under the number of an earlier one: the servers'
// entries stay as few as the partitions, and nothing that was forgotten comes back and acts.
func TestEntriesAreOfWhatThereIs(t *testing.T) {
	made, forgotten := 0, 0
	for _, seed := range seeds(t, 30) {
		w := newWorld(seed, 2+int(seed%2), 3)
		w.meddles = true
		dice := rand.New(rand.NewPCG(seed, 99))
		for i, p := range w.procs {
			p.rate = []float64{0.9, 1, 1.1}[dice.IntN(3)]
			w.start(i, true)
		}
		storm(w, 120*time.Second)
		next := point.PartitionID(4)
		var gone []Partition // dropped, and not yet forgotten
		var again []Partition
		var churn func()
		churn = func() {
			if w.now > 120*time.Second {
				return
			}
			switch p := w.parts[dice.IntN(len(w.parts))]; {
			case len(w.parts) > 1 && dice.IntN(2) == 0:
				w.unassign(p)
				gone = append(gone, p)
			case len(w.parts) < 4 && len(again) > 0 && dice.IntN(2) == 0:
				w.bear(again[0])
				again = again[1:]
			case len(w.parts) < 4:
				w.bear(Partition{"cpu", next})
				next++
				made++
			}
			w.after(time.Duration(dice.IntN(3000))*time.Millisecond, churn)
		}
		w.after(5*time.Second, churn)
		var master func()
		master = func() {
			gone = slices.DeleteFunc(gone, func(p Partition) bool {
				if !w.forget(p) {
					return false
				}
				forgotten++
				// Requests of its first life are over by then.
				w.after(20*time.Second, func() { again = append(again, p) })
				return true
			})
			w.after(time.Second, master)
		}
		w.after(5*time.Second, master)
		w.run(120 * time.Second)
		w.heal()
		w.run(240 * time.Second)
		if w.knowsMore() {
			w.run(900 * time.Second) // every server lists all rows once: a change that the watch left out is seen then
		}
		if w.failure != "" {
			report(t, w, seed, w.failure)
		}
		if len(gone) > 0 {
			report(t, w, seed, fmt.Sprintf("%v are held for ever", gone))
		}
		for _, p := range w.procs {
			for _, known := range p.known() {
				if !slices.Contains(w.parts, known) {
					e := p.actor.(*Machine).entries[known]
					report(t, w, seed, fmt.Sprintf("%s still knows %s: %+v", p.self.Server, known, *e))
				}
			}
		}
	}
	t.Logf("%d partitions made, %d forgotten", made, forgotten)
	if forgotten < 10*len(seeds(t, 30)) {
		t.Error("little was forgotten: this proves nothing")
	}
}

// knowsMore reports whether a server has an entry of a partition that is not there.
func (w *world) knowsMore() bool {
	return slices.ContainsFunc(w.procs, func(p *process) bool {
		return slices.ContainsFunc(p.known(), func(known Partition) bool { return !slices.Contains(w.parts, known) })
	})
}

// A list that was requested before a partition was forgotten, and that arrives after, does not bring it back.
func TestForgottenPartitionStaysForgotten(t *testing.T) {
	h := newHand(t)
	p := Partition{"cpu", 1}
	h.step(0, Assignments{[]Assigned{assigned(p)}})
	renew := h.id(h.step(ms(10), Answer{ID: 1, Outcome: Done, Revision: 1}), Renew, false)
	scan := h.id(h.step(ms(20), Answer{ID: renew, Outcome: Done, Revision: 2}), Renew, true)
	ours := []coord.Row{{Key: RowKey(p), Value: ourRow.Encode(), Revision: 3}, {Key: BornKey(p), Revision: 3}}
	h.step(ms(30), Answer{ID: scan, Outcome: Done, Revision: 4, Rows: ours})
	if _, ok := h.m.MayAct(p, ms(31)); !ok {
		t.Fatal("a row that names us is not ours")
	}
	release := h.id(stopIt(h, p), Acquire, false)
	h.step(ms(50), Answer{ID: release, Outcome: Done, Revision: 5})
	h.step(ms(60), Watched{[]coord.Event{
		{Row: coord.Row{Key: RowKey(p), Revision: 6}, Deleted: true}, {Row: coord.Row{Key: BornKey(p), Revision: 6}, Deleted: true}}})
	if len(h.m.entries) != 0 || len(h.m.sorted()) != 0 {
		t.Errorf("%v is known", h.m.order)
	}
	h.step(ms(70), Listed{Rows: ours, Revision: 4}) // from before
	if len(h.m.entries) != 0 {
		t.Error("it came back")
	}
	h.step(ms(90), Listed{Revision: 6})
	// Inputs from now on are older, and ignored.
	h.step(ms(100), Watched{[]coord.Event{{Row: coord.Row{Key: RowKey(p), Value: ourRow.Encode(), Revision: 3}}}})
	h.step(ms(110), Listed{Rows: ours, Revision: 4})
	h.step(ms(120), assigned(p))
	if _, ok := h.m.MayAct(p, ms(121)); ok {
		t.Error("a row that was forgotten lets us act")
	}
}

// stopIt removes the placement and returns the machine's requests once nothing acts any more.
func stopIt(h *hand, p Partition) []Effect {
	h.step(ms(40), Unassigned{p})
	return h.step(ms(41), Stopped{Partition: p})
}
