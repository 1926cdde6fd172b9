package clustertest

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/cmd/internal/processes"
	"github.com/spillwaydb/spillway/cmd/internal/processtest"
	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/protocols/point"
)

// TestClusterFuturePartitionsCostNothing has CLUSTER_PRESENT partitions with rows on three storage servers and measures their cost
// in the idle state; then CLUSTER_FUTURE more are made for hours to come, and it measures again: CPU of servers and etcd,
// memory of servers, transactions, and bytes that etcd sends. Then a row of the future is acked, and is read through the
// gateway, and others through another gateway at once; the others still have no lease rows. CLUSTER_HEAP names a directory for heap profiles of the servers with all partitions.
func TestClusterFuturePartitionsCostNothing(t *testing.T) {
	needsCluster(t)
	t.Parallel()
	future, steady := processtest.EnvInt(t, "CLUSTER_FUTURE", 5000), processtest.EnvDuration(t, "CLUSTER_STEADY", 6*time.Second)
	// A thousand used a processor for a minute and a half, most of it in the minute before their chains are quiet; and the fewer there are, the less
	// those of the future may cost.
	n := processtest.EnvInt(t, "CLUSTER_PRESENT", 300)
	c := newCrowd(t, processes.Plan{Etcd: 1, Storage: 3, Gateways: 2, Env: []string{unmerged}})
	c.table("many", time.Second, 3)
	from := time.Now().Truncate(time.Hour).Add(-4 * time.Hour)
	c.cover("many", from, time.Second, n)
	c.rowInEach("many", from, n, 1)
	time.Sleep(90 * time.Second) // the effects of that are over, and the chains are quiet
	alone := c.cost(steady)
	t.Logf("%d partitions: %v", n, alone)

	began, later := time.Now(), time.Now().Truncate(time.Second).Add(9*time.Minute) // rows more than ten minutes ahead are refused
	for at := 0; at < future; at += 5000 {
		var times []point.Nanos
		for i := at; i < min(future, at+5000); i++ {
			times = append(times, later.Add(time.Duration(i)*time.Second).UnixNano())
		}
		_, err := c.view.Tables.Cover(t.Context(), "many", times)
		c.must(err)
	}
	t.Logf("%d partitions of the future made within %v", future, time.Since(began).Round(time.Millisecond))
	time.Sleep(12 * time.Second) // the effects of that are over
	inTime(t, "partitions of the future cost little", func() bool {
		both := c.cost(steady)
		t.Logf("%d partitions, %d of them of the future: %v", n+future, future, both)
		t.Logf("ratios: servers' CPU %.2f, etcd's CPU %.2f, transactions %.2f, bytes sent by etcd %.2f, memory %.2f",
			both.servers/alone.servers, both.etcd/alone.etcd, both.writes/alone.writes, both.sent/alone.sent, both.memory/alone.memory)
		return both.writes <= 2*alone.writes && both.servers <= 2*alone.servers+3 // the goal is 1.2 times, on an otherwise idle machine
	})
	c.heapProfiles(os.Getenv("CLUSTER_HEAP"))
	if rows := c.leaseRows("many"); rows != n {
		t.Errorf("%d lease rows, want %d", rows, n)
	}
	if ahead, text := c.shownAhead("many"); ahead != future {
		t.Errorf("the page shows %d partitions as ahead of their time, want %d: %.2000s", ahead, future, text)
	}

	began = time.Now()
	ms := later.UnixMilli() + 500
	c.acksAt(c.doors[0], "many", fmt.Sprintf("early,i=1 v=7 %d", ms))
	t.Logf("a row of the future is acked after %v", time.Since(began).Round(time.Millisecond))
	if got := c.doors[0].RowsOf("many", "early_v", "8h", later.Add(time.Hour)); len(got) != 1 {
		t.Errorf("it is read as %v", got)
	}
	// A row is acked when it is staged, before a server leads.
	c.within(processtest.Patience, "its partition has a lease row", func() bool { return c.leaseRows("many") > n })
	if rows := c.leaseRows("many"); rows != n+1 {
		t.Errorf("%d lease rows after it, want %d", rows, n+1)
	}
	const others = 20 // first rows of others, each read through the other gateway at once
	for i := range others {
		at := later.Add(time.Duration(10+i) * time.Second)
		c.acksAt(c.doors[0], "many", fmt.Sprintf("other,i=%d v=7 %d", i, at.UnixMilli()+500))
		if got := c.doors[1].RowsOf("many", "other_v", "8h", later.Add(time.Hour)); len(got) != i+1 {
			t.Fatalf("the other gateway reads %d rows of the future at once, of %d", len(got), i+1)
		}
	}
}

// shownAhead counts the partitions that the page shows as led by no server because their time has not come.
func (c *crowd) shownAhead(table string) (n int, text string) {
	c.t.Helper()
	_, body, err := c.doors[0].Get("/api/v1/status/cluster?table=" + table)
	c.must(err)
	var answer struct {
		Data struct {
			Tables []struct {
				Partitions []struct {
					Ahead  bool    `json:"ahead"`
					Leader string  `json:"leader"`
					Rows   *uint64 `json:"rows"`
				} `json:"partitions"`
			} `json:"tables"`
		} `json:"data"`
	}
	c.must(json.Unmarshal([]byte(body), &answer))
	for _, t := range answer.Data.Tables {
		for _, p := range t.Partitions {
			if p.Ahead && p.Leader == "" && p.Rows != nil && *p.Rows == 0 {
				n++
			}
		}
	}
	return n, string(body)
}

func (c *crowd) leaseRows(table string) int {
	c.t.Helper()
	n := 0
	c.within(processtest.Patience, "lease rows are read", func() bool {
		rows, _, err := c.view.Coord.List(c.t.Context(), strings.TrimSuffix(lease.RowKey(lease.Partition{Table: table}), fmt.Sprintf("%020d", 0)))
		n = len(rows)
		return err == nil
	})
	return n
}

// heapProfiles writes the heap profiles of all storage servers into a directory, if one is given.
func (c *crowd) heapProfiles(dir string) {
	c.t.Helper()
	if dir == "" {
		return
	}
	for i, addr := range c.Admin {
		answer, err := http.Get("http://" + addr + "/debug/pprof/heap?gc=1")
		c.must(err)
		b, err := io.ReadAll(answer.Body)
		c.must(errors.Join(err, answer.Body.Close()))
		c.must(os.WriteFile(fmt.Sprintf("%s/s%d.pprof", dir, i+1), b, 0o600))
	}
}

// cost is the use of resources by an idle cluster.
type cost struct {
	servers, etcd float64 // % of a core
	writes, sent  float64 // transactions and bytes a second
	memory        float64 // of all servers, MiB
}

func (x cost) String() string {
	return fmt.Sprintf("servers take %.2f %% of a core together and %.0f MiB, etcd %.2f %%, %.1f transactions/s, %.0f bytes/s sent by etcd", x.servers, x.memory, x.etcd, x.writes, x.sent)
}

func (c *crowd) cost(over time.Duration) (x cost) {
	c.t.Helper()
	revision := func() (rev coord.Revision) {
		c.within(processtest.Patience, "the revision is read", func() bool {
			var err error
			_, rev, err = c.view.Coord.List(c.t.Context(), "nothing/")
			return err == nil
		})
		return rev
	}
	etcd := func(name string) float64 { return processtest.Metric(c.t, c.EtcdClients[0], name) }
	rev, cpu, sent, servers := revision(), etcd("process_cpu_seconds_total"), etcd("etcd_network_client_grpc_sent_bytes_total"), c.cpuTimes()
	time.Sleep(over) // what the cluster costs in this time is measured
	for i, now := range c.cpuTimes() {
		x.servers += 100 * (now - servers[i]).Seconds() / over.Seconds()
	}
	x.etcd = 100 * (etcd("process_cpu_seconds_total") - cpu) / over.Seconds()
	x.sent = (etcd("etcd_network_client_grpc_sent_bytes_total") - sent) / over.Seconds()
	x.writes = float64(revision()-rev) / over.Seconds()
	for _, p := range c.Storage {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", p.PID()))
		c.must(err)
		pages, err := strconv.ParseFloat(strings.Fields(string(b))[1], 64)
		c.must(err)
		x.memory += pages * float64(os.Getpagesize()) / (1 << 20)
	}
	return x
}
