package keeper

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/coord/mem"
	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

// server is a storage server reduced to its leases: it stops when it must.
type server struct {
	*Keeper
	ctx  context.Context
	kill context.CancelFunc
	done chan error
	wg   sync.WaitGroup

	mu     sync.Mutex
	inSync []lease.InSyncSet
}

func (s *server) Leads(lease.Leads)     {}
func (s *server) EverLed(lease.EverLed) {}
func (s *server) Stops(e lease.Stops) {
	s.wg.Go(func() { s.Send(s.ctx, lease.Stopped{Partition: e.Partition}) })
}
func (s *server) InSyncSet(e lease.InSyncSet) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inSync = append(s.inSync, e)
}

// fickle is a store that is away now and then.
type fickle struct {
	coord.Store
	away atomic.Bool
}

var errAway = fault.Errorf(fault.Unavailable, "away")

func (f *fickle) List(ctx context.Context, prefix string) ([]coord.Row, coord.Revision, error) {
	if f.away.Load() {
		return nil, 0, errAway
	}
	return f.Store.List(ctx, prefix)
}

func (f *fickle) Commit(ctx context.Context, c []coord.Condition, w []coord.Write) (coord.Revision, bool, error) {
	if f.away.Load() {
		return 0, false, errAway
	}
	return f.Store.Commit(ctx, c, w)
}

const partitions = 6

func part(i int) lease.Partition { return lease.Partition{Table: "cpu", ID: point.PartitionID(i + 1)} }

func cluster(t *testing.T, store coord.Store, n int) []*server {
	t.Helper()
	rev, _, err := store.Commit(t.Context(), nil, []coord.Write{{Key: "tables/cpu"}})
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	var placements []topology.Placement
	for i := range n {
		placements = append(placements, topology.Placement{ID: point.PlacementID(i + 1), Server: topology.ServerID(fmt.Sprint("s", i+1))})
	}
	var servers []*server
	for i := range n {
		s := &server{done: make(chan error, 1)}
		s.ctx, s.kill = context.WithCancel(t.Context())
		s.Keeper, err = New(Deps{
			Store: store, Handler: s, Log: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry(),
			Rand: rand.New(rand.NewPCG(uint64(i), 1)), Clock: func() lease.Time { return time.Since(began) },
		}, lease.Self{Server: placements[i].Server, Boot: lease.Boot(fmt.Sprint("b", i+1)), Store: lease.StoreID(fmt.Sprint("dir", i+1))}, Settings{})
		if err != nil {
			t.Fatal(err)
		}
		go func() { s.done <- s.Run(s.ctx) }()
		for p := range partitions {
			if err := s.Send(s.ctx, lease.Assigned{Partition: part(p), Placement: placements[i].ID, Placements: placements, TableRow: rev}); err != nil {
				t.Fatal(err)
			}
		}
		servers = append(servers, s)
	}
	return servers
}

func stop(t *testing.T, servers []*server) {
	t.Helper()
	for _, s := range servers {
		s.kill()
		if err := <-s.done; err != nil {
			t.Error(err)
		}
		s.wg.Wait()
	}
}

// leaders returns each partition's leader, -1 for none; two are an error.
func leaders(t *testing.T, servers []*server) (who [partitions]int, epochs [partitions]point.Epoch) {
	t.Helper()
	for p := range partitions {
		who[p] = -1
		for i, s := range servers {
			epoch, ok := s.MayAct(part(p))
			if ok && who[p] >= 0 {
				t.Errorf("%v is led by two", part(p))
			}
			if ok {
				who[p], epochs[p] = i, epoch
			}
		}
	}
	return who, epochs
}

func TestKilledKeepersPartitionsAreLedByOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		servers := cluster(t, mem.New(), 3)
		time.Sleep(5 * time.Second)
		before, epochs := leaders(t, servers)
		var held [3]int
		for _, i := range before {
			if i < 0 {
				t.Fatalf("leaders %v", before)
			}
			held[i]++
		}
		if held != [3]int{2, 2, 2} {
			t.Errorf("held %v", held)
		}
		stop(t, servers[:1])
		for range 80 {
			time.Sleep(100 * time.Millisecond)
			leaders(t, servers)
		}
		after, raised := leaders(t, servers)
		for p := range partitions {
			if after[p] < 1 || before[p] == 0 && raised[p] <= epochs[p] {
				t.Errorf("%v: led by %d at %d, then by %d at %d", part(p), before[p], epochs[p], after[p], raised[p])
			}
		}
		stop(t, servers[1:])
	})
}

// TestLeavingTakesNoTime: the heartbeat that says so and the releases are requests of their own, so that the others may see them in any order.
// They wait for their turns after the servers that do not leave: the second one for 250 ms.
func TestLeavingTakesNoTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		servers := cluster(t, mem.New(), 3)
		time.Sleep(5 * time.Second)
		began := time.Now()
		if err := servers[0].Leave(t.Context()); err != nil {
			t.Fatal(err)
		}
		if d := time.Since(began); d > 100*time.Millisecond {
			t.Errorf("leaving took %v", d)
		}
		const turn = 250 * time.Millisecond // lease.Settings.TurnStep
		time.Sleep(time.Until(began.Add(turn + turn/2)))
		after, _ := leaders(t, servers)
		for p, i := range after {
			if i < 1 {
				t.Errorf("%v is led by %d a turn and a half after its leader left", part(p), i)
			}
		}
		stop(t, servers)
	})
}

// TestAServerWhoseKeeperHasEndedStopsAtOnce: a keeper ends when the coordination store is set back; the stop then waited five seconds for leases that no keeper would release.
func TestAServerWhoseKeeperHasEndedStopsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := cluster(t, mem.New(), 1)[0]
		s.kill()
		if err := <-s.done; err != nil {
			t.Error(err)
		}
		s.wg.Wait()
		began := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := s.Leave(ctx); !fault.Is(err, fault.Canceled) || time.Since(began) > 0 {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
	})
}

func TestStoreAwayStopsAllAndMovesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &fickle{Store: mem.New()}
		servers := cluster(t, store, 3)
		time.Sleep(5 * time.Second)
		before, epochs := leaders(t, servers)
		store.away.Store(true)
		time.Sleep(3100 * time.Millisecond)
		if now, _ := leaders(t, servers); now != [partitions]int{-1, -1, -1, -1, -1, -1} {
			t.Errorf("leaders without a store: %v", now)
		}
		time.Sleep(10 * time.Minute)
		store.away.Store(false)
		time.Sleep(2 * time.Second)
		if now, same := leaders(t, servers); now != before || same != epochs {
			t.Errorf("leaders %v at %v, before %v at %v", now, same, before, epochs)
		}
		stop(t, servers)
	})
}

func TestInSyncListIsChangedByItsLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := mem.New()
		servers := cluster(t, store, 2)
		time.Sleep(5 * time.Second)
		who, _ := leaders(t, servers)
		i := who[0]
		alone := []lease.Member{{Placement: point.PlacementID(i + 1), Server: topology.ServerID(fmt.Sprint("s", i+1)), Store: lease.StoreID(fmt.Sprint("dir", i+1))}}
		ends := []point.EpochEnd{{Epoch: 3, Seq: 9}}
		servers[i].Send(t.Context(), lease.SetInSync{Partition: part(0), Members: alone, Ends: ends})
		servers[1-i].Send(t.Context(), lease.SetInSync{Partition: part(0), Members: alone})
		time.Sleep(time.Second)
		row, _, _ := store.Get(t.Context(), lease.RowKey(part(0)))
		l, err := lease.DecodeLease(row.Value)
		if err != nil || len(l.InSync) != 1 || l.InSync[0] != alone[0] || len(l.Ends) != 1 {
			t.Errorf("row %+v: %v", l, err)
		}
		if a, b := servers[i].inSync, servers[1-i].inSync; len(a) != 1 || !a[0].OK || len(b) != 1 || b[0].OK {
			t.Errorf("the leader received %v, the other %v", a, b)
		}
		if _, ok := servers[i].MayAct(part(0)); !ok {
			t.Error("a change of the list costs the lease")
		}
		stop(t, servers)
	})
}

func TestMayActAllocatesNothing(t *testing.T) {
	k, err := New(Deps{Rand: rand.New(rand.NewPCG(1, 1))}, lease.Self{Server: "s1", Boot: "b1", Store: "d1"}, Settings{})
	if err != nil {
		t.Fatal(err)
	}
	if n := testing.AllocsPerRun(100, func() { k.MayAct(part(0)) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestBoottimeGoesOn(t *testing.T) {
	a := Boottime()
	for Boottime() == a {
	}
	if Boottime() < a {
		t.Error("the clock went back")
	}
}

// TestServersAgreeOnTheTime: each reports its clock to the others, and uses the median.
func TestServersAgreeOnTheTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		servers := cluster(t, mem.New(), 3)
		time.Sleep(10 * time.Second)
		for i, s := range servers {
			if off := time.Duration(s.Now() - time.Now().UnixNano()); off.Abs() > 50*time.Millisecond {
				t.Errorf("s%d is %v off", i+1, off)
			}
		}
		stop(t, servers)
	})
}
