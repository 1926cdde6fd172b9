package clustertest

import (
	"fmt"
	"net/http"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/cmd/internal/processes"
	"github.com/spillwaydb/spillway/cmd/internal/processtest"
)

// TestClusterEdgesCost measures the ack latency of rows of now in two tables: in one, a new partition on another server begins every two seconds; in the other, the
// partition stays the same. Each writer writes to both in turn, so that other work on the machine slows both alike: `make bench-edges`.
func TestClusterEdgesCost(t *testing.T) {
	if os.Getenv("EDGES_COST") == "" {
		t.Skip("the wait for acks across edges of partitions is measured by `make bench-edges`")
	}
	needsCluster(t)
	const width, writers, pause, slack = 2 * time.Second, 4, 5 * time.Millisecond, 10 * time.Millisecond
	edges, replicas := processtest.EnvInt(t, "EDGES", 100), processtest.EnvInt(t, "EDGES_REPLICAS", 3)
	c := newCrowd(t, processes.Plan{Etcd: 1, Storage: 3, Gateways: 2, Env: []string{unmerged}})
	tables := [...]string{"control", "edges"}
	c.table(tables[0], 24*time.Hour, replicas)
	c.table(tables[1], width, replicas)
	put := func(table string) bool {
		status, _, err := processtest.PutLine(c.doors[0], table, fmt.Sprintf("wait v=1 %d\n", time.Now().UnixMilli()))
		return err == nil && status == http.StatusNoContent
	}
	c.within(processtest.Patience, "rows without edges are acked", func() bool { return put(tables[0]) })
	c.within(processtest.Patience, "partitions of the next minutes exist", func() bool { // those of a table that gets rows of now
		m, _ := c.view.Tables.Get(tables[1])
		return put(tables[1]) && len(m.Overlapping(time.Now().UnixNano(), time.Now().Add(5*time.Minute).UnixNano())) >= 100
	})
	w := &waits{c: c, tables: tables, until: time.Now().Add(time.Duration(edges) * width)}
	var wait sync.WaitGroup
	for i := range writers {
		wait.Go(func() { w.write(i, pause) })
	}
	wait.Wait()
	var last [2]time.Duration
	for i, table := range tables {
		all := w.mu.took[i]
		if len(all) < 1000 {
			t.Fatalf("%s: %d requests were acked", table, len(all))
		}
		slices.Sort(all)
		at := func(share float64) time.Duration {
			return all[int(share*float64(len(all)-1))].Round(10 * time.Microsecond)
		}
		last[i] = at(0.999)
		t.Logf("%-7s %6d requests: median %v, p99 %v, p99.9 %v, most %v; %d failed", table, len(all), at(0.5), at(0.99), last[i], at(1), w.mu.failed[i])
		if w.mu.failed[i] > 0 {
			t.Errorf("%s: %d requests failed", table, w.mu.failed[i])
		}
	}
	t.Logf("across %d edges p99.9 is %v longer", edges, last[1]-last[0])
	if last[1] > last[0]+slack {
		t.Errorf("across edges p99.9 is %v, without any %v", last[1], last[0])
	}
}

// waits are the times until acks, of two tables.
type waits struct {
	c      *crowd
	tables [2]string
	until  time.Time

	mu struct {
		sync.Mutex
		took   [2][]time.Duration
		failed [2]int
	}
}

// write sends ten rows of now to one table, then to the other.
func (w *waits) write(writer int, pause time.Duration) {
	for n := 0; time.Now().Before(w.until); n++ {
		i := (n + writer) % 2
		lines := ""
		began := time.Now()
		for s := range 10 {
			lines += fmt.Sprintf("wait,w=%d,s=%d v=%d %d\n", writer, s, n%7, began.UnixMilli())
		}
		status, _, err := processtest.PutLine(w.c.doors[writer%len(w.c.doors)], w.tables[i], lines)
		took := time.Since(began)
		w.mu.Lock()
		w.mu.took[i] = append(w.mu.took[i], took)
		if err != nil || status != http.StatusNoContent {
			w.mu.failed[i]++
		}
		w.mu.Unlock()
		time.Sleep(pause)
	}
}
