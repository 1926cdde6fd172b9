package clustertest

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/cmd/internal/processes"
	"github.com/spillwaydb/spillway/cmd/internal/processtest"
	"github.com/spillwaydb/spillway/cmd/spillway/credentials"
	"github.com/spillwaydb/spillway/metadata/topology"
)

// watched returns a watcher of a cluster's storage servers and gateways.
func (c *crowd) watched() *watcher {
	addrs := map[string]string{}
	for i, p := range c.Storage {
		addrs[p.Name] = c.Admin[i]
	}
	for i, p := range c.Gateways {
		addrs[p.Name] = c.HTTP[i]
	}
	return newWatcher(c.t, addrs)
}

// TestClusterAlertsOfAClusterFire kills and cuts off processes of a cluster, and evaluates the rules over their real metrics.
func TestClusterAlertsOfAClusterFire(t *testing.T) {
	needsCluster(t)
	t.Parallel()
	c := newCrowd(t, processes.Plan{Etcd: 1, Storage: 3, Gateways: 1})
	p := c.watched()
	c.table("three", 24*time.Hour, 3)
	c.table("one", 24*time.Hour, 1)
	row := func(table string) { // it may be staged, or be answered 503
		_, _, _ = processtest.PutLine(c.doors[0], table, fmt.Sprintf("m v=1 %d", time.Now().UnixMilli()))
	}
	for _, table := range []string{"one", "three"} {
		c.acks(table, fmt.Sprintf("m v=1 %d", time.Now().UnixMilli()))
	}
	three, one := c.partitions("three")[0], c.partitions("one")[0]
	c.within(processtest.Patience, "all three are in sync", c.listed(three, 3))
	owner, _ := c.waitLeader(one)
	c.within(processtest.Patience, "nothing is amiss", func() bool {
		p.scrape()
		return len(p.firing("SpillwayCopySilent"))+len(p.firing("SpillwayHeartbeatLost")) == 0
	})
	p.quiet("SpillwayDown", "SpillwayPartitionsWithoutLeader", "SpillwayStagedRowsWait", "SpillwayMasterAlarms", "SpillwayMapsAreOld", "SpillwayServerUnreached")

	c.stop(c.server(owner)) // it releases its leases: the lease of one that was killed names it as the leader until another takes it
	p.fires("SpillwayDown", nil, fmt.Sprintf("instance=%q", owner))
	p.fires("SpillwayPartitionsWithoutLeader", func() { row("one") }, `instance="g1"`)
	p.fires("SpillwayMasterAlarms", nil)

	// Of the two that are left one stands still. Rows of the other table need both.
	i := slices.IndexFunc(c.Storage, func(s *processes.Process) bool {
		holder, _ := c.leader(three)
		return topology.ServerID(s.Name) != owner && topology.ServerID(s.Name) != holder
	})
	c.must(c.Storage[i].Pause())
	delete(p.targets, c.Storage[i].Name) // it answers no scrape
	p.fires("SpillwayCopySilent", func() { row("three") })
	p.fires("SpillwayStagedRowsWait", nil)
	c.must(c.Storage[i].Resume())
}

// TestClusterAlertsWithoutEtcdFire: a storage server renews nothing, and a gateway learns nothing.
func TestClusterAlertsWithoutEtcdFire(t *testing.T) {
	needsCluster(t)
	t.Parallel()
	c := newCrowd(t, processes.Plan{Etcd: 1, Storage: 1, Gateways: 1})
	p := c.watched()
	c.within(processtest.Patience, "heartbeats are good", func() bool { p.scrape(); return len(p.firing("SpillwayHeartbeatLost")) == 0 })
	p.quiet("SpillwayMapsAreOld")
	c.Etcd[0].Kill()
	p.fires("SpillwayHeartbeatLost", nil, `instance="s1"`)
	p.fires("SpillwayMapsAreOld", nil, `instance="g1"`)
}

// TestClusterGatewayThatAloneDoesNotReachAServerSaysSo: a gateway refuses the certificate of a server, which all others reach. Its writes and queries failed or were slow, and only other processes
// were asked why.
func TestClusterGatewayThatAloneDoesNotReachAServerSaysSo(t *testing.T) {
	needsCluster(t)
	t.Parallel()
	c := newCrowd(t, processes.Plan{Etcd: 1, Storage: 2, Gateways: 2, Certs: true})
	p, dir := c.watched(), filepath.Dir(c.peer.CA)
	c.must((&credentials.Certs{OutDir: dir, Revoke: []string{"s2"}}).Run())
	c.stop(c.Gateways[0])
	c.Gateways[0].Line = append(c.Gateways[0].Line, "--peer.tls.crl="+filepath.Join(dir, "ca.crl"))
	p.quiet("SpillwayServerUnreached")
	c.start(c.Gateways[0])
	p.quiet("SpillwayServerUnreached")
	p.fires("SpillwayServerUnreached", nil, `server="s2"`)
	for name, want := range map[string]float64{"g1": 1, "g2": 0, "s1": 0} {
		q, err := p.engine.NewInstantQuery(t.Context(), p.store, nil, fmt.Sprintf(`count(spillway_peers_unreached_seconds{instance=%q} > 30) or vector(0)`, name), p.last)
		c.must(err)
		if v, err := q.Exec(t.Context()).Vector(); err != nil || len(v) != 1 || v[0].F != want {
			t.Errorf("%s does not reach %v servers, want %v: %v", name, v, want, err)
		}
		q.Close()
	}
	doctor := func(gateway int) string {
		out, _ := exec.Command(c.Storage[0].Line[0], "doctor", "--url=http://"+c.HTTP[gateway]).CombinedOutput()
		return string(out)
	}
	said := doctor(0)
	if strings.Count(said, "does not reach 1 of the 2 storage servers") != 1 || !strings.Contains(said, "s2 at "+c.Peers[1]+" since ") || !strings.Contains(said, "revoked") {
		t.Errorf("the doctor says of the gateway:\n%s", said)
	}
	if said := doctor(1); strings.Contains(said, "does not reach") {
		t.Errorf("the doctor says of the other gateway:\n%s", said)
	}
	if status, text, err := c.doors[0].Get("/-/ready"); err != nil || status != 200 || !strings.Contains(string(text), "not reached from here: 1") || strings.Contains(string(text), "s2") {
		t.Errorf("/-/ready: %d %s %v", status, text, err)
	}
	if log := c.Gateways[0].Said(); !strings.Contains(log, "is not reached at its address") || !strings.Contains(log, "server=s2") {
		t.Errorf("its log:\n%s", log)
	}
}
