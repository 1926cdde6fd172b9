package clustertest

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/cmd/internal/processes"
	"github.com/spillwaydb/spillway/cmd/internal/processtest"
	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/topology"
)

// TestClusterCopiesOfADeadLeaderAreLedWithinItsLease kills the server that leads most partitions, while no rows come: first while the chains ping, then when they are at
// rest. Another server leads them, and a client that writes to all partitions one after another, those with a dead follower too, is acked, soon after the lease could be acquired.
func TestClusterCopiesOfADeadLeaderAreLedWithinItsLease(t *testing.T) {
	needsCluster(t)
	t.Parallel()
	c := newCrowd(t, processes.Plan{Etcd: 1, Storage: 3, Gateways: 1})
	r := newReads(c)
	r.fill(40)
	for round := range processtest.EnvInt(t, "CLUSTER_KILLS", 2) {
		rest := 5 * time.Second
		if round%2 == 1 {
			rest = 75 * time.Second // nothing comes for a minute
		}
		inTime(t, fmt.Sprintf("rows are acked in all partitions 5 s after a kill, after a rest of %v", rest), func() bool {
			r.allInSync()
			time.Sleep(rest)
			ps := c.partitions("copied")
			victim := c.server(c.leadsMost(ps))
			before, began := r.still.sum(), time.Now()
			victim.Kill()
			took := c.moves(c.led(ps, topology.ServerID(victim.Name)), topology.ServerID(victim.Name), began)
			all := r.ackInEach(ps, began)
			slow := r.still.sum() - before
			t.Logf("after a rest of %v %s is killed: led by others %s; rows acked in all %d partitions after %v; this machine stood still for %v", rest, victim.Name, spreadOf(took),
				len(ps), all.Round(time.Millisecond), slow.Round(time.Millisecond))
			c.start(victim)
			return all-slow <= 5*time.Second // 4 s until the lease may be acquired, and the hand-over
		})
	}
}

// ackInEach writes a row to each of the partitions, one after another, until they are acked, and returns how long after began that was.
func (r *reads) ackInEach(ps []lease.Partition, began time.Time) time.Duration {
	r.c.t.Helper()
	m, _ := r.c.view.Tables.Get("copied")
	for _, p := range ps {
		at, _ := m.ByID(p.ID)
		line := fmt.Sprintf("other v=1 %d", int64(at.TimeLo)/int64(time.Millisecond)+began.UnixMilli()%1000)
		r.c.within(processtest.Patience, "a row of partition "+p.String()+" is acked", func() bool {
			status, _, err := processtest.PutLine(r.c.doors[0], "copied", line)
			return err == nil && status == http.StatusNoContent
		})
	}
	return time.Since(began)
}
