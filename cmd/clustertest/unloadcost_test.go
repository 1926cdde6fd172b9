package clustertest

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/cmd/internal/processes"
	"github.com/spillwaydb/spillway/cmd/internal/processtest"
	"github.com/spillwaydb/spillway/metadata/topology"
)

// TestClusterUnloadCost measures the CPU of storage servers for rows that move from a partition to its halves, beside that for the same rows when they were written, each with three
// copies: `make bench-unload`.
func TestClusterUnloadCost(t *testing.T) {
	if os.Getenv("UNLOAD_COST") == "" {
		t.Skip("the cost of rows that move to the halves of a partition is measured by `make bench-unload`")
	}
	needsCluster(t)
	c := newCrowd(t, processes.Plan{Etcd: 1, Storage: 3, Gateways: 1, Env: []string{"SPILLWAY_STORAGE_UNLOAD_BYTES_PER_SECOND=1GiB"}})
	c.table("cost", 24*time.Hour, 3)
	before := c.consumed()
	time.Sleep(20 * time.Second) // what an idle cluster costs in this time is measured
	idle := c.consumed().minus(before)

	before = c.consumed()
	rows := float64(c.pour("cost", processtest.EnvDuration(t, "UNLOAD_FOR", 30*time.Second)))
	time.Sleep(10 * time.Second) // flushes and copies of these rows are part of its cost
	written := c.consumed().minus(before)

	p := c.partitions("cost")[0]
	c.command("partition", "split", "cost", fmt.Sprint(p.ID), "--at", "ring-middle")
	c.within(processtest.Patience, "it is split", func() bool { return c.stateOf(p) == topology.Unload })
	c.within(2*processtest.Patience, "rows begin to move", func() bool { return c.unloaded() > 0 })
	if dir := os.Getenv("SMEAR_PROFILE"); dir != "" {
		c.profile(filepath.Join(dir, "unload"), 8*time.Second)
	}
	before = c.consumed()
	had := c.unloaded()
	began := time.Now()
	c.within(2*processtest.Patience, "all rows have moved", func() bool { return c.gone(p) })
	took := time.Since(began)
	time.Sleep(10 * time.Second) // as above
	moved := c.consumed().minus(before)
	cost := func(k consumed, rows float64) float64 {
		return (k.storage - idle.storage/idle.seconds*k.seconds) / rows * 1e6
	}
	n := rows - had
	t.Logf("%.0f rows; CPU of three storage servers a row: %.2f µs written, %.2f µs moved (%.2f of written); %.0f rows moved a second", rows, cost(written, rows), cost(moved, n), cost(moved, n)/cost(written, rows), n/took.Seconds())
}
