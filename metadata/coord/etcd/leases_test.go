package etcd

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/lease/keeper"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/cputime"
	"github.com/spillwaydb/spillway/protocols/point"
)

// TestLeaseFigures measures the lease table on a real etcd in a process of its own, which syncs to the disk. It is for a machine that does nothing else:
//
//	LEASE_FIGURES=10000 go test -v -run LeaseFigures ./metadata/coord/etcd        10,000 partitions on 3 servers
//
// All keepers run in this process, so the CPU that it shows is that of all servers together, without etcd.
func TestLeaseFigures(t *testing.T) {
	n, _ := strconv.Atoi(os.Getenv("LEASE_FIGURES"))
	if n == 0 {
		t.Skip("LEASE_FIGURES names how many partitions")
	}
	endpoint := newProcess(t).url
	c := &figures{t: t, endpoint: endpoint, at: make([]time.Time, n+10000)}
	for i := range 3 {
		c.start(i, open(t, Settings{Endpoints: []string{endpoint}}))
	}
	c.births()
	c.led(1 << 30)
	began := time.Now()
	c.assign(1, n)
	c.until("all are led", func() bool { return c.led(0) >= n })
	t.Logf("%d partitions × 3 placements on 3 servers: all led %.1f s after the servers were told of them", n, time.Since(began).Seconds())
	time.Sleep(15 * time.Second) // shares settle
	c.steady(10 * time.Second)

	lost := c.servers[0]
	before := lost.Status().Held
	c.led(1 << 30)
	lost.kill()
	<-lost.done
	c.servers = c.servers[1:]
	began = time.Now()
	c.until("the others lead all", func() bool { return c.led(0) >= before })
	t.Logf("a server that held %d is gone: all led by the others after %.1f s", before, time.Since(began).Seconds())
	for _, s := range c.servers {
		s.kill()
		<-s.done
	}
}

type figures struct {
	t        *testing.T
	servers  []*leaser
	seq      uint64
	row      coord.Revision
	endpoint string

	mu    sync.Mutex
	at    []time.Time // when each partition was first led
	leads int
}

// led says how often a server began to lead since it was last asked with forget, which counts from 0 again.
func (c *figures) led(forget int) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.leads
	c.leads -= min(n, forget)
	return n
}

// leaser is a storage server as far as leases go.
type leaser struct {
	*keeper.Keeper
	c    *figures
	id   topology.ServerID
	kill context.CancelFunc
	done chan error
	ctx  context.Context
}

func (s *leaser) Leads(e lease.Leads) {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	s.c.leads++
	if s.c.at[e.Partition.ID].IsZero() {
		s.c.at[e.Partition.ID] = time.Now()
	}
}
func (s *leaser) Stops(e lease.Stops) {
	go s.Send(s.ctx, lease.Stopped{Partition: e.Partition})
}
func (s *leaser) InSyncSet(lease.InSyncSet) {}
func (s *leaser) EverLed(lease.EverLed)     {}

func (c *figures) start(i int, store coord.Store) {
	s := &leaser{c: c, id: topology.ServerID(fmt.Sprint("s", i+1)), done: make(chan error, 1)}
	s.ctx, s.kill = context.WithCancel(c.t.Context())
	var err error
	s.Keeper, err = keeper.New(keeper.Deps{Store: store, Handler: s, Log: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry(),
		Rand: rand.New(rand.NewPCG(uint64(i), 1))}, lease.Self{Server: s.id, Boot: lease.Boot(fmt.Sprint("b", i)), Store: lease.StoreID(fmt.Sprint("d", i))},
		keeper.Settings{RequestTimeout: 2 * time.Second})
	if err != nil {
		c.t.Fatal(err)
	}
	c.servers = append(c.servers, s)
	go func() { s.done <- s.Run(s.ctx) }()
}

// transaction is one of METADATA's, as far as the coordination store sees it, that leaves all lease rows alone.
func (c *figures) transaction(store coord.Store) {
	c.seq++
	rev, _, err := store.Commit(c.t.Context(), nil, []coord.Write{{Key: "tables/cpu", Value: fmt.Appendf(nil, `{"v":2,"seq":%d}`, c.seq)}})
	if err != nil {
		c.t.Fatal(err)
	}
	c.row = rev
}

// assign gives the servers new partitions from first on, with chains that begin with each of them in turn.
func (c *figures) assign(first, n int) {
	for i, s := range c.servers {
		all := make([]lease.Assigned, 0, n)
		for p := first; p < first+n; p++ {
			var chain []topology.Placement
			for j := range 3 {
				chain = append(chain, topology.Placement{ID: point.PlacementID(3*p + (p+j)%3), Server: topology.ServerID(fmt.Sprint("s", (p+j)%3+1))})
			}
			all = append(all, lease.Assigned{Partition: lease.Partition{Table: "cpu", ID: point.PartitionID(p)}, Placement: point.PlacementID(3*p + i), Placements: chain, TableRow: c.row, Seq: c.seq})
		}
		for part := range slices.Chunk(all, 2000) {
			s.Send(s.ctx, lease.Assignments{All: part})
		}
		s.Send(s.ctx, lease.MapIs{Table: "cpu", Seq: c.seq, TableRow: c.row})
	}
}

// births measures how long new partitions wait for a leader while the table's row changes 50 times a second.
func (c *figures) births() {
	s := open(c.t, Settings{Endpoints: []string{c.endpoint}})
	c.transaction(s)
	c.until("heartbeats are good", func() bool {
		return !slices.ContainsFunc(c.servers, func(s *leaser) bool { return !s.Status().Good })
	})
	first := len(c.at) - 5000
	var assigned []time.Time
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for i := range 750 {
		<-tick.C
		c.transaction(s)
		if i%10 == 0 { // five partitions a second are born
			assigned = append(assigned, time.Now())
			c.assign(first+len(assigned)-1, 1)
		}
	}
	c.until("all that were born are led", func() bool { return c.held() == len(assigned) })
	var waits []time.Duration
	for i, at := range assigned {
		waits = append(waits, c.at[first+i].Sub(at))
		if waits[i] > time.Second {
			c.t.Logf("birth %d waited %v", i, waits[i])
		}
	}
	slices.Sort(waits)
	c.t.Logf("births at 50 METADATA transactions a second: %d, led after %v (median), %v (p99), %v (worst)", len(waits), waits[len(waits)/2], waits[len(waits)*99/100], waits[len(waits)-1])
	for _, s := range c.servers { // they are in no map any more
		for i := range assigned {
			s.Send(s.ctx, lease.Unassigned{Partition: lease.Partition{Table: "cpu", ID: point.PartitionID(first + i)}})
		}
	}
	c.until("they are let go", func() bool { return c.held() == 0 })
	rows, _, err := s.List(c.t.Context(), lease.Prefix+"p/")
	if err != nil {
		c.t.Fatal(err)
	}
	for _, row := range rows {
		if p, ok := lease.ParseRowKey(row.Key); ok {
			s.Commit(c.t.Context(), nil, []coord.Write{{Key: row.Key, Delete: true}, {Key: lease.BornKey(p), Delete: true}, {Key: lease.SweptKey(p.Table), Value: lease.Swept{Seq: c.seq}.Encode()}})
		}
	}
}

// steady measures the process while nothing happens.
func (c *figures) steady(d time.Duration) {
	rev := func() coord.Revision {
		s := open(c.t, Settings{Endpoints: []string{c.endpoint}})
		defer s.Close()
		_, rev, err := s.List(c.t.Context(), "nothing/")
		if err != nil {
			c.t.Fatal(err)
		}
		return rev
	}
	r0, cpu0 := rev(), cputime.Used()
	time.Sleep(d) // what servers at rest cost in this time is measured
	cpu, writes := cputime.Used()-cpu0, rev()-r0
	c.t.Logf("steady: %.1f writes a second to the store; %.1f %% of a core for three servers together", float64(writes)/d.Seconds(), 100*cpu.Seconds()/d.Seconds())
}

func (c *figures) held() (n int) {
	for _, s := range c.servers {
		n += s.Status().Held
	}
	return n
}

func (c *figures) until(what string, f func() bool) {
	c.t.Helper()
	for end := time.Now().Add(5 * time.Minute); !f(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			var held []int
			for _, s := range c.servers {
				held = append(held, s.Status().Held)
			}
			c.t.Fatalf("never: %s; held %v", what, held)
		}
	}
}
