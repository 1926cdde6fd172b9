package clustertest

import (
	"strings"
	"testing"

	"github.com/spillwaydb/spillway/cmd/internal/processes"
	"github.com/spillwaydb/spillway/cmd/internal/processtest"
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
	const warns = "the retention that is set is that of new tables"
	c.within(processtest.Patience, "the gateway says which retention counts", func() bool { return strings.Contains(g.Said(), warns) }) // its output may be read after its answer
	if said := g.Said(); !strings.Contains(said, "tables=\"hosts (") || strings.Contains(said, "week (") {
		t.Errorf("it said\n%s", said)
	}
}
