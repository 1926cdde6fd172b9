package clustertest

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/cmd/internal/processes"
	"github.com/spillwaydb/spillway/cmd/internal/processtest"
)

// TestClusterKeepsItsRowsWhereEtcdIsRestored puts etcd back to a backup, under running processes, which has neither the newest partitions nor the newest table, and then to nothing. All processes
// end by themselves: one that went on would lead, and watch, by rows that are no more. Started anew, with the tables repaired as doctor says, the cluster has every acked row.
func TestClusterKeepsItsRowsWhereEtcdIsRestored(t *testing.T) {
	needsCluster(t)
	t.Parallel()
	c := newCrowd(t, processes.Plan{Etcd: 1, Storage: 3, Gateways: 1, Env: append(restless, "SPILLWAY_TABLES_REPLICAS=3")})
	c.setBack = true
	seed := uint64(processtest.EnvInt(t, "TEST_SEED", 1))
	senders := []*sender{c.sender(0, seed)}
	c.warm()
	stop := c.load(senders)
	c.ackMore(senders)
	stop()
	etcd := c.Etcd[0]
	c.stop(etcd)
	dir, backup := filepath.Join(c.dir, etcd.Name), filepath.Join(t.TempDir(), "backup")
	c.must(os.CopyFS(backup, os.DirFS(dir)))
	c.start(etcd)

	stop = c.load(senders)
	const days = 4
	began := time.Now()
	for day := range days { // partitions that the backup does not have
		c.acks("default", fmt.Sprintf("later,i=0 v=1 %d", began.Add(-time.Duration(day+1)*24*time.Hour).UnixMilli()))
	}
	c.acks("second", fmt.Sprintf("later,i=0 v=1 %d", began.UnixMilli()))
	c.ackMore(senders)
	stop()
	c.report(senders)
	c.within(processtest.Patience, "all rows are at their leaders", func() bool { return c.waiting() == 0 })

	for _, from := range []string{backup, t.TempDir()} { // the second has nothing
		c.stop(etcd)
		c.must(os.RemoveAll(dir))
		c.must(os.CopyFS(dir, os.DirFS(from)))
		c.start(etcd)
		mortal := append(append([]*processes.Process{}, c.Storage...), c.Gateways...)
		for _, p := range mortal {
			c.ends(p, "the coordination store was set back to an older state")
		}
		c.start(mortal...)
		doctor := func() string { out, _ := c.try("doctor"); return out }
		for _, table := range []string{"default", "second"} {
			c.within(processtest.Patience, "doctor names table "+table, func() bool { return strings.Contains(doctor(), "spillway table repair "+table) })
		}
		if status, text, err := c.doors[0].Do(http.MethodPost, "/write?db=second&precision=ms", nil, fmt.Appendf(nil, "later,i=1 v=1 %d", began.UnixMilli())); err != nil || status != http.StatusServiceUnavailable {
			t.Errorf("a write to a table that the backup does not have, and servers do: %d %s %v", status, text, err)
		}
		c.command("table", "repair", "default", "--reason=restored", "--yes")
		c.command("table", "repair", "second", "--reason=restored", "--yes")

		c.within(processtest.Patience, "doctor finds nothing", func() bool { return strings.HasPrefix(doctor(), "well:") })
		c.acks("default", fmt.Sprintf("new v=1 %d", began.Add(-20*24*time.Hour).UnixMilli()))
		for _, s := range senders {
			s.check()
		}
		for table, rows := range map[string]int{"default": days, "second": 1} {
			n := 0
			for _, samples := range c.doors[0].RowsOf(table, "later_v", "10d", time.Now()) {
				n += len(samples)
			}
			if n != rows {
				t.Errorf("%d of %d rows of table %s are there", n, rows, table)
			}
		}
	}
}
