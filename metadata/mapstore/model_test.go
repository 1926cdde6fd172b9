package mapstore

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
)

// TestRandomWorlds plays random lives of four metadata servers, of which three begin in the list: proposals at several
// coordinators at once, the same proposal at two, lists that change, servers away or crashed, requests and answers lost,
// files swept in between. The invariants are checked after every step; in the end, when all is well again, all agree and
// changes go through.
func TestRandomWorlds(t *testing.T) {
	runs := 600
	if testing.Short() {
		runs = 100
	}
	ends := map[string]int{}
	for seed := range uint64(runs) {
		w := randomWorld(seed, 120)
		if w.broken != "" {
			t.Fatalf("seed %d: %s\n%s\n%s", seed, w.broken, strings.Join(w.trace, "\n"), w.draw())
		}
		for _, r := range w.txns {
			if r.done != nil {
				ends[fmt.Sprint(r.t.goal, resultName(r.done.Err, "done"))]++
			}
		}
		ends["swept"] += strings.Count(strings.Join(w.trace, "\n"), " sweeps ")
	}
	for _, want := range []string{"0done", "0stale", "0unavailable", "3done", "4done", "6done", "swept"} {
		if ends[want] < runs/100 {
			t.Errorf("%s only %d times: the worlds are too tame: %v", want, ends[want], ends)
		}
	}
	t.Log(ends)
}

func randomWorld(seed uint64, steps int) *world {
	rng := rand.New(rand.NewPCG(seed, 7))
	w := newWorld(4, 3)
	w.undecidedMax = 1 + rng.IntN(3)
	n := 0
	trouble := 5 + rng.IntN(40)
	for range steps {
		randomStep(w, rng, &n, trouble)
		if w.broken != "" {
			return w
		}
	}
	heal(w, "last")
	return w
}

func randomStep(w *world, rng *rand.Rand, n *int, trouble int) {
	node := w.servers[rng.IntN(len(w.servers))]
	if len(w.pending) > 0 && chance(rng, 80) {
		f := performed
		if chance(rng, trouble) {
			f = fate(1 + rng.IntN(3))
		}
		w.perform(rng.IntN(len(w.pending)), f)
		return
	}
	switch k := rng.IntN(20); {
	case k < 9:
		*n++
		w.begin(fmt.Sprint("t", *n), node, w.cover(fmt.Sprint("t", *n), w.row().Txn, *n))
	case k < 11: // propose again, elsewhere
		if r := w.txns[rng.IntN(len(w.txns))]; r.t.goal == change {
			w.begin(r.name+"'", node, NewChange(&peer.Change{Table: cpu, Base: r.t.base, Txn: r.t.id, Ops: r.t.ops, Round: r.t.inRound}))
		}
	case k == 11:
		w.begin("join of "+string(node.id), w.servers[rng.IntN(4)], NewJoin(cpu, node.id))
	case k == 12:
		w.begin("removal of "+string(node.id), w.servers[rng.IntN(4)], NewRemove(cpu, node.id))
	case k == 13 && chance(rng, trouble):
		w.crash(node, func() bool { return chance(rng, 50) })
	case k == 14:
		node.away = !node.away && chance(rng, 2*trouble)
	case k == 15:
		w.catchUp()
	case k < 18:
		w.sweep(node, func() {
			for len(w.pending) > 0 && chance(rng, 80) {
				w.perform(rng.IntN(len(w.pending)), performed)
			}
		})
	case k == 19:
		w.begin("rule-out", node, NewRuleOut(cpu))
	case k == 18 && len(w.txns) > 0:
		if r := w.txns[rng.IntN(len(w.txns))]; !r.dead && r.done == nil {
			w.step(r, Expired{})
		}
	}
}

// heal ends all trouble; then all servers agree, and a change goes through.
func heal(w *world, name string) {
	for _, s := range w.servers {
		s.away = false
	}
	w.run()
	w.catchUp()
	for _, s := range w.servers {
		w.sweep(s, func() {})
	}
	for _, r := range w.txns {
		if !r.dead && r.done == nil {
			w.fail("%s never ended", r.name)
		}
		if r.done != nil {
			w.checkEnd(r)
		}
	}
	if w.broken != "" {
		return
	}
	before := w.row()
	r := w.begin(name, w.servers[len(w.txns)%len(w.servers)], w.cover(name, before.Txn, 1000))
	w.run()
	if r.done == nil || r.done.Err != nil {
		w.fail("after everything is well again a change ends with %v", r.done)
		return
	}
	w.run()
	row := w.row()
	if row.Seq != before.Seq+1 {
		w.fail("the change gave %d after %d", row.Seq, before.Seq)
	}
	for _, s := range row.Servers {
		if w.node(s).disk[row.Txn] == nil {
			w.fail("%s does not have the last transaction", s)
		}
	}
	chain(w)
}

// chain holds that the maps are one sequence, each based on the one before.
func chain(w *world) {
	var txns []Row
	for _, row := range w.history {
		if len(txns) == 0 || txns[len(txns)-1].Txn != row.Txn {
			txns = append(txns, row)
		}
	}
	for i, row := range txns[1:] {
		for _, s := range w.servers {
			if f := s.disk[row.Txn]; f != nil && (f.Base != txns[i].Txn || f.Seq != row.Seq) {
				w.fail("transaction %d stands on %s, not on the one before", row.Seq, w.names[f.Base])
			}
		}
		if slices.ContainsFunc(txns[:i+1], func(r Row) bool { return r.Txn == row.Txn }) {
			w.fail("transaction %s was committed twice", w.names[row.Txn])
		}
	}
}

// TestCrashAtEveryStep: wherever a coordinator stopped when it died, the old transaction or the new one is committed,
// all servers come to agree, and proposing again elsewhere finds out which.
func TestCrashAtEveryStep(t *testing.T) {
	goals := map[string]func(w *world) *Txn{
		"change":          func(w *world) *Txn { return w.cover("new", w.row().Txn, 1) },
		"join":            func(w *world) *Txn { return NewJoin(cpu, "s4") },
		"remove":          func(w *world) *Txn { return NewRemove(cpu, "s2") },
		"remove itself":   func(w *world) *Txn { return NewRemove(cpu, "s1") },
		"drop":            func(w *world) *Txn { return NewDrop(cpu, w.row().Txn) },
		"begin-drop":      func(w *world) *Txn { return NewBeginDrop(cpu) },
		"change, s3 away": func(w *world) *Txn { w.servers[2].away = true; return w.cover("new", w.row().Txn, 1) },
		"change, s2 lags": func(w *world) *Txn {
			w.servers[1].disk, w.servers[1].shelf, w.wiped = map[peer.TxnID]*peer.File{}, NewShelf(nil), true
			return w.cover("new", w.row().Txn, 1)
		},
	}
	for name, goal := range goals {
		for _, arrives := range []bool{false, true} {
			for steps := 0; ; steps++ {
				w := newWorld(4, 3)
				old := w.row()
				again := goal(w)
				r := w.begin("new", w.servers[0], goal(w))
				for i := 0; i < steps && len(w.pending) > 0; i++ {
					w.perform(0, performed)
				}
				ended := len(w.pending) == 0
				reported := r.done != nil
				w.crash(w.servers[0], func() bool { return arrives })
				// Another coordinator gets the same proposal.
				r2 := w.begin("again", w.servers[1], again)
				w.run()
				if r2.done == nil || r2.done.Err != nil {
					w.fail("asked again, it ends with %+v", r2.done)
				}
				if now := w.row(); reported && now.Txn == old.Txn && slices.Equal(now.Servers, old.Servers) && now.Dropped == old.Dropped && now.Dropping == old.Dropping {
					w.fail("it was reported as done, and is not")
				}
				if !w.row().Dropped && !w.row().Dropping {
					heal(w, "after")
				}
				if w.broken != "" {
					t.Fatalf("%s, crash after %d steps, what was on its way arrives: %v: %s\n%s\n%s", name, steps, arrives, w.broken, strings.Join(w.trace, "\n"), w.draw())
				}
				if ended {
					break
				}
			}
		}
	}
}

// TestDisagreement: a server that makes another map of the same ops stops the transaction.
func TestDisagreement(t *testing.T) {
	w := newWorld(3, 3)
	w.servers[1].lie = true
	r := w.begin("new", w.servers[0], w.cover("new", w.row().Txn, 1))
	for len(w.pending) > 0 {
		w.perform(len(w.pending)-1, performed)
	}
	if r.done == nil || !fault.Is(r.done.Err, fault.Corrupt) || w.row().Seq != 1 || !strings.Contains(strings.Join(w.trace, "\n"), "ALARM") {
		t.Fatalf("%+v\n%s\n%s", r.done, strings.Join(w.trace, "\n"), w.draw())
	}
}

// TestRandomWorldsOfADrop: in the midst of a life like the above the table is marked as being dropped. From then on no
// transaction gives out ids (held by swapped), all else goes on, and the drop can be ended.
func TestRandomWorldsOfADrop(t *testing.T) {
	runs := 200
	if testing.Short() {
		runs = 50
	}
	refused := 0
	for seed := range uint64(runs) {
		rng := rand.New(rand.NewPCG(seed, 8))
		w := newWorld(4, 3)
		w.undecidedMax = 1 + rng.IntN(3)
		n, trouble := 0, 5+rng.IntN(40)
		for i := range 120 {
			if i == 40 {
				w.begin("begin-drop", w.servers[rng.IntN(len(w.servers))], NewBeginDrop(cpu))
			}
			randomStep(w, rng, &n, trouble)
		}
		for _, s := range w.servers {
			s.away = false
		}
		w.run()
		w.catchUp()
		r := w.begin("begin to drop again", w.servers[0], NewBeginDrop(cpu))
		w.run()
		if r.done == nil || r.done.Err != nil || !w.row().Dropping {
			w.fail("the table cannot be marked: %+v", r.done)
		}
		base := w.row().Txn
		r = w.begin("late", w.servers[1], w.cover("late", base, 1000))
		w.run()
		if r.done == nil || !fault.Is(r.done.Err, fault.Stale) || w.row().Txn != base {
			w.fail("a partition is made of a table that is being dropped: %+v", r.done)
		}
		r = w.begin("end", w.servers[2], NewDrop(cpu, base))
		w.run()
		if row := w.row(); r.done == nil || r.done.Err != nil || !row.Dropped || row.Dropping {
			w.fail("the drop does not end: %+v, row %+v", r.done, row)
		}
		if w.broken != "" {
			t.Fatalf("seed %d: %s\n%s\n%s", seed, w.broken, strings.Join(w.trace, "\n"), w.draw())
		}
		refused += strings.Count(strings.Join(w.trace, "\n"), "no partitions are made of it")
	}
	if refused < 2*runs {
		t.Errorf("%d transactions refused: the worlds are too tame", refused)
	}
}
