package clustertest

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/cmd/internal/processes"
	"github.com/spillwaydb/spillway/cmd/internal/processtest"
	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/topology"
)

// TestClusterCopiesSurviveTheLossOfTheirLeader writes to a table of three replicas, kills the server that leads it, and
// reads every acked row from the next leader, while the first is away. The first starts again, is listed again, and the
// next leader is killed: every leader has every acked row.
func TestClusterCopiesSurviveTheLossOfTheirLeader(t *testing.T) {
	needsCluster(t)
	t.Parallel()
	c := newCrowd(t, processes.Plan{Etcd: 1, Storage: 3, Gateways: 2})
	c.table("copied", 24*time.Hour, 3)
	w := &copiesWriter{c: c, from: time.Now().Add(-time.Hour).Truncate(time.Minute)}
	w.write(200)
	p := c.partitions("copied")[0]
	c.within(processtest.Patience, "all three are in sync", func() bool { return len(c.inSync(p)) == 3 })
	for round := range 3 {
		was, epoch := c.waitLeader(p)
		t.Logf("round %d: %s leads in epoch %d, in sync: %v, %d rows acked", round+1, was, epoch, c.inSync(p), w.acked)
		began := time.Now()
		c.server(was).Kill()
		w.write(50)
		t.Logf("round %d: 50 more rows acked %v after the kill", round+1, time.Since(began).Round(time.Millisecond))
		c.within(processtest.Patience, "another server leads", c.ledByAnother(p, was))
		w.check()
		c.start(c.server(was))
		c.within(processtest.Patience, "all three are in sync again", func() bool { return len(c.inSync(p)) == 3 })
		t.Logf("round %d: all in sync %v after the kill", round+1, time.Since(began).Round(time.Millisecond))
		w.write(50)
	}
	w.check()
}

// ledByAnother reports whether a partition has a leader other than was.
func (c *crowd) ledByAnother(p lease.Partition, was topology.ServerID) func() bool {
	return func() bool { s, _ := c.leader(p); return s != "" && s != was }
}

// killUntilAnotherLeads kills a leader and leaves it dead until another server leads: one that starts again within the time of its
// lease leads as before.
func (c *crowd) killUntilAnotherLeads(p lease.Partition, was topology.ServerID) {
	c.t.Helper()
	c.server(was).Kill()
	c.within(processtest.Patience, "another server leads", c.ledByAnother(p, was))
}

// copiesWriter writes rows a second apart and counts the acked ones. An unacked row is sent again.
type copiesWriter struct {
	c     *crowd
	from  time.Time
	acked int
}

func (w *copiesWriter) write(n int) {
	w.c.t.Helper()
	for range n {
		line := fmt.Sprintf("kept v=%d %d", w.acked, w.from.Add(time.Duration(w.acked)*time.Second).UnixMilli())
		last := ""
		for end := time.Now().Add(processtest.Patience); ; time.Sleep(20 * time.Millisecond) {
			status, text, err := processtest.PutLine(w.c.doors[w.acked%len(w.c.doors)], "copied", line)
			if err == nil && status == http.StatusNoContent {
				break
			}
			if last = fmt.Sprintf("%d %.300s %v", status, text, err); time.Now().After(end) {
				w.c.t.Fatalf("row %d is not acked: %s", w.acked, last)
			}
		}
		w.acked++
	}
}

// check reads all acked rows through every gateway. One may refuse to answer for a while, or warn; another sum without a warning is a loss.
func (w *copiesWriter) check() {
	w.c.t.Helper()
	query := fmt.Sprintf("sum_over_time(kept_v[%ds])", w.acked+10)
	want := fmt.Sprintf("\"%d\"", w.acked*(w.acked-1)/2)
	at := w.from.Add(time.Duration(w.acked) * time.Second)
	for _, d := range w.c.doors {
		last := ""
		for end := time.Now().Add(processtest.Patience); ; time.Sleep(50 * time.Millisecond) {
			status, text := processtest.AskAt(d, "copied", query, at)
			if status == http.StatusOK && strings.Contains(text, want) {
				break
			}
			last = fmt.Sprintf("%d %.400s", status, text)
			if wrong := status == http.StatusOK && !strings.Contains(text, "warnings"); wrong || time.Now().After(end) {
				w.c.t.Fatalf("%d rows were acked, their sum should be %s: %s", w.acked, want, last)
			}
		}
	}
}

// inSync returns the servers that a partition's lease row lists.
func (c *crowd) inSync(p lease.Partition) (list []topology.ServerID) {
	row, ok, err := c.view.Coord.Get(c.t.Context(), lease.RowKey(p))
	if err != nil || !ok {
		return nil
	}
	var l lease.Lease
	if json.Unmarshal(row.Value, &l) != nil {
		return nil
	}
	for _, m := range l.InSync {
		list = append(list, m.Server)
	}
	return list
}

// TestClusterCopiesOutliveKillsAndPauses kills and freezes leaders and followers, while senders write through two
// gateways, and compares the rows read from each leader with the acked ones. CLUSTER_KILLS sets how often.
func TestClusterCopiesOutliveKillsAndPauses(t *testing.T) {
	needsCluster(t)
	t.Parallel()
	seed := uint64(processtest.EnvInt(t, "TEST_SEED", int(rand.Uint32())))
	t.Logf("TEST_SEED=%d", seed)
	c := newCrowd(t, processes.Plan{Etcd: 1, Storage: 3, Gateways: 2, Env: []string{"SPILLWAY_STORAGE_FLUSH_AGE=1s", "SPILLWAY_STORAGE_MINORS_MAX=3", "SPILLWAY_TABLES_PARTITION_WIDTH=1h"}})
	c.table("default", time.Hour, 3)
	rng := rand.New(rand.NewPCG(seed, 0))
	senders := []*sender{c.sender(0, seed), c.sender(1, seed), c.sender(2, seed)}
	c.acks("default", fmt.Sprintf("warm,i=0 v=1 %d", time.Now().UnixMilli()))
	inSync := func() bool {
		for _, p := range c.partitions("default") {
			if leader, _ := c.leader(p); leader == "" || len(c.inSync(p)) < 3 {
				return false
			}
		}
		return true
	}
	for round := range processtest.EnvInt(t, "CLUSTER_KILLS", 4) {
		c.within(2*processtest.Patience, "all three are in sync", inSync)
		ps := c.partitions("default")
		var leader topology.ServerID
		c.within(processtest.Patience, "the last partition is led", func() bool { // it may be on its way to a server below its share
			leader, _ = c.leader(ps[len(ps)-1])
			return leader != ""
		})
		victim := c.server(leader)
		for round%2 == 1 && victim.Name == string(leader) { // a follower
			victim = c.Storage[rng.IntN(len(c.Storage))]
		}
		stop := c.load(senders)
		time.Sleep(time.Duration(300+rng.IntN(1000)) * time.Millisecond)
		began := time.Now()
		if freeze := round%4 >= 2; freeze {
			c.must(victim.Pause())
			time.Sleep(7 * time.Second)
			c.must(victim.Resume())
		} else {
			victim.Kill()
			time.Sleep(time.Duration(rng.IntN(7000)) * time.Millisecond)
			c.start(victim)
		}
		acked := c.acks("default", fmt.Sprintf("warm,i=%d v=1 %d", round, time.Now().UnixMilli()))
		stop()
		for _, s := range senders {
			c.answers("default", s.metric)
			if s.check(); t.Failed() {
				t.Fatalf("after round %d, of %s, which led: %t", round+1, victim.Name, victim.Name == string(leader))
			}
		}
		t.Logf("round %d: %s, leader %s; back and acked %v after it began (%v after it was back)", round+1, victim.Name, leader, time.Since(began).Round(time.Millisecond), acked.Round(time.Millisecond))
	}
	c.report(senders)
}

// TestClusterLateHeartbeatsSetNoStampsBack stops the coordination store for seconds again and again while a follower is dead and rows are staged: heartbeats are late, and
// seemed to say that the servers' clocks were slow. A gateway that was refused for it stamped rows earlier, and those lost to rows that were staged before them.
func TestClusterLateHeartbeatsSetNoStampsBack(t *testing.T) {
	needsCluster(t)
	t.Parallel()
	seed := uint64(processtest.EnvInt(t, "TEST_SEED", int(rand.Uint32())))
	t.Logf("TEST_SEED=%d", seed)
	c := newCrowd(t, processes.Plan{Etcd: 1, Storage: 3, Gateways: 2})
	c.table("default", 24*time.Hour, 3)
	senders := []*sender{c.sender(0, seed), c.sender(1, seed), c.sender(2, seed)}
	c.acks("default", fmt.Sprintf("warm,i=0 v=1 %d", time.Now().UnixMilli()))
	for round := range 2 {
		var leader topology.ServerID
		c.within(2*processtest.Patience, "all partitions are led, with three in sync", func() bool {
			for _, p := range c.partitions("default") {
				if leader, _ = c.leader(p); leader == "" || len(c.inSync(p)) < 3 {
					return false
				}
			}
			return true
		})
		victim := c.Storage[0]
		if victim.Name == string(leader) {
			victim = c.Storage[1]
		}
		stop := c.load(senders)
		time.Sleep(500 * time.Millisecond)
		victim.Kill()
		time.Sleep(6 * time.Second) // it does not count any more: of two clocks the slower does
		for range 4 {
			c.must(c.Etcd[0].Pause())
			time.Sleep(1700 * time.Millisecond)
			c.must(c.Etcd[0].Resume())
			time.Sleep(400 * time.Millisecond)
		}
		for i, addr := range c.Admin {
			if c.Storage[i] == victim {
				continue
			}
			if n := processtest.Metric(t, addr, "spillway_server_ahead_inserts_total"); n != 0 {
				t.Errorf("%s sent %v inserts back, as if gateways' clocks were fast", c.Storage[i].Name, n)
			}
		}
		c.start(victim)
		c.acks("default", fmt.Sprintf("warm,i=%d v=1 %d", round, time.Now().UnixMilli()))
		stop()
		for _, s := range senders {
			c.answers("default", s.metric)
			s.check()
		}
	}
}
