package clustertest

import (
	"fmt"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/cmd/internal/processes"
	"github.com/spillwaydb/spillway/cmd/internal/processtest"
	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/topology"
)

// TestClusterOfAThousandPartitions has 1,000 active partitions on five servers. It measures their cost for etcd in the
// idle state, and the time until others lead the partitions of a lost server. CLUSTER_STEADY is how long is measured.
func TestClusterOfAThousandPartitions(t *testing.T) {
	needsCluster(t)
	const n = 1000
	steady := processtest.EnvDuration(t, "CLUSTER_STEADY", 6*time.Second)
	c := newCrowd(t, processes.Plan{Etcd: 1, Storage: 5, Gateways: 1, Env: []string{unmerged}})
	c.table("many", time.Second, 3)
	began, from := time.Now(), time.Now().Truncate(time.Hour).Add(-time.Hour)
	ps := c.cover("many", from, time.Second, n)
	t.Logf("%d partitions made and led within %v", len(ps), time.Since(began).Round(time.Millisecond))

	lost := c.leadsAbout(ps, n/5)
	led := c.led(ps, lost)
	still := watchStandstill(t)
	began = time.Now()
	c.server(lost).Kill()
	took, stood := c.moves(led, lost, began), still.sum()
	t.Logf("%s is lost: all that it led are led by others: %s; this machine stood still for %v", lost, spreadOf(took), stood.Round(time.Millisecond))
	if last := took[len(took)-1]; last-stood > 12*time.Second { // leases promise 6 s, on a machine that has the time
		t.Errorf("the last of %d was led after %v", len(led), last)
	}
	c.start(c.server(lost))

	began = time.Now()
	lines := make([]string, n)
	for i := range lines {
		lines[i] = fmt.Sprintf("m,i=%d v=%d %d", i, i, from.Add(time.Duration(i)*time.Second).UnixMilli())
	}
	requests := c.ackAll("many", lines)
	t.Logf("a row in each of them acked after %v, in %d requests", time.Since(began).Round(time.Millisecond), requests)
	if got := c.doors[0].RowsOf("many", "m_v", "3h", from.Add(time.Hour)); len(got) != n {
		t.Errorf("%d series are there", len(got))
	}

	c.within(processtest.Patience, "nothing is staged", func() bool { return c.waiting() == 0 })
	inTime(t, "an idle cluster writes 10 times a second to its store, and etcd takes a tenth of a core", func() bool { return c.idles(steady) })
	c.within(processtest.Patience, "all partitions are led", func() bool { return len(c.unled(ps)) == 0 })
}

// idles measures for a while what an idle cluster costs its store, and reports whether that is little. The effects of the rows before are
// over.
func (c *crowd) idles(steady time.Duration) bool {
	c.t.Helper()
	time.Sleep(2 * time.Second) // nothing that can be read shows those effects
	_, rev, err := c.view.Coord.List(c.t.Context(), "nothing/")
	c.must(err)
	cpu, puts := processtest.Metric(c.t, c.EtcdClients[0], "process_cpu_seconds_total"), processtest.Metric(c.t, c.EtcdClients[0], "etcd_mvcc_put_total")
	began := time.Now()
	time.Sleep(steady) // what an idle cluster costs in this time is measured
	seconds := time.Since(began).Seconds()
	_, rev2, err := c.view.Coord.List(c.t.Context(), "nothing/")
	c.must(err)
	writes := float64(rev2-rev) / seconds
	core := (processtest.Metric(c.t, c.EtcdClients[0], "process_cpu_seconds_total") - cpu) / seconds
	c.t.Logf("steady over %.0f s: %.1f transactions/s, %.1f rows/s written to etcd, which takes %.2f%% of a core", seconds, writes,
		(processtest.Metric(c.t, c.EtcdClients[0], "etcd_mvcc_put_total")-puts)/seconds, 100*core)
	return writes <= 10 && core <= 0.1 // docs/proofs/cluster.md has the figures of an otherwise idle machine
}

// leadsAbout returns the server with the number of partitions nearest to n.
func (c *crowd) leadsAbout(ps []lease.Partition, n int) (best topology.ServerID) {
	off := len(ps) + 1
	for _, p := range c.Storage {
		s := topology.ServerID(p.Name)
		if d := len(c.led(ps, s)) - n; max(d, -d) < off {
			best, off = s, max(d, -d)
		}
	}
	return best
}
