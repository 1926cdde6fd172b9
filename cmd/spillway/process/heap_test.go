package process

import (
	"testing"

	"github.com/spillwaydb/spillway/cmd/spillway/settings"
	"github.com/spillwaydb/spillway/protocols/setting"
	"github.com/spillwaydb/spillway/protocols/share"
)

// TestQueriesUseTheMemoryThatHeadsDoNot: the collector's limit left out all that heads may hold, three eighths of the budget. A process that received
// new series all day, and kept few rows in memory, ended queries for want of memory at 63 % of its budget.
func TestQueriesUseTheMemoryThatHeadsDoNot(t *testing.T) {
	const budget, heads = int64(4 << 30), int64(3 << 29)
	var limit int64
	l := newHeapLimit(budget, heads, func(to int64) { limit = to })
	least := limit
	if want := (budget - heads) / limitSlack * (limitSlack - 1); least != want {
		t.Errorf("before heads are known the limit is %d, want %d", least, want)
	}
	step := heads / headSteps
	for _, held := range []int64{0, 1, step, heads / 2, heads - 1, heads, heads + 1, 2 * heads, heads / 2, 3, 0} {
		l.Cover(held)
		l.Trim(held)
		free := budget - min(held+step, heads)
		if most := free - free/limitSlack; limit > most {
			t.Errorf("heads hold %d: the collector may fill %d, want at most %d", held, limit, most)
		}
		free = budget - min(held+3*step, heads)
		if want := free - free/limitSlack; limit < max(want, least) {
			t.Errorf("heads hold %d: the collector may fill %d, want at least %d", held, limit, want)
		}
	}
	if held := l.budget - l.reserved.Load(); held < budget/32*27 {
		t.Errorf("of %d bytes that nobody holds %d are left out", budget, held)
	}
}

// TestTheHeapMakesRoomBeforeHeadsGrow: an insert finds its memory reserved, and a step more.
func TestTheHeapMakesRoomBeforeHeadsGrow(t *testing.T) {
	const budget, heads = int64(512 << 20), int64(192 << 20)
	var limit, calls int64
	l := newHeapLimit(budget, heads, func(to int64) { limit = to; calls++ })
	l.Trim(0)
	pool := share.New(heads)
	pool.OnGrowth(l.Cover)
	m := pool.Member()
	calls = 0
	for pool.Used() < heads {
		m.Add(1 << 20)
		if left := budget - limit; left < min(pool.Used()+heads/headSteps, heads) {
			t.Fatalf("the heads hold %d bytes, and %d are outside of the collector's limit", pool.Used(), left)
		}
	}
	if calls > headSteps {
		t.Errorf("the limit was set %d times while the heads grew by %d steps", calls, headSteps)
	}
}

// TestAProcessWithoutHeadsLeavesNothingOutForThem: a gateway's collector had five eighths of the budget.
func TestAProcessWithoutHeadsLeavesNothingOutForThem(t *testing.T) {
	var limit int64
	l := newHeapLimit(1<<30, 0, func(to int64) { limit = to })
	if want := int64(1<<30) / limitSlack * (limitSlack - 1); limit != want {
		t.Errorf("the limit is %d, want %d", limit, want)
	}
	l.widen(1 << 20)
	if want := int64(1<<30)/limitSlack*(limitSlack-1) + 1<<20; limit != want {
		t.Errorf("with a ballast of a MiB the limit is %d, want %d", limit, want)
	}
}

// TestIdleHeapIsSmallBesideTheBudget bounds the garbage that a process holds before its first collection: collectAt
// percent of the ballast's size.
func TestIdleHeapIsSmallBesideTheBudget(t *testing.T) {
	for _, all := range []setting.Bytes{settings.MemoryLeast, 1 << 30, 16 << 30} {
		c := config{Config: settings.Default()}
		c.Storage.MemoryBytes = all
		if n := c.idleHeap(); n < 8<<20 || n > 64<<20 || n*collectAt/100 > int64(all)/50 {
			t.Errorf("%d of a budget of %d", n, all)
		}
	}
}
