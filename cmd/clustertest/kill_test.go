package clustertest

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/cmd/internal/processes"
	"github.com/spillwaydb/spillway/cmd/internal/processtest"
	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/topology"
)

// restless are settings under which flushes and compactions never end.
var restless = []string{
	"SPILLWAY_STORAGE_FLUSH_BYTES=150000", "SPILLWAY_STORAGE_FLUSH_AGE=700ms", "SPILLWAY_STORAGE_FLUSH_IDLE=300ms",
	"SPILLWAY_STORAGE_MINORS_MAX=2", "SPILLWAY_TABLES_PARTITION_WIDTH=1h",
	"SPILLWAY_TABLES_REPLICAS=1", // rows of tables that a test does not make lie on their leaders alone
}

// TestClusterKillsLoseNothingAcked kills storage servers with SIGKILL while senders write through two gateways, starts
// each again after a while, and compares the rows read with the rows sent. CLUSTER_KILLS sets how often, TEST_SEED when.
func TestClusterKillsLoseNothingAcked(t *testing.T) {
	needsCluster(t)
	t.Parallel()
	kills, seed := processtest.EnvInt(t, "CLUSTER_KILLS", 4), uint64(processtest.EnvInt(t, "TEST_SEED", int(rand.Uint32())))
	t.Logf("TEST_SEED=%d CLUSTER=1 CLUSTER_KILLS=%d go test -run %s ./cmd/clustertest", seed, kills, t.Name())
	c := newCrowd(t, processes.Plan{Etcd: 1, Storage: 3, Gateways: 2, Env: restless})
	rng := rand.New(rand.NewPCG(seed, 0))
	senders := make([]*sender, 4)
	for i := range senders {
		senders[i] = c.sender(i, seed)
	}
	c.acks("default", fmt.Sprintf("warm,i=0 v=1 %d", time.Now().UnixMilli()))
	ps := c.partitions("default")
	var ready, acked []time.Duration
	for kill := range kills {
		victim := c.Storage[rng.IntN(len(c.Storage))]
		if kill%2 == 0 { // the current leader of the written partitions
			s, _ := c.waitLeader(ps[len(ps)-1])
			victim = c.server(s)
		}
		c.within(processtest.Patience, "all rows are at their leaders", func() bool { return c.waiting() == 0 })
		led := without(c.led(ps, topology.ServerID(victim.Name)), c.emptyOf(ps)) // others may lead partitions without rows
		stop := c.load(senders)
		time.Sleep(time.Duration(300+rng.IntN(1500)) * time.Millisecond)
		victim.Kill()
		away := time.Duration(rng.IntN(2500)) * time.Millisecond
		if kill%3 == 2 { // longer than gateways try: writes of its partitions are answered with 503
			away += 6 * time.Second
		}
		time.Sleep(away)
		began := time.Now()
		c.start(victim)
		ready = append(ready, time.Since(began))
		c.acks("default", fmt.Sprintf("warm,i=%d v=1 %d", kill, time.Now().UnixMilli()))
		acked = append(acked, time.Since(began))
		time.Sleep(200 * time.Millisecond)
		stop()
		for _, s := range senders {
			c.answers("default", s.metric)
			if s.check(); t.Failed() {
				t.Fatalf("after kill %d, of %s", kill+1, victim.Name)
			}
		}
		c.within(processtest.Patience, victim.Name+" leads what it led", func() bool { return len(c.led(led, topology.ServerID(victim.Name))) == len(led) })
	}
	c.report(senders)
	slices.Sort(ready)
	slices.Sort(acked)
	t.Logf("from the restart to ready: %s; to acks through every gateway: %s", spreadOf(ready), spreadOf(acked))
}

// load lets the senders write until the returned function was called, and has returned.
func (c *crowd) load(senders []*sender) (stop func()) {
	var wg sync.WaitGroup
	quit := make(chan struct{})
	for _, s := range senders {
		s.last = time.Now()
		wg.Go(func() { s.run(quit) })
	}
	return func() { close(quit); wg.Wait() }
}

// ackMore waits until each sender, which writes, has a few more requests acked.
func (c *crowd) ackMore(senders []*sender) {
	c.t.Helper()
	for _, s := range senders {
		want := s.acks.Load() + 10
		c.within(processtest.Patience, s.metric+" is acked", func() bool { return s.acks.Load() >= want })
	}
}

// warm writes a row into each partition that senders write to: those of the last five hours.
func (c *crowd) warm() {
	c.t.Helper()
	now := time.Now()
	for h := range 6 {
		c.acks("default", fmt.Sprintf("warm,i=0 v=1 %d", now.Add(-time.Duration(h)*time.Hour).UnixMilli()))
	}
	if next := now.Truncate(time.Hour).Add(time.Hour); next.Sub(now) < 9*time.Minute { // the hour may end amid the test; rows of ten minutes ahead are refused
		c.acks("default", fmt.Sprintf("warm,i=0 v=1 %d", next.UnixMilli()))
	}
	// Rows are acked when they are staged.
	c.within(processtest.Patience, "all rows are at their leaders", func() bool { return c.waiting() == 0 })
}

// report logs the results of the senders, and fails when there was too little to prove anything.
func (c *crowd) report(senders []*sender) {
	c.t.Helper()
	acked, codes, gap := 0, map[int]int{}, time.Duration(0)
	for _, s := range senders {
		acked, gap = acked+s.acked, max(gap, s.gap)
		for code, n := range s.codes {
			codes[code] += n
		}
	}
	c.t.Logf("%d rows acked, answers by status %v, longest time without an ack %v", acked, codes, gap.Round(time.Millisecond))
	if acked == 0 {
		c.t.Error("the load was too light to prove anything")
	}
}

// TestClusterPausedServerLosesNothingAcked pauses a storage server for longer than a lease lasts, while it is written to.
// Meanwhile others lead its partitions without rows; when it resumes it acks nothing by its old leases.
func TestClusterPausedServerLosesNothingAcked(t *testing.T) {
	needsCluster(t)
	t.Parallel()
	seed := uint64(processtest.EnvInt(t, "TEST_SEED", int(rand.Uint32())))
	t.Logf("TEST_SEED=%d", seed)
	c := newCrowd(t, processes.Plan{Etcd: 1, Storage: 3, Gateways: 2, Env: restless})
	from := time.Now().Truncate(time.Hour).Add(-48 * time.Hour)
	c.table("moving", time.Minute, 3)
	moving := c.cover("moving", from, time.Minute, 60)
	senders := []*sender{c.sender(0, seed), c.sender(1, seed), c.sender(2, seed)}
	c.warm()
	for round := range processtest.EnvInt(t, "CLUSTER_PAUSES", 2) {
		c.within(processtest.Patience, "all are led", func() bool { return len(c.unled(moving)) == 0 })
		ps := c.partitions("default")
		c.within(processtest.Patience, "all are led", func() bool { return len(c.unled(ps)) == 0 })
		rows := ps[len(ps)-1]
		if round%2 == 1 { // the leader of the most partitions without rows
			rows = c.byLeader(ps, c.leadsMost(c.emptyOf(moving)))
		}
		s, epoch := c.waitLeader(rows)
		victim := c.server(s)
		empty := c.emptyOf(c.led(moving, s))
		stop := c.load(senders)
		time.Sleep(500 * time.Millisecond)
		c.must(victim.Pause())
		took := c.moves(empty, s, time.Now())
		t.Logf("round %d: %s is paused; others lead what has no rows: %s", round+1, s, spreadOf(took))
		written := c.putInto("moving", empty, round)
		time.Sleep(3 * time.Second) // writes to its partitions with rows fail
		c.must(victim.Resume())
		again := c.acks("default", fmt.Sprintf("warm,i=%d v=1 %d", round+1, time.Now().UnixMilli()))
		t.Logf("round %d: acks through both gateways %v after it went on", round+1, again.Round(time.Millisecond))
		stop()
		for _, s := range senders {
			c.answers("default", s.metric)
			if s.check(); t.Failed() {
				t.Fatalf("after pause %d", round+1)
			}
		}
		c.holdsOnce("moving", written)
		if now, e := c.leader(rows); now != s || e < epoch {
			t.Errorf("the partition with rows was led by %s in epoch %d, and is by %s in %d", s, epoch, now, e)
		}
		select {
		case <-victim.Done():
			t.Fatalf("%s ended: a pause is no reason to", s)
		default:
		}
	}
	c.report(senders)
}

// leadsMost returns the server that leads most of the partitions.
func (c *crowd) leadsMost(ps []lease.Partition) (most topology.ServerID) {
	for _, p := range c.Storage {
		if s := topology.ServerID(p.Name); most == "" || len(c.led(ps, s)) > len(c.led(ps, most)) {
			most = s
		}
	}
	return most
}

// byLeader returns one of the partitions that a server leads.
func (c *crowd) byLeader(ps []lease.Partition, s topology.ServerID) lease.Partition {
	c.t.Helper()
	led := c.led(ps, s)
	if len(led) == 0 {
		c.t.Fatalf("%s leads none of %v", s, ps)
	}
	return led[0]
}

// emptyOf leaves out partitions that have rows: no other server may lead those.
func (c *crowd) emptyOf(ps []lease.Partition) []lease.Partition {
	return slices.DeleteFunc(slices.Clone(ps), func(p lease.Partition) bool {
		l, ok := c.view.Leaders.Lease(p)
		return ok && len(l.InSync) == 1
	})
}

// putInto writes a row into each of the partitions, by one gateway or the other, until it is acked, and returns series and times.
func (c *crowd) putInto(table string, ps []lease.Partition, round int) map[string]int64 {
	c.t.Helper()
	m, _ := c.view.Tables.Get(table)
	out := map[string]int64{}
	for i, p := range ps {
		at, ok := m.ByID(p.ID)
		if !ok {
			c.t.Fatalf("%v is not in the map", p)
		}
		ms := int64(at.TimeLo)/int64(time.Millisecond) + int64(round)
		series := fmt.Sprintf("%d-%d", round, p.ID)
		for end := time.Now().Add(processtest.Patience); ; time.Sleep(20 * time.Millisecond) {
			status, text, err := processtest.PutLine(c.doors[i%len(c.doors)], table, fmt.Sprintf("m,i=%s v=%d %d", series, p.ID, ms))
			if err == nil && status == http.StatusNoContent {
				break
			}
			if time.Now().After(end) || err != nil || status/100 != 5 {
				c.t.Fatalf("a row of %v: %d %s %v", p, status, text, err)
			}
		}
		out[series] = ms
	}
	return out
}

// holdsOnce checks that every gateway reads each row that putInto wrote once.
func (c *crowd) holdsOnce(table string, written map[string]int64) {
	c.t.Helper()
	times := slices.Sorted(maps.Values(written))
	if len(times) == 0 {
		return
	}
	last := time.UnixMilli(times[len(times)-1]).Add(time.Second)
	over := fmt.Sprintf("%dms", last.UnixMilli()-times[0]+1)
	c.answersAt(table, fmt.Sprintf("m_v[%s]", over), func() time.Time { return last })
	for _, d := range c.doors {
		got := d.RowsOf(table, "m_v", over, last)
		for series, ms := range written {
			if rows := got["m_v/"+series]; len(rows) != 1 || rows[0].Ms != ms {
				c.t.Errorf("through the gateway at %s: series %s has %v, one row at %d was acked", d.Addr, series, rows, ms)
			}
		}
	}
}

// TestClusterStopHandsLeasesOver stops storage servers as an operator would: their partitions without rows are led by
// others at once, not when a lease has expired.
func TestClusterStopHandsLeasesOver(t *testing.T) {
	needsCluster(t)
	t.Parallel()
	c := newCrowd(t, processes.Plan{Etcd: 1, Storage: 3, Gateways: 2})
	c.table("moving", time.Minute, 3)
	moving := c.cover("moving", time.Now().Truncate(time.Hour).Add(-4*time.Hour), time.Minute, 60)
	still := watchStandstill(t)
	for _, victim := range c.Storage {
		inTime(t, "leases of "+victim.Name+" are handed over, they do not run out", func() bool {
			var led []lease.Partition
			c.within(processtest.Patience, victim.Name+" leads some", func() bool {
				led = c.led(moving, topology.ServerID(victim.Name))
				return len(led) > 0
			})
			before, began := still.sum(), time.Now()
			c.must(victim.Terminate())
			took := c.moves(led, topology.ServerID(victim.Name), began)
			slow := still.sum() - before
			<-victim.Done()
			t.Logf("%s stopped within %v, partitions led by others: %s; this machine stood still for %v", victim.Name,
				time.Since(began).Round(time.Millisecond), spreadOf(took), slow.Round(time.Millisecond))
			c.start(victim)
			return took[len(took)/2] <= 3*time.Second+slow
		})
	}
}

// TestClusterLeasesMoveAfterKill kills holders of leases of partitions without rows, and measures the time until others
// lead them.
func TestClusterLeasesMoveAfterKill(t *testing.T) {
	needsCluster(t)
	t.Parallel()
	c := newCrowd(t, processes.Plan{Etcd: 3, Storage: 4, Gateways: 1, Env: []string{unmerged}})
	c.table("moving", time.Minute, 3)
	moving := c.cover("moving", time.Now().Truncate(time.Hour).Add(-4*time.Hour), time.Minute, 200)
	var all []time.Duration
	still, slowest := watchStandstill(t), time.Duration(0)
	for _, victim := range c.Storage {
		led := c.led(moving, topology.ServerID(victim.Name))
		before, began := still.sum(), time.Now()
		victim.Kill()
		took := c.moves(led, topology.ServerID(victim.Name), began)
		slow := still.sum() - before
		slowest = max(slowest, slow)
		t.Logf("%s killed, partitions led by others: %s; this machine stood still for %v", victim.Name, spreadOf(took), slow.Round(time.Millisecond))
		all = append(all, took...)
		c.start(victim)
	}
	slices.Sort(all)
	t.Logf("from kill -9 to the take as seen by another process: %s", spreadOf(all))
	if all[len(all)/2] > 8*time.Second+slowest { // leases promise 5 s, on a machine that has the time
		t.Errorf("the median is %v", all[len(all)/2])
	}
}
