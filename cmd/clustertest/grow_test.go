package clustertest

import (
	"math/rand/v2"
	"net/http"
	"testing"

	"github.com/spillwaydb/spillway/cmd/internal/processes"
	"github.com/spillwaydb/spillway/cmd/internal/processtest"
	"github.com/spillwaydb/spillway/metadata/lease"
)

// TestClusterGrowsFromOneServer starts a cluster of one storage server, without a setting, and writes all the time. Two more come: what the first one holds
// gets its copies, and no write is refused. Then the first one is killed: every acked row is there.
func TestClusterGrowsFromOneServer(t *testing.T) {
	needsCluster(t)
	t.Parallel()
	seed := uint64(processtest.EnvInt(t, "TEST_SEED", int(rand.Uint32())))
	t.Logf("TEST_SEED=%d", seed)
	c, later := newCrowdOf(t, processes.Plan{Etcd: 1, Storage: 3, Gateways: 2}, 1)
	senders := []*sender{c.sender(0, seed), c.sender(1, seed), c.sender(2, seed)}
	stop := c.load(senders)
	c.ackMore(senders) // a server that has just begun may refuse the first rows
	stop()
	for _, s := range senders {
		s.codes = map[int]int{}
	}
	stop = c.load(senders)
	defer func() { stop() }()
	var ps []lease.Partition
	c.within(processtest.Patience, "a single server takes rows", func() bool {
		ps = nil
		for _, p := range c.partitions("default") {
			if len(c.inSync(p)) == 1 {
				ps = append(ps, p)
			}
		}
		return len(ps) > 0
	})
	if m, _ := c.view.Tables.Get("default"); m.Config.Replicas != 3 {
		t.Errorf("a table made by a write has %d replicas, want 3", m.Config.Replicas)
	}
	for i, s := range later {
		c.Storage = append(c.Storage, s)
		c.start(s)
		c.within(2*processtest.Patience, s.Name+" has a copy of all", func() bool {
			for _, p := range ps {
				m, _ := c.view.Tables.Get(p.Table)
				if at, ok := m.ByID(p.ID); !ok || len(at.Placements) != i+2 || len(c.inSync(p)) != i+2 {
					return false
				}
			}
			return true
		})
	}
	stop()
	stop = func() {}
	c.Storage[0].Kill()
	for _, s := range senders {
		for code, n := range s.codes {
			if code != http.StatusNoContent {
				t.Errorf("%d writes were answered with %d", n, code)
			}
		}
		c.answers("default", s.metric)
		s.check()
	}
	c.report(senders)
}
