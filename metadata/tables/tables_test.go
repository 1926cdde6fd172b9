package tables_test

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/tables"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

func TestTablesAreMadeOnWriteOnlyWhereAllowed(t *testing.T) {
	site := newSite(t, 3)
	closed := site.open(tables.Settings{})
	if _, err := closed.Ensure(t.Context(), "a"); !fault.Is(err, fault.NotFound) {
		t.Fatalf("got %v, want not_found", err)
	}
	free := site.open(tables.Settings{CreateOnWrite: true, TablesMax: 2})
	for _, name := range []string{"a", "b", "a"} {
		if _, err := free.Ensure(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := free.Ensure(t.Context(), "c"); !fault.Is(err, fault.Throttled) {
		t.Fatalf("a third table: %v, want throttled", err)
	}
}

// The page and Grafana open the first table of the list: a user's own, not the one of Spillway's metrics.
func TestTablesOfUsersAreListedFirst(t *testing.T) {
	tb := newSite(t, 1).open(tables.Settings{CreateOnWrite: true})
	for _, name := range []string{"_spillway", "default", "_a", "Z", "app"} {
		if _, err := tb.Ensure(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := tb.Names(), []string{"Z", "app", "default", "_a", "_spillway"}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// Senders drop rows that are answered Invalid, and send those again that are answered Unavailable: a new day that begins while all
// servers restart, or have full disks, must cost no row.
func TestRowsOfANewDayAreNotDroppedWhileNoServerTakesPartitions(t *testing.T) {
	site := newSite(t, 1)
	deps := site.deps()
	var none atomic.Bool
	place := deps.Place
	deps.Place = func(table string, p point.PartitionID) []topology.ServerID {
		if none.Load() {
			return nil
		}
		return place(table, p)
	}
	tb := site.openWith(deps, tables.Settings{CreateOnWrite: true})
	if _, err := tb.Ensure(t.Context(), "t"); err != nil {
		t.Fatal(err)
	}
	if _, err := tb.Cover(t.Context(), "t", []point.Nanos{0}); err != nil {
		t.Fatal(err)
	}
	day := int64(24 * time.Hour)
	none.Store(true)
	if _, err := tb.Cover(t.Context(), "t", []point.Nanos{0, day}); !fault.Is(err, fault.Unavailable) {
		t.Errorf("a new day without a server: %v, want unavailable", err)
	}
	if m, err := tb.Cover(t.Context(), "t", []point.Nanos{0}); err != nil || m.Len() != 1 {
		t.Errorf("a day that has its partition: %v, %v", m, err)
	}
	none.Store(false)
	if m, err := tb.Cover(t.Context(), "t", []point.Nanos{0, day}); err != nil || m.Len() != 2 {
		t.Errorf("a new day with a server: %v, %v", m, err)
	}
}

// Two processes that create the same table and cover the same times end with the same map, each time covered once.
func TestConcurrentProcessesAgree(t *testing.T) {
	site := newSite(t, 3)
	one, two := site.open(tables.Settings{CreateOnWrite: true}), site.open(tables.Settings{CreateOnWrite: true})
	var wg sync.WaitGroup
	for _, p := range []*tables.Tables{one, two} {
		for worker := range 4 {
			wg.Add(1)
			go func() {
				defer wg.Done()
				if _, err := p.Ensure(t.Context(), "t"); err != nil {
					t.Error(err)
				}
				for day := range 20 {
					at := int64(day+worker) * int64(24*time.Hour)
					m, err := p.Cover(t.Context(), "t", []point.Nanos{at})
					if err != nil {
						t.Error(err)
						return
					}
					if _, ok := m.Find(0, at); !ok {
						t.Errorf("day %d lies nowhere", day)
					}
				}
			}()
		}
	}
	wg.Wait()
	m, err := two.Cover(t.Context(), "t", []point.Nanos{-1})
	if err != nil {
		t.Fatal(err)
	}
	if m.Len() != 24 {
		t.Fatalf("%d partitions, want 23 days and one before 1970:\n%v", m.Len(), m)
	}
}

func TestOtherProcessesChangesArriveByWatch(t *testing.T) {
	site := newSite(t, 3)
	one, two := site.open(tables.Settings{CreateOnWrite: true}), site.open(tables.Settings{})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- two.Run(ctx) }()
	if _, err := one.Ensure(t.Context(), "t"); err != nil {
		t.Fatal(err)
	}
	want, err := one.Cover(t.Context(), "t", []point.Nanos{0})
	if err != nil {
		t.Fatal(err)
	}
	for {
		if m, ok := two.Get("t"); ok && m.Seq == want.Seq {
			break
		}
		time.Sleep(time.Millisecond)
	}
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

func TestDropAndConfigAreOnce(t *testing.T) {
	p := newSite(t, 1).open(tables.Settings{CreateOnWrite: true})
	if _, err := p.Ensure(t.Context(), "t"); err != nil {
		t.Fatal(err)
	}
	m, err := p.Cover(t.Context(), "t", []point.Nanos{0, int64(48 * time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	first, _ := m.Find(0, 0)
	dropped, err := p.Drop(t.Context(), "t", first.ID)
	if err != nil || dropped.Len() != 1 {
		t.Fatalf("%v %v", dropped, err)
	}
	if again, err := p.Drop(t.Context(), "t", first.ID); err != nil || again != dropped {
		t.Fatalf("dropping twice made seq %d of %d: %v", again.Seq, dropped.Seq, err)
	}
	if m, err := p.SetConfig(t.Context(), "t", daily); err != nil || m != dropped {
		t.Fatalf("the same configuration made a transaction: %v", err)
	}
	if _, err := p.SetConfig(t.Context(), "nobody", daily); !fault.Is(err, fault.NotFound) {
		t.Fatalf("got %v", err)
	}
}

func TestAChangeIsPlannedOnTheNewestMap(t *testing.T) {
	site := newSite(t, 3)
	one, two := site.open(tables.Settings{CreateOnWrite: true}), site.open(tables.Settings{})
	if _, err := one.Ensure(t.Context(), "t"); err != nil {
		t.Fatal(err)
	}
	if _, err := two.Refresh(t.Context(), "t", 0); err != nil {
		t.Fatal(err)
	}
	cover := func(day int64) func(*topology.Map) ([]topology.Op, error) {
		return func(m *topology.Map) ([]topology.Op, error) {
			return []topology.Op{m.Covering([]point.Nanos{day * int64(24*time.Hour)}, func(p point.PartitionID) []topology.Placement {
				return []topology.Placement{{ID: point.PlacementID(p), Server: "s1"}}
			})}, nil
		}
	}
	changed := one.Changed()
	first, err := one.Change(t.Context(), "t", cover(1))
	if err != nil {
		t.Fatal(err)
	}
	<-changed
	m, err := two.Change(t.Context(), "t", cover(2)) // two has not received the first yet
	if err != nil || m.Len() != 2 || m.Seq != first.Seq+1 {
		t.Fatalf("%v %v", m, err)
	}
	if same, err := two.Change(t.Context(), "t", cover(2)); err != nil || same.Seq != m.Seq {
		t.Fatalf("a change that changes nothing made %d of %d: %v", same.Seq, m.Seq, err)
	}
	if m, err := one.Refresh(t.Context(), "t", m.Seq); err != nil || m.Len() != 2 {
		t.Fatalf("%v %v", m, err)
	}
	if _, row, ok := one.At("t"); !ok || row == 0 {
		t.Fatalf("row %d %v", row, ok)
	}
	if _, err := one.Refresh(t.Context(), "t", m.Seq+1); !fault.Is(err, fault.Unavailable) {
		t.Fatalf("a map of the future: %v", err)
	}
	if err := two.DropTable(t.Context(), "t"); err != nil {
		t.Fatal(err)
	}
	if _, ok := two.Get("t"); ok {
		t.Error("the table is still there")
	}
}

// TestAChangeThatALeaseRowRefusesIsAnsweredAtOnce: it was proposed again, on the same map, until there was no more time, and whether it was committed was open. The other steps of a master's plan for that
// table were lost with it.
func TestAChangeThatALeaseRowRefusesIsAnsweredAtOnce(t *testing.T) {
	site := newSite(t, 1)
	tb := site.open(tables.Settings{CreateOnWrite: true})
	if _, err := tb.Ensure(t.Context(), "t"); err != nil {
		t.Fatal(err)
	}
	m, err := tb.Cover(t.Context(), "t", []point.Nanos{0})
	if err != nil {
		t.Fatal(err)
	}
	p, _ := m.Find(0, 0)
	alone, to := p.Placements[0], topology.Placement{ID: 7, Server: "s2"}
	row := lease.Lease{State: lease.Held, Holder: "s1", Boot: "b", Epoch: 9, InSync: []lease.Member{{Placement: alone.ID, Server: "s1", Store: "d"}}}
	key := lease.RowKey(lease.Partition{Table: "t", ID: p.ID})
	if _, _, err := site.store.Commit(t.Context(), nil, []coord.Write{{Key: key, Value: row.Encode()}}); err != nil {
		t.Fatal(err)
	}
	_, err = tb.Change(t.Context(), "t", func(*topology.Map) ([]topology.Op, error) {
		return []topology.Op{topology.Join{Partition: p.ID, Placement: to}, topology.JoinFinalize{Partition: p.ID, Placement: to.ID},
			topology.Remove{Partition: p.ID, Placement: alone.ID}}, nil
	})
	if !fault.Is(err, fault.Invalid) {
		t.Errorf("the only copy with rows is taken away: %v", err)
	}
}
