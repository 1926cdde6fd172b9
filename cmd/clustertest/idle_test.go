package clustertest

import (
	"net/http"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/cmd/internal/processes"
	"github.com/spillwaydb/spillway/cmd/internal/processtest"
	"github.com/spillwaydb/spillway/metadata/topology"
)

// TestClusterCopiesOfQuietChainsAreWhole lets the chains become quiet, then freezes the server that leads most: the first queries have every row, although no copy is
// sure and no head answers. Once it is back rows are acked at once, and once more after another rest in which a follower was killed.
func TestClusterCopiesOfQuietChainsAreWhole(t *testing.T) {
	needsCluster(t)
	t.Parallel()
	c := newCrowd(t, processes.Plan{Etcd: 1, Storage: 3, Gateways: 2})
	r := newReads(c)
	r.fill(200)
	r.allInSync()
	time.Sleep(75 * time.Second) // nothing comes for a minute
	ask := func(what string) {
		t.Helper()
		for i, d := range c.doors {
			status, rows, _, took, text := r.count(d, "")
			t.Logf("%s, gateway %d: %d rows after %v; %v hedges, %v merged answers", what, i, rows, took.Round(time.Millisecond),
				processtest.Metric(t, d.Addr, "spillway_fanout_hedges_total"), processtest.Metric(t, d.Addr, "spillway_fanout_merged_answers_total"))
			if status != http.StatusOK || int64(rows) != r.acked.Load() { // warnings are about the store, which a busy machine may be slow to ask
				t.Errorf("%s, gateway %d: %d with %d rows, want %d: %s", what, i, status, rows, r.acked.Load(), text)
			}
		}
	}
	ask("at rest")
	victim := c.server(c.leadsMost(c.partitions("copied")))
	c.must(victim.Pause())
	ask("the leader is frozen")
	ps := c.partitions("copied")
	c.within(processtest.Patience, "another leads", func() bool { return len(c.unled(ps)) == 0 && len(c.led(ps, topology.ServerID(victim.Name))) == 0 })
	ask("another leads")
	c.must(victim.Resume())
	began := time.Now()
	r.fill(8)
	t.Logf("8 rows are acked after %v", time.Since(began).Round(time.Millisecond))
	ask("rows came")
	r.allInSync()
	time.Sleep(75 * time.Second) // once more
	victim.Kill()
	began = time.Now()
	r.fill(8)
	t.Logf("a server is killed at rest: 8 rows are acked after %v", time.Since(began).Round(time.Millisecond))
	ask("a server is dead")
}
