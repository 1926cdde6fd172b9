package api

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// TestSlowReadersOfOneTableKeepNoOtherOut: ten exports that were read a byte at a time kept remote reads of every table waiting.
func TestSlowReadersOfOneTableKeepNoOtherOut(t *testing.T) {
	g := newReadGates(2)
	var all []func()
	for range 2 {
		leave, err := g.enter(t.Context(), "slow")
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, leave)
	}
	gone, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if _, err := g.enter(gone, "slow"); !fault.Is(err, fault.Canceled) {
		t.Errorf("a third reader of the table: %v", err)
	}
	leave, err := g.enter(t.Context(), "other")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := g.enter(gone, "third"); !fault.Is(err, fault.Canceled) {
		t.Errorf("one more than all tables have places for: %v", err)
	}
	for _, leave := range append(all, leave) {
		leave()
	}
	if len(g.rules.tables) != 0 {
		t.Errorf("%d tables are kept that nobody reads", len(g.rules.tables))
	}
}

// TestSlowReadersOfTwoTablesKeepNoThirdOut: they had all places of all tables, and readers of others waited until query.timeout.
func TestSlowReadersOfTwoTablesKeepNoThirdOut(t *testing.T) {
	g := newReadGates(10)
	for _, slow := range []string{"slow", "slower"} {
		for range 20 {
			if r := (&reading{table: slow}); g.rules.ask(r) == nil { // it waits and gives up; the others read a byte at a time, and never leave
				g.rules.leave(r)
			}
		}
	}
	for i := range 4 { // and the second table has one
		if _, err := g.enter(t.Context(), fmt.Sprint("bystander", i)); err != nil {
			t.Fatal(err)
		}
	}
	if got := g.rules.tables["slow"].running; got != 10 {
		t.Errorf("%d reads of the first table run, want as many as if it were alone", got)
	}
}

// TestAQueueThatIsFullHasRoomForAnotherTable: two tables with a hundred waiting reads filled it, and those of a third were refused.
func TestAQueueThatIsFullHasRoomForAnotherTable(t *testing.T) {
	g := newReadRules(10)
	ask := func(table string) (r, over *reading) {
		r = &reading{table: table}
		return r, g.ask(r)
	}
	for range 300 {
		ask("slow")
		ask("slower")
	}
	for i := range 4 {
		ask(fmt.Sprint("other", i)) // all places
	}
	if g.running != 15 || g.waiting != 150 {
		t.Fatalf("%d run and %d wait", g.running, g.waiting)
	}
	r, over := ask("bystander")
	if r.state != readWaits || over == nil || over.state != readRefused || g.waiting != 150 {
		t.Fatalf("the bystander's read is in state %d, and %d wait", r.state, g.waiting)
	}
	if next := g.leave(&reading{table: "other0", state: readRuns}); next != r {
		t.Errorf("the next place goes to %v", next)
	}
}

// TestReadersThatLeaveKeepNoPlace, whenever it is: while they wait, at the moment at which they get a place or are refused, and later.
func TestReadersThatLeaveKeepNoPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newReadGates(4)
		rng := rand.New(rand.NewPCG(1, 1))
		var served, refused, gone atomic.Int64
		var all sync.WaitGroup
		for range 3000 {
			table, begins := fmt.Sprint(rng.IntN(30)), time.Duration(rng.IntN(100))*time.Millisecond
			patience, reads := time.Duration(1+rng.IntN(10))*time.Millisecond, time.Duration(1+rng.IntN(3))*time.Millisecond
			all.Go(func() {
				time.Sleep(begins)
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				defer cancel()
				leave, err := g.enter(ctx, table)
				switch {
				case fault.Is(err, fault.Throttled):
					refused.Add(1)
				case err != nil:
					gone.Add(1)
				default:
					served.Add(1)
					time.Sleep(reads)
					leave()
				}
			})
		}
		all.Wait()
		if g.rules.running != 0 || g.rules.active != 0 || g.rules.waiting != 0 || len(g.rules.tables) != 0 {
			t.Errorf("%d run of %d tables and %d wait, though all have left", g.rules.running, g.rules.active, g.rules.waiting)
		}
		if served.Load() == 0 || refused.Load() == 0 || gone.Load() == 0 {
			t.Errorf("%d were served, %d refused, %d left: this test shows nothing", served.Load(), refused.Load(), gone.Load())
		}
	})
}

// TestPlacesOfReadsAreSharedByTheirRules, whatever comes and goes.
func TestPlacesOfReadsAreSharedByTheirRules(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 1))
		g := newReadRules(1 + rng.IntN(6))
		var all []*reading
		for range 400 {
			if rng.IntN(5) < 3 || len(all) == 0 {
				r := &reading{table: fmt.Sprint(rng.IntN(9))}
				g.ask(r)
				all = append(all, r)
			} else {
				i := rng.IntN(len(all))
				g.leave(all[i])
				all = append(all[:i], all[i+1:]...)
			}
			running, waiting, tables := 0, 0, map[string]bool{}
			for _, r := range all {
				switch r.state {
				case readRuns:
					running++
				case readWaits:
					waiting++
					if g.room(g.tables[r.table]) {
						t.Fatalf("seed %d: a read of table %s waits beside a free place", seed, r.table)
					}
				case readRefused:
					continue
				}
				tables[r.table] = true
			}
			counted := running == g.running && waiting == g.waiting && len(tables) == len(g.tables)
			if !counted || running > g.all || waiting > waitersPerPlace*g.all || running-g.active > g.each-1 {
				t.Fatalf("seed %d: %d of %d run, %d of %d wait, of %d tables of %d", seed, running, g.running, waiting, g.waiting, len(tables), len(g.tables))
			}
		}
	}
}
