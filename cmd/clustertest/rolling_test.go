package clustertest

import (
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/cmd/internal/processes"
	"github.com/spillwaydb/spillway/cmd/internal/processtest"
)

// TestClusterCopiesRollingRestart stops and starts one storage server after the other as an operator does, while senders write by three protocols: a
// server that stops hands its leases over, and leaves the chains of its copies. No write is refused, none waits as long as until a dead server's
// lease may be acquired, and every acked row is there.
func TestClusterCopiesRollingRestart(t *testing.T) {
	needsCluster(t)
	seed := uint64(processtest.EnvInt(t, "TEST_SEED", int(rand.Uint32())))
	t.Logf("TEST_SEED=%d", seed)
	c := newCrowd(t, processes.Plan{Etcd: 1, Storage: 3, Gateways: 2, Env: restless})
	c.table("default", time.Hour, 3)
	senders := []*sender{c.sender(0, seed), c.sender(1, seed), c.sender(2, seed)}
	c.warm()
	still := watchStandstill(t)
	for _, victim := range c.Storage {
		ps := c.partitions("default")
		c.within(2*processtest.Patience, "all three are in sync", func() bool {
			for _, p := range ps {
				if leader, _ := c.leader(p); leader == "" || len(c.inSync(p)) < 3 {
					return false
				}
			}
			return true
		})
		for _, s := range senders {
			s.gap = 0
		}
		before := still.sum()
		stop := c.load(senders)
		time.Sleep(300 * time.Millisecond)
		began := time.Now()
		c.must(victim.Terminate())
		<-victim.Done()
		away, said := time.Since(began), farewell(victim)
		time.Sleep(500 * time.Millisecond)
		c.start(victim)
		time.Sleep(500 * time.Millisecond)
		stop()
		slowest := time.Duration(0)
		for _, s := range senders {
			slowest = max(slowest, s.gap)
		}
		stood := still.sum() - before
		t.Logf("%s ended %v after it was asked to; longest time without an ack %v, of which the machine may have stood still for %v; %s",
			victim.Name, away.Round(time.Millisecond), slowest.Round(time.Millisecond), stood.Round(time.Millisecond), said)
		if slowest > rollingMax+stood {
			t.Errorf("%s was restarted, and a writer waited for %v", victim.Name, slowest)
		}
	}
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

// rollingMax is how long a writer may wait while a server stops: less than until a dead server's lease may be acquired, which is 4 s.
const rollingMax = 4 * time.Second

// farewell is a server's report of its copies when it stopped.
func farewell(p *processes.Process) (last string) {
	for line := range strings.Lines(p.Said()) {
		if strings.Contains(line, "copies left their chains") || strings.Contains(line, "lease was let go") {
			last = strings.TrimSpace(line)
		}
	}
	return last
}
