package clustertest

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/cmd/internal/processes"
	"github.com/spillwaydb/spillway/cmd/internal/processtest"
	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/point"
)

// led is the leader of a partition, and its epoch.
type led struct {
	server topology.ServerID
	epoch  point.Epoch
}

func (c *crowd) leases(ps []lease.Partition) map[lease.Partition]led {
	out := map[lease.Partition]led{}
	for _, p := range ps {
		s, e := c.leader(p)
		out[p] = led{s, e}
	}
	return out
}

// alive fails the test when a process has ended.
func (c *crowd) alive(ps ...*processes.Process) {
	c.t.Helper()
	for _, p := range ps {
		select {
		case <-p.Done():
			c.t.Fatalf("%s ended by itself", p.Name)
		default:
		}
	}
}

// TestClusterGoesOnWithoutEtcd stops one of three etcd members, then all for a while (CLUSTER_ETCD_AWAY).
// Reads go on, also through a gateway that is started meanwhile; writes are acked or answered with 503; when etcd is back,
// everything goes on by itself, and no lease of a partition with rows has moved.
func TestClusterGoesOnWithoutEtcd(t *testing.T) {
	needsCluster(t)
	t.Parallel()
	seed, away := uint64(processtest.EnvInt(t, "TEST_SEED", int(rand.Uint32()))), processtest.EnvDuration(t, "CLUSTER_ETCD_AWAY", 15*time.Second)
	t.Logf("TEST_SEED=%d CLUSTER_ETCD_AWAY=%v", seed, away)
	c := newCrowd(t, processes.Plan{Etcd: 3, Storage: 3, Gateways: 2, Env: restless})
	c.table("moving", time.Minute, 3)
	moving := c.cover("moving", time.Now().Truncate(time.Hour).Add(-4*time.Hour), time.Minute, 30)
	senders := []*sender{c.sender(0, seed), c.sender(1, seed)}
	warm := func() string { return fmt.Sprintf("warm,i=0 v=1 %d", time.Now().UnixMilli()) }
	c.warm()
	ps := append(c.partitions("default"), moving...)
	c.within(processtest.Patience, "all are led", func() bool { return len(c.unled(ps)) == 0 })
	before := c.leases(ps)
	empty := c.emptyOf(ps)

	stop := c.load(senders)
	for _, m := range c.Etcd {
		m.Kill()
		time.Sleep(1500 * time.Millisecond)
		c.start(m)
	}
	stop()
	c.report(senders)
	for _, s := range senders {
		s.gap, s.codes = 0, map[int]int{}
		s.check()
	}
	c.unmoved(before, empty, "one etcd member after the other was killed")

	for _, m := range c.Etcd {
		m.Kill()
	}
	began := time.Now()
	stop = c.load(senders)
	var refusing sync.WaitGroup
	refusing.Go(func() { c.refusesWithoutEtcd(moving) })
	half := away / 2
	reads := c.readsWithoutEtcd(began.Add(half))
	refusing.Wait()
	c.readsWhatHadNoRows()
	c.Gateways[1].Kill()
	restarted := time.Now()
	c.must(c.Gateways[1].Launch())
	c.hangsNobody(c.Gateways[1].Ready)
	t.Logf("a gateway that was killed and started without etcd was ready after %v", time.Since(restarted).Round(time.Millisecond))
	reads += c.readsWithoutEtcd(time.Now().Add(half))
	stop()
	t.Logf("without etcd for %v: %d reads, all answered", time.Since(began).Round(time.Millisecond), reads)
	c.report(senders)
	for _, s := range senders {
		for _, s.p = range c.doors {
			if s.check(); t.Failed() {
				t.Fatal("without etcd")
			}
		}
		s.codes = map[int]int{}
	}

	c.start(c.Etcd...)
	back := c.acks("default", warm())
	t.Logf("etcd is back: acks through both gateways after %v", back.Round(time.Millisecond))
	c.within(processtest.Patience, "all are led", func() bool { return len(c.unled(ps)) == 0 })
	inTime(t, "etcd is back and acks came, and then every row is acked", func() bool {
		for _, s := range senders {
			s.codes = map[int]int{}
		}
		stop := c.load(senders)
		time.Sleep(6 * time.Second) // longer than the acquisition of a lease needs
		stop()
		all := true
		for _, s := range senders {
			s.check()
			for code, n := range s.codes {
				if code != http.StatusNoContent {
					t.Logf("%d answers were %d", n, code)
					all = false
				}
			}
		}
		return all
	})
	c.unmoved(before, empty, "etcd was away")
	c.alive(c.All()...)
}

// hangsNobody sends requests to a starting process until it serves: it refuses, or answers soon.
func (c *crowd) hangsNobody(url string) {
	c.t.Helper()
	still := watchStandstill(c.t)
	client := http.Client{Timeout: 3 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	late := 0
	c.within(processtest.Patience, url+" is ready", func() bool {
		before := still.sum()
		answer, err := client.Get(url)
		if err != nil {
			// A process that hangs does so again and again; on a busy machine one answer may come late.
			if os.IsTimeout(err) && still.sum()-before < time.Second {
				if late++; late == 3 {
					c.t.Errorf("a process that is starting took connections and did not answer: %v", err)
				}
			}
			return false
		}
		_ = answer.Body.Close()
		return answer.StatusCode == http.StatusOK
	})
}

// refusesWithoutEtcd makes writes that need etcd, once no lease is valid any more: a first row in a partition that other
// servers could lead, and a row of a time that no partition covers. Both are answered with 503.
func (c *crowd) refusesWithoutEtcd(empty []lease.Partition) {
	c.t.Helper()
	time.Sleep(4 * time.Second) // leases end three seconds after the last heartbeat; nothing that can be read shows the end
	m, _ := c.view.Tables.Get("moving")
	p, _ := m.ByID(empty[0].ID)
	covered := int64(p.TimeLo) / int64(time.Millisecond)
	var wg sync.WaitGroup
	for what, ms := range map[string]int64{"a first row in a partition": covered, "a row of a time without a partition": covered - 100*3600_000} {
		wg.Go(func() {
			began := time.Now()
			status, text, err := processtest.PutLine(c.doors[0], "moving", fmt.Sprintf("m,i=0 v=1 %d", ms))
			if err != nil || status != http.StatusServiceUnavailable {
				c.t.Errorf("%s: %d %s %v", what, status, text, err)
			}
			c.t.Logf("without etcd, %s: %d after %v: %s", what, status, time.Since(began).Round(time.Millisecond), text)
		})
	}
	wg.Wait()
}

// readsWhatHadNoRows asks every gateway for the table of partitions that had no row when etcd ended, as the next hour's has none when an hour ends: no server leads them now.
func (c *crowd) readsWhatHadNoRows() {
	c.t.Helper()
	for _, d := range c.doors {
		c.within(time.Minute, "partitions without rows are read through the gateway at "+d.Addr, func() bool { // etcd stays away
			status, text := processtest.AskAt(d, "moving", "sum(count_over_time(m[6h]))", time.Now())
			if status != http.StatusOK {
				c.t.Logf("a read through the gateway at %s: %d %.300s", d.Addr, status, text)
				return false
			}
			if !strings.Contains(string(text), "may be missing") {
				c.t.Errorf("the answer does not say that rows may be missing: %.300s", text)
			}
			return true
		})
	}
}

// readsWithoutEtcd asks every gateway again and again, up to a time, for the rows of every partition that has some.
func (c *crowd) readsWithoutEtcd(until time.Time) (n int) {
	c.t.Helper()
	for n == 0 || time.Now().Before(until) {
		for _, d := range c.doors {
			// A server may stand still for a moment; etcd stays away.
			c.within(time.Minute, "a read is answered through the gateway at "+d.Addr, func() bool {
				status, text := processtest.AskAt(d, "default", "sum(count_over_time(kill_0_0[6h]))", time.Now())
				if status != http.StatusOK {
					c.t.Logf("a read through the gateway at %s: %d %.300s", d.Addr, status, text)
				}
				return status == http.StatusOK
			})
			n++
		}
		time.Sleep(100 * time.Millisecond)
	}
	return n
}

// unmoved checks that the leases of partitions with rows did not change. Of empty ones it counts how many have moved: a
// server that leads more than its share for ten seconds releases one, and a server that reaches etcd four seconds before
// a leader does acquires that leader's, as may happen on a busy machine.
func (c *crowd) unmoved(before map[lease.Partition]led, empty []lease.Partition, when string) {
	c.t.Helper()
	moved := 0
	for p, was := range before {
		s, e := c.leader(p)
		switch {
		case s == was.server && e == was.epoch:
		case slices.Contains(empty, p):
			moved++
			c.t.Logf("%s: empty %v was led by %s in epoch %d, and is by %q in %d", when, p, was.server, was.epoch, s, e)
		default:
			c.t.Errorf("%s: %v was led by %s in epoch %d, and is by %q in %d", when, p, was.server, was.epoch, s, e)
		}
	}
	c.t.Logf("%s: of %d partitions with rows and %d of %d without the leases are where they were", when, len(before)-len(empty), len(empty)-moved, len(empty))
}
