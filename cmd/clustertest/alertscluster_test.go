package clustertest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/cmd/internal/processes"
	"github.com/spillwaydb/spillway/cmd/internal/processtest"
	"github.com/spillwaydb/spillway/cmd/spillway/credentials"
	"github.com/spillwaydb/spillway/cmd/spillway/view"
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
	line := fmt.Sprintf("m v=1 %d", time.Now().UnixMilli()) // of one time: midnight brings partitions that others lead
	row := func(table string) {                             // it may be staged, or be answered 503
		_, _, _ = processtest.PutLine(c.doors[0], table, line)
	}
	for _, table := range []string{"one", "three"} {
		c.acks(table, line)
	}
	three, one := c.partitions("three")[0], c.partitions("one")[0]
	c.within(processtest.Patience, "all three are in sync", c.listed(three, 3))
	owner, _ := c.waitLeader(one)
	c.within(processtest.Patience, "the row is not staged any more: others acquire a partition without rows", func() bool {
		l, ok := c.view.Leaders.Lease(one)
		return ok && l.Epoch > 0 && !l.Empty
	})
	p.quiet("SpillwayDown", "SpillwayPartitionsWithoutLeader", "SpillwayStagedRowsWait", "SpillwayMasterAlarms", "SpillwayMapsAreOld", "SpillwayServerUnreached", "SpillwayCopySilent", "SpillwayHeartbeatLost")

	c.server(owner).Kill() // it releases nothing: the lease row of the table's only copy goes on naming it as the leader
	p.fires("SpillwayDown", nil, fmt.Sprintf("instance=%q", owner))
	p.fires("SpillwayPartitionsWithoutLeader", func() { row("one") }, `instance="g1"`)
	p.fires("SpillwayMasterAlarms", nil)

	// Of the two that are left one stands still. Rows of the other table need both.
	c.within(processtest.Patience, "the two are in sync", func() bool {
		holder, _ := c.leader(three)
		return holder != "" && holder != owner && len(c.inSync(three)) == 2 && !slices.Contains(c.inSync(three), owner)
	})
	delete(p.targets, string(owner))
	p.quiet("SpillwayCopySilent")
	holder, _ := c.waitLeader(three)
	i := slices.IndexFunc(c.Storage, func(s *processes.Process) bool {
		return topology.ServerID(s.Name) != owner && topology.ServerID(s.Name) != holder
	})
	c.must(c.Storage[i].Pause())
	delete(p.targets, c.Storage[i].Name) // it answers no scrape
	p.fires("SpillwayCopySilent", func() { row("three") })
	p.fires("SpillwayStagedRowsWait", func() { row("three") })
	c.must(c.Storage[i].Resume())
}

// TestClusterAlertsWithoutEtcdFire: a storage server renews nothing, and a gateway learns nothing. A server that ends meanwhile was reported as one that sends heartbeats and is not reached: without the
// store none grows silent.
func TestClusterAlertsWithoutEtcdFire(t *testing.T) {
	needsCluster(t)
	t.Parallel()
	c := newCrowd(t, processes.Plan{Etcd: 1, Storage: 2, Gateways: 1})
	p := c.watched()
	p.quiet("SpillwayMapsAreOld", "SpillwayHeartbeatLost", "SpillwayServerUnreached")
	c.Etcd[0].Kill()
	c.Storage[1].Kill()
	p.fires("SpillwayHeartbeatLost", nil, `instance="s1"`)
	p.fires("SpillwayMapsAreOld", nil, `instance="g1"`)
	for _, name := range []string{"s1", "g1"} { // long enough for it to be reported
		c.within(processtest.Patience, name+" has missed the store for a minute", func() bool {
			p.scrape()
			return p.value(fmt.Sprintf(`spillway_leaders_age_seconds{instance=%q}`, name)) > 60
		})
	}
	if all := p.firing("SpillwayServerUnreached"); len(all) > 0 {
		t.Errorf("a server is said to send heartbeats, and no process can know: %v", all)
	}
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
	began := time.Now()
	c.start(c.Gateways[0])
	p.scrape()
	if all := p.firing("SpillwayServerUnreached"); len(all) > 0 && time.Since(began) < view.UnreachedAfter {
		t.Errorf("fires already: %v", all)
	}
	p.fires("SpillwayServerUnreached", nil, `server="s2"`)
	for name, want := range map[string]float64{"g1": 1, "g2": 0, "s1": 0} {
		if got := p.value(fmt.Sprintf(`count(spillway_peers_unreached_seconds{instance=%q} > 0) or vector(0)`, name)); got != want {
			t.Errorf("%s does not reach %v servers, want %v", name, got, want)
		}
	}
	doctor := func(gateway int) string {
		out, _ := exec.Command(c.Storage[0].Line[0], "doctor", "--url=http://"+c.HTTP[gateway]).CombinedOutput()
		return string(out)
	}
	said := ""
	defer func() {
		if t.Failed() {
			t.Logf("the doctor said of the gateway:\n%s", said)
		}
	}()
	c.within(processtest.Patience, "the doctor says it, and why; on a busy machine a call may end before it is refused", func() bool {
		said = doctor(0)
		return strings.Count(said, "does not reach 1 of the 2 storage servers") == 1 && strings.Contains(said, "s2 at "+c.Peers[1]+" since ") && strings.Contains(said, "revoked")
	})
	if said := doctor(1); strings.Contains(said, "does not reach") {
		t.Errorf("the doctor says of the other gateway:\n%s", said)
	}
	c.within(processtest.Patience, "/-/ready counts it", func() bool {
		status, text, err := c.doors[0].Get("/-/ready")
		if strings.Contains(string(text), "s2") {
			t.Fatalf("/-/ready names it to all: %s", text)
		}
		return err == nil && status == 200 && strings.Contains(string(text), "not reached from here: 1")
	})
	if log := c.Gateways[0].Said(); !strings.Contains(log, "is not reached at its address") || !strings.Contains(log, "server=s2") {
		t.Errorf("its log:\n%s", log)
	}
	c.aPeerCertificateThatExpiresAlerts(p)
}

// aPeerCertificateThatExpiresAlerts gives s1 a certificate for ten days, and then one for two years, as the README says.
func (c *crowd) aPeerCertificateThatExpiresAlerts(p *watcher) {
	c.t.Helper()
	dir, host := filepath.Dir(c.peer.CA), strings.Split(c.Peers[0], ":")[0]
	renew := func(days int) {
		for _, ext := range []string{".crt", ".key"} {
			c.must(os.Remove(filepath.Join(dir, "s1"+ext)))
		}
		c.must((&credentials.Certs{OutDir: dir, Storage: []string{"s1=" + host}, Days: days}).Run())
	}
	p.quiet("SpillwayPeerCertificateExpires")
	renew(10)
	p.fires("SpillwayPeerCertificateExpires", nil, `instance="s1"`)
	p.only("SpillwayPeerCertificateExpires", `instance="s1"`)
	renew(730)
	p.ends("SpillwayPeerCertificateExpires")
	c.acksAt(c.doors[1], "default", fmt.Sprintf("m v=1 %d", time.Now().UnixMilli()))
}

// TestClusterAFencedStoreAlerts: an fsync of a storage server fails. It ends before most scrapes; the alert fires once it was started again, on the note that it left.
func TestClusterAFencedStoreAlerts(t *testing.T) {
	needsCluster(t)
	if os.Getenv("CHAOS_FAULTS") == "" {
		t.Skip("no fsync can be made to fail: the program is not that of .ci/faults; `make chaos` runs this with it")
	}
	t.Parallel()
	fails := filepath.Join(t.TempDir(), "sync")
	c := newCrowd(t, processes.Plan{Etcd: 1, Storage: 1, Gateways: 1, EnvOf: func(string) []string { return []string{"FAULT_SYNC=" + fails} }})
	p := c.watched()
	row := func() string { return fmt.Sprintf("m v=1 %d", time.Now().UnixMilli()) }
	c.acks("default", row())
	p.quiet("SpillwayStoreFenced")
	c.must(os.WriteFile(fails, nil, 0o600))
	c.within(processtest.Patience, "the storage server has ended", func() bool {
		_, _, _ = processtest.PutLine(c.doors[0], "default", row())
		_, err := scraped(p.targets["s1"])
		return err != nil && strings.Contains(c.Storage[0].Said(), "brick fenced")
	})
	p.quiet("SpillwayStoreFenced") // no process says so
	c.must(os.Remove(fails))
	c.Storage[0].Kill()
	c.start(c.Storage[0])
	p.fires("SpillwayStoreFenced", nil, `instance="s1"`)
	if out, _ := c.cli("doctor"); !strings.Contains(out, "fenced before") || !strings.Contains(out, "input/output error") {
		t.Errorf("the doctor does not name the fence:\n%s", out)
	}
	if log := c.Storage[0].Said(); !strings.Contains(log, "the store was fenced after a disk error before this start") || !strings.Contains(log, "input/output error") {
		t.Errorf("its log:\n%s", log)
	}
}
