package clustertest

import (
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/cmd/internal/processes"
	"github.com/spillwaydb/spillway/cmd/internal/processtest"
	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/topology"
)

// TestClusterIsUpgradedToCopies starts a cluster whose servers keep no copies, as those of older builds, and restarts one after the other with copies, while
// senders write. In each mixture new partitions accept rows, and list no follower that keeps no copies. At the end all servers have all rows: one is killed,
// and every acked row is there.
func TestClusterIsUpgradedToCopies(t *testing.T) {
	needsCluster(t)
	t.Parallel()
	seed := uint64(processtest.EnvInt(t, "TEST_SEED", int(rand.Uint32())))
	t.Logf("TEST_SEED=%d", seed)
	c := newCrowd(t, processes.Plan{Etcd: 1, Storage: 3, Gateways: 2, Env: []string{"SPILLWAY_STORAGE_COPIES=false"}})
	c.table("default", time.Hour, 3)
	senders := []*sender{c.sender(0, seed), c.sender(1, seed), c.sender(2, seed)}
	stop := c.load(senders)
	defer func() { stop() }()
	on := map[topology.ServerID]bool{}
	written := map[string]map[string]int64{} // by table
	all := []lease.Partition{}
	for _, s := range c.Storage {
		c.must(s.Terminate())
		<-s.Done()
		s.Env = append(slices.Clone(s.Env), "SPILLWAY_STORAGE_COPIES=true")
		c.start(s)
		on[topology.ServerID(s.Name)] = true
		table := "since_" + s.Name
		c.table(table, time.Minute, 3)
		ps := c.cover(table, time.Now().Truncate(time.Hour).Add(-time.Hour), time.Minute, 9)
		written[table] = c.putInto(table, ps, 1)
		c.listsCopies(ps, on)
		all = append(all, ps...)
	}
	all = append(all, c.partitions("default")...)
	c.within(3*processtest.Patience, "all servers have all rows", func() bool {
		return !slices.ContainsFunc(all, func(p lease.Partition) bool { return len(c.inSync(p)) != 3 })
	})
	stop()
	stop = func() {}
	c.Storage[0].Kill()
	for table, rows := range written {
		c.holdsOnce(table, rows)
	}
	for _, s := range senders {
		c.answers("default", s.metric)
		s.check()
	}
	c.report(senders)
}

// listsCopies checks that partitions have rows, and that of several listed servers each keeps copies.
func (c *crowd) listsCopies(ps []lease.Partition, on map[topology.ServerID]bool) {
	c.t.Helper()
	sizes := map[int]int{}
	for _, p := range ps {
		list := c.inSync(p)
		sizes[len(list)]++
		if len(list) > 1 && slices.ContainsFunc(list, func(s topology.ServerID) bool { return !on[s] }) {
			c.t.Errorf("%v lists %v, and copies are kept by %v alone", p, list, on)
		}
	}
	if sizes[0] > 0 {
		c.t.Errorf("%d partitions that took rows list no server", sizes[0])
	}
	c.t.Logf("%d of 3 servers keep copies: partitions by the length of their lists: %v", len(on), sizes)
}

// TestClusterRollsFromAnEarlierBuildAndBack starts a cluster of the program of an earlier commit, replaces one process after the other by the present one, and then by the
// earlier one again, while senders write: an upgrade, and one that is given up. No write is refused, and every acked row is read in the middle and at the end, when each
// build has the files of the other.
func TestClusterRollsFromAnEarlierBuildAndBack(t *testing.T) {
	needsCluster(t)
	t.Parallel()
	earlier, present := builds(t)
	seed := uint64(processtest.EnvInt(t, "TEST_SEED", int(rand.Uint32())))
	t.Logf("TEST_SEED=%d", seed)
	c := newCrowd(t, processes.Plan{Bin: earlier, Etcd: 1, Storage: 3, Gateways: 2, Env: restless})
	c.table("default", time.Hour, 3)
	senders := []*sender{c.sender(0, seed), c.sender(1, seed), c.sender(2, seed)}
	c.warm()
	for _, bin := range []string{present, earlier} {
		stop := c.load(senders)
		for _, p := range slices.Concat(c.Storage, c.Gateways) {
			c.within(3*processtest.Patience, "all three are in sync", func() bool {
				return !slices.ContainsFunc(c.partitions("default"), func(p lease.Partition) bool {
					leader, _ := c.leader(p)
					return leader == "" || len(c.inSync(p)) < 3
				})
			})
			c.must(p.Terminate())
			<-p.Done()
			p.Line = append([]string{bin}, p.Line[1:]...)
			c.start(p)
		}
		stop()
		for _, s := range senders {
			c.answers("default", s.metric)
			s.check()
			for code, n := range s.codes {
				if code != http.StatusNoContent {
					t.Errorf("while %s took over %d writes were answered with %d", bin, n, code)
				}
			}
		}
	}
	c.report(senders)
}

// builds returns the programs of an earlier build and of the present one. Without an earlier one the test is skipped.
func builds(t *testing.T) (earlier, present string) {
	earlier, present = os.Getenv("CLUSTER_PREVIOUS"), os.Getenv("CLUSTER_BIN")
	if present == "" {
		present = processtest.Program(t)
	}
	if _, err := os.Stat(earlier); earlier == "" || err != nil {
		t.Skip("no upgrade from an earlier build is tested: .ci/previous has built none, since this clone lacks its commit")
	}
	return earlier, present
}
