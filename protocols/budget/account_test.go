package budget_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"pgregory.net/rapid"

	"github.com/spillwaydb/spillway/protocols/budget"
	"github.com/spillwaydb/spillway/protocols/fault"
)

func child(t testing.TB, a *budget.Account, name string, floor, most int64) *budget.Account {
	t.Helper()
	c, err := a.Child(name, budget.Share{Floor: floor, Max: most})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestFloorIsThereWhateverTheOthersHold(t *testing.T) {
	process := budget.New("process", 100)
	heads := child(t, process, "heads", 30, 0)
	queries := child(t, process, "queries", 10, 60)
	f := func(a *budget.Account, n int64, want fault.Kind) {
		t.Helper()
		switch err := a.Reserve(n); {
		case want == fault.Internal && err != nil:
			t.Errorf("%d bytes: %v", n, err)
		case want != fault.Internal && !fault.Is(err, want):
			t.Errorf("%d bytes: %v, want %v", n, err, want)
		}
	}
	const ok = fault.Internal
	f(queries, 61, fault.TooLarge)
	f(queries, 60, ok)
	f(queries, 1, fault.Throttled)
	f(heads, 41, fault.Throttled) // 30 and the 10 outside all floors
	f(heads, 40, ok)
	f(heads, 1, fault.Throttled)
	queries.Release(55) // 5 left of a floor of 10
	f(heads, 50, ok)
	f(heads, 1, fault.Throttled)
	f(queries, 5, ok)
	f(queries, 1, fault.Throttled)
	f(heads, 91, fault.TooLarge)
}

func TestFloorsThatDoNotFitAreRefused(t *testing.T) {
	process := budget.New("process", 100)
	child(t, process, "heads", 60, 0)
	if _, err := process.Child("queries", budget.Share{Floor: 41}); !fault.Is(err, fault.Throttled) {
		t.Error(err)
	}
	if _, err := process.Child("queries", budget.Share{Floor: 30, Max: 20}); !fault.Is(err, fault.Invalid) {
		t.Error(err)
	}
	last := child(t, process, "queries", 40, 0)
	last.Close()
	child(t, process, "bodies", 40, 0)
}

func TestForcedBytesLeaveFloorsWhole(t *testing.T) {
	process := budget.New("process", 100)
	series := child(t, process, "series", 0, 0)
	heads := child(t, process, "heads", 20, 0)
	series.Force(150)
	if err := heads.Reserve(20); err != nil {
		t.Error(err)
	}
	if err := heads.Reserve(1); !fault.Is(err, fault.Throttled) {
		t.Error(err)
	}
	if got := heads.Free(); got != 0 {
		t.Errorf("%d bytes free", got)
	}
	series.Release(150)
	if err := heads.Reserve(80); err != nil {
		t.Error(err)
	}
}

func TestWaitersAreServedInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		process := budget.New("process", 100)
		queries, bodies := child(t, process, "queries", 0, 90), child(t, process, "bodies", 0, 0)
		if err := queries.Reserve(90); err != nil {
			t.Fatal(err)
		}
		var mu sync.Mutex
		var got []string
		wait := func(ctx context.Context, name string, a *budget.Account, n int64) {
			go func() {
				err := a.Wait(ctx, n)
				mu.Lock()
				defer mu.Unlock()
				got = append(got, fmt.Sprintf("%s:%v", name, err == nil))
				if err != nil && !fault.Is(err, fault.Canceled) {
					t.Error(err)
				}
			}()
			synctest.Wait()
		}
		leaving, leave := context.WithCancel(t.Context())
		wait(leaving, "large", queries, 80)
		wait(t.Context(), "small", queries, 10)
		wait(t.Context(), "other account", bodies, 10)
		if err := queries.Reserve(1); !fault.Is(err, fault.Throttled) {
			t.Errorf("passed those who wait: %v", err)
		}
		queries.Release(20)
		synctest.Wait()
		if want := "other account:true"; strings.Join(got, " ") != want {
			t.Errorf("%v, want %s", got, want)
		}
		leave()
		synctest.Wait()
		if want := "other account:true large:false small:true"; strings.Join(got, " ") != want {
			t.Errorf("%v, want %s", got, want)
		}
		if err := queries.Wait(t.Context(), 91); !fault.Is(err, fault.TooLarge) {
			t.Error(err)
		}
	})
}

func TestNoMoreThanSoManyWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		process := budget.New("process", 10)
		if err := process.Reserve(10); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		for range budget.WaitingMax {
			go func() { _ = process.Wait(ctx, 1) }()
		}
		synctest.Wait()
		if err := process.Wait(ctx, 1); !fault.Is(err, fault.Throttled) {
			t.Error(err)
		}
		cancel()
		synctest.Wait()
		if err := process.Wait(t.Context(), 0); err != nil {
			t.Error(err)
		}
	})
}

// model is an account as simple as can be.
type model struct {
	a           *budget.Account
	floor, most int64
	own         int64
	children    []*model
	parent      *model
}

func (m *model) used() int64 {
	n := m.own
	for _, c := range m.children {
		n += max(c.used(), c.floor)
	}
	return n
}

// fits reports whether no account exceeds its max because of n bytes more.
func (m *model) fits(n int64) bool {
	before := map[*model]int64{}
	for at := m; at != nil; at = at.parent {
		before[at] = at.used()
	}
	m.own += n
	defer func() { m.own -= n }()
	for at := m; at != nil; at = at.parent {
		if at.used() > at.most && at.used() > before[at] {
			return false
		}
	}
	return true
}

func TestAccountsAgreeWithTheModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		root := &model{a: budget.New("process", 1000), most: 1000}
		all := []*model{root}
		for range rapid.IntRange(1, 5).Draw(t, "accounts") {
			above := rapid.SampledFrom(all).Draw(t, "above")
			most := rapid.Int64Range(1, above.most).Draw(t, "max")
			floor := rapid.Int64Range(0, min(200, most)).Draw(t, "floor")
			a, err := above.a.Child("child", budget.Share{Floor: floor, Max: most})
			if want := above.fits(floor); (err == nil) != want {
				t.Fatalf("floor of %d under %d of %d: %v", floor, above.used(), above.most, err)
			}
			if err != nil {
				continue
			}
			m := &model{a: a, floor: floor, most: most, parent: above}
			above.children, all = append(above.children, m), append(all, m)
		}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			m := rapid.SampledFrom(all).Draw(t, "at")
			n := rapid.Int64Range(0, 400).Draw(t, "bytes")
			switch rapid.IntRange(0, 4).Draw(t, "what") {
			case 0:
				m.a.Release(min(n, m.own))
				m.own -= min(n, m.own)
			case 1:
				if n < 30 {
					m.a.Force(n)
					m.own += n
				}
			default:
				want := m.fits(n)
				if err := m.a.Reserve(n); (err == nil) != want {
					t.Fatalf("%d bytes more than %d: %v, want ok %v", n, m.used(), err, want)
				}
				if want {
					m.own += n
				}
			}
			for _, m := range all {
				if got := m.a.Used(); got != m.used() {
					t.Fatalf("%d bytes used, want %d", got, m.used())
				}
				free := m.a.Free()
				if !m.fits(free) || m.fits(free+1) {
					t.Fatalf("%d bytes free", free)
				}
			}
		}
	})
}

func TestAccountsAreShownByName(t *testing.T) {
	process := budget.New("process", 100)
	heads := child(t, process, "heads", 30, 0)
	if err := heads.Reserve(40); err != nil {
		t.Fatal(err)
	}
	heads.Release(35)
	_ = heads.Reserve(1000)
	r := prometheus.NewPedanticRegistry()
	process.Register(r)
	want := `
# HELP spillway_budget_used_bytes What is booked in an account of the process' memory.
# TYPE spillway_budget_used_bytes gauge
spillway_budget_used_bytes{account="heads"} 5
spillway_budget_used_bytes{account="process"} 30
# HELP spillway_budget_refused_total Reservations that an account of the process' memory refused, or that were waited for in vain.
# TYPE spillway_budget_refused_total counter
spillway_budget_refused_total{account="heads"} 1
spillway_budget_refused_total{account="process"} 0
# HELP spillway_budget_peak_bytes The most that was ever booked in an account of the process' memory.
# TYPE spillway_budget_peak_bytes gauge
spillway_budget_peak_bytes{account="heads"} 40
spillway_budget_peak_bytes{account="process"} 40
`
	if err := testutil.GatherAndCompare(r, strings.NewReader(want), "spillway_budget_used_bytes", "spillway_budget_refused_total", "spillway_budget_peak_bytes"); err != nil {
		t.Error(err)
	}
}

// TestLimitFollowsTheOthers: one that holds less where others hold more asks for the figure, whatever it holds itself.
func TestLimitFollowsTheOthers(t *testing.T) {
	process := budget.New("process", 100)
	records, others := child(t, process, "records", 10, 60), child(t, process, "others", 0, 0)
	want := func(n int64) {
		t.Helper()
		if got := records.Limit(); got != n {
			t.Errorf("%d bytes, want %d", got, n)
		}
	}
	want(60)
	others.Force(50)
	want(50)
	records.Force(30)
	want(50)
	others.Force(30) // 10 too many
	want(20)
	others.Force(100)
	want(10)
	others.Release(180)
	want(60)
	if n := process.Limit(); n != 100 {
		t.Errorf("the process may hold %d bytes", n)
	}
}
