package clustertest

import (
	"strings"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/cmd/internal/processes"
	"github.com/spillwaydb/spillway/cmd/internal/processtest"
	"github.com/spillwaydb/spillway/smear"
)

// TestClusterTableIsSetAsAdvised: without a recorded load there is no advice; with one on the command line it is applied, and there is nothing to change any more.
func TestClusterTableIsSetAsAdvised(t *testing.T) {
	needsCluster(t)
	t.Parallel()
	c := newCrowd(t, processes.Plan{Etcd: 1, Storage: 3, Gateways: 1})
	c.table("load", 24*time.Hour, 1)
	c.command("table", "set", "load", "--retention=3d")
	out, err := c.try("table", "advise", "load")
	for err != nil && late(out) {
		out, err = c.try("table", "advise", "load")
	}
	if err == nil || !strings.Contains(out, "--rows-per-second") {
		t.Errorf("advice without a load: %s %v", out, err)
	}
	apply := []string{"table", "advise", "load", "--rows-per-second=500000", "--whole-ranges", "--apply", "--reason=test"}
	t.Log(c.command(apply...))
	m, ok := c.view.Tables.Get("load")
	c.within(processtest.Patience, "the table is set", func() bool {
		m, ok = c.view.Tables.Get("load")
		return ok && m.Config.PartitionWidth == 10*time.Second && m.Config.Smear.Mode == smear.Auto
	})
	if got := c.command(apply...); !strings.Contains(got, "is as advised") {
		t.Errorf("advised again: %s", got)
	}
	t.Log(c.command("table", "advise", "load", "--rows-per-second=500000", "--apply", "--reason=test"))
	c.within(processtest.Patience, "the table has columns", func() bool {
		m, ok = c.view.Tables.Get("load")
		return ok && m.Config.PartitionWidth == 24*time.Hour && m.Config.Smear.Mode == smear.Off &&
			len(m.Layouts) > 0 && len(m.Layouts[len(m.Layouts)-1].Weights) == 3
	})
}
