package clustertest

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/cmd/internal/processes"
	"github.com/spillwaydb/spillway/cmd/internal/processtest"
	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/registry"
	"github.com/spillwaydb/spillway/metadata/topology"
)

// TestClusterTheOnlyCopyOfABusyPartitionMovesToAServerThatComes has one server with three busy partitions of one copy each, and two more come: each of the three leads one after a while.
func TestClusterTheOnlyCopyOfABusyPartitionMovesToAServerThatComes(t *testing.T) {
	needsCluster(t)
	t.Parallel()
	evensOut(t, 1, 1, 3)
}

// TestClusterCopiesOfBusyPartitionsMoveToServersThatCome is the same with two copies of four partitions on two servers, and two more that come.
func TestClusterCopiesOfBusyPartitionsMoveToServersThatCome(t *testing.T) {
	needsCluster(t)
	t.Parallel()
	evensOut(t, 2, 2, 4)
}

// evensOut has as many partitions as servers, all on the first ones, while the same number of rows a second comes to each; then the other servers come. Within some minutes each server leads one
// and accepts at most 1.25 times the mean; no write failed meanwhile. Then no copy moves for CLUSTER_STEADY, and every acked row is there. The times are the product's own: a server counts as
// settled after a minute, a partition is measured for half a minute, sizes are asked for once a minute, and half a minute passes between two moves.
func evensOut(t *testing.T, replicas, first, servers int) {
	steady := processtest.EnvDuration(t, "CLUSTER_STEADY", time.Minute)
	c, later := newCrowdOf(t, processes.Plan{Etcd: 1, Storage: servers, Gateways: 1, Env: []string{"SPILLWAY_TABLES_BALANCE_ROWS=100"}}, first)
	width := 24 * time.Hour // rows go on coming to a partition of now for long enough that a copy is worth its price
	for width-time.Duration(time.Now().UnixNano())%width < 2*time.Hour+steady {
		width += time.Hour
	}
	still := watchStandstill(t)
	var ps []lease.Partition
	var all []*trickle
	for i := range servers {
		table := fmt.Sprintf("busy%d", i)
		c.table(table, width, replicas)
		ps = append(ps, c.cover(table, time.Now(), width, 1)...)
		m, _ := c.view.Tables.Get(table)
		at, _ := m.ByID(ps[i].ID)
		all = append(all, &trickle{c: c, table: table, from: time.Unix(0, at.TimeLo), still: still})
	}
	const patience = 10 * time.Minute
	c.within(patience, "the first servers have all copies, and lead", func() bool {
		for _, s := range c.Storage {
			if len(c.led(ps, topology.ServerID(s.Name))) == 0 {
				return false
			}
		}
		return c.moved(ps, replicas)()
	})
	var stop atomic.Bool
	var wg sync.WaitGroup
	for _, tr := range all {
		wg.Go(func() { tr.run(&stop) })
	}
	defer wg.Wait()
	defer stop.Store(true)
	c.within(processtest.Patience, "rows of all are acked", func() bool {
		return !slices.ContainsFunc(all, func(tr *trickle) bool { return tr.acked.Load() == 0 })
	})
	c.Storage = append(c.Storage, later...)
	c.start(later...)
	began, last := time.Now(), ""
	places := func() string { // each change is logged
		copies, leads := "", ""
		for _, p := range ps {
			m, _ := c.view.Tables.Get(p.Table)
			at, _ := m.ByID(p.ID)
			s, _ := c.leader(p)
			leads += fmt.Sprintf(" %q", s)
			copies += " ["
			for _, pl := range at.Placements {
				copies += string(pl.Server) + " "
			}
			for _, pl := range at.Joining {
				copies += "+" + string(pl.Server) + " "
			}
			copies += "]"
		}
		if now := fmt.Sprintf("copies on%s, led by%s", copies, leads); now != last {
			last = now
			t.Logf("%v: %s", time.Since(began).Round(time.Second), now)
		}
		return copies
	}
	c.within(patience, "each server leads one of the busy partitions, and no copy moves", func() bool {
		places()
		return !slices.ContainsFunc(c.Storage, func(s *processes.Process) bool { return len(c.led(ps, topology.ServerID(s.Name))) != 1 }) && c.moved(ps, replicas)() && !c.moving()
	})
	c.within(2*processtest.Patience, "no server accepts more than 1.25 times the mean", func() bool {
		places()
		rows, ok := c.accepted()
		if ok {
			t.Logf("%v: rows/s %v", time.Since(began).Round(time.Second), rows)
		}
		return ok && slices.Max(rows)*int64(len(rows))*100 <= 125*sum(rows)
	})
	was := places()
	for end := time.Now().Add(steady); time.Now().Before(end); time.Sleep(time.Second) { // a move needs several rounds of the master, of 5 s
		if now := places(); now != was || c.moving() {
			t.Fatalf("loads were even with copies on%s; %v later a copy moves, and they are on%s", was, steady-time.Until(end), now)
		}
	}
	rows, _ := c.accepted()
	t.Logf("%v: rows/s %v", time.Since(began).Round(time.Second), rows)
	stop.Store(true)
	wg.Wait()
	for _, tr := range all {
		tr.check()
	}
}

// accepted returns the rows a second that each server accepts as the leader, as `spillway server show` has them; false: one does not report them yet.
func (c *crowd) accepted() (rows []int64, ok bool) {
	c.t.Helper()
	for _, s := range c.Storage {
		r := c.shown(topology.ServerID(s.Name))
		if r.Rows == nil {
			return nil, false
		}
		rows = append(rows, *r.Rows)
	}
	return rows, true
}

// moving reports whether the registry has a move of a copy that has not ended.
func (c *crowd) moving() bool {
	return slices.ContainsFunc(c.view.Registry.All(), func(s registry.Server) bool { return len(s.Moves) > 0 })
}

func sum(of []int64) (n int64) {
	for _, x := range of {
		n += x
	}
	return n
}

// trickle writes the same number of rows each second to one table, from a time on. Rows that are not acked are sent again, as they were.
type trickle struct {
	c     *crowd
	table string
	from  time.Time
	still *standstill

	acked, failed atomic.Int64 // rows, and requests
	wrong         atomic.Pointer[string]
}

func (tr *trickle) run(stop *atomic.Bool) {
	const rows, series = 500, 10
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for ; !stop.Load(); <-tick.C {
		var lines strings.Builder
		for k := range int64(rows) {
			n := tr.acked.Load() + k
			fmt.Fprintf(&lines, "hot,i=%d v=%d %d\n", n%series, n, tr.from.UnixMilli()+n/series)
		}
		before := tr.still.sum()
		status, text, err := processtest.PutLine(tr.c.doors[0], tr.table, lines.String())
		switch {
		case err == nil && status == http.StatusNoContent:
			tr.acked.Add(rows)
		case status == http.StatusServiceUnavailable && tr.still.sum()-before >= stoodStill:
			tr.c.t.Logf("this machine stood still for %v, and a write was refused: %.300s", tr.still.sum()-before, text)
		default:
			tr.failed.Add(1)
			why := fmt.Sprintf("after %d rows: %d %.300s %v", tr.acked.Load(), status, text, err)
			tr.wrong.Store(&why)
		}
	}
}

// check reads every acked row.
func (tr *trickle) check() {
	n := tr.acked.Load()
	tr.c.t.Logf("%s: %d rows acked", tr.table, n)
	if why := tr.wrong.Load(); why != nil {
		tr.c.t.Errorf("%s: %d writes failed, the last one %s", tr.table, tr.failed.Load(), *why)
	}
	query, want := "sum(count_over_time(hot_v[2h]))", fmt.Sprintf("\"%d\"", n)
	if status, text := processtest.Ask(tr.c.doors[0], tr.table, query, tr.from.Add(time.Hour)); status != http.StatusOK || !strings.Contains(text, want) {
		tr.c.t.Errorf("%s: %d rows were acked: %d %.300s", tr.table, n, status, text)
	}
}
