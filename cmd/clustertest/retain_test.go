package clustertest

import (
	"strings"
	"testing"

	"github.com/spillwaydb/spillway/cmd/internal/processes"
)

// TestClusterGatewayNamesTheTablesThatKeepTheirRetention: it ignored what it was started with.
func TestClusterGatewayNamesTheTablesThatKeepTheirRetention(t *testing.T) {
	needsCluster(t)
	t.Parallel()
	c := newCrowd(t, processes.Plan{Etcd: 1, Storage: 1, Gateways: 1, GatewayArgs: []string{"--retention=7d"}})
	c.command("table", "create", "hosts", "--retention=30d", "--replicas=1")
	c.command("table", "create", "week", "--retention=7d", "--replicas=1")
	g := c.Gateways[0]
	g.Kill()
	c.start(g)
	if said := g.Said(); !strings.Contains(said, "the retention that is set is that of new tables") || !strings.Contains(said, "tables=\"hosts (") || strings.Contains(said, "week (") {
		t.Errorf("it said\n%s", said)
	}
}
