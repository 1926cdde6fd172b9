package clustertest

import (
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/cmd/internal/processes"
	"github.com/spillwaydb/spillway/cmd/internal/processtest"
	"github.com/spillwaydb/spillway/cmd/spillway/backups"
	"github.com/spillwaydb/spillway/metadata/lease"
)

// TestClusterBackupIsRestoredIntoAnother: a cluster is backed up while rows are written, a partition moves its rows to its halves, and a server is killed and
// comes back. Another cluster, of fewer servers, is filled from the backup, and has every row that was acked before it began, with the value acked last, and none that was
// deleted.
func TestClusterBackupIsRestoredIntoAnother(t *testing.T) {
	needsCluster(t)
	t.Parallel()
	c := newCrowd(t, movesPlan("SPILLWAY_API_ADMIN=true", "SPILLWAY_STORAGE_UNLOAD_BYTES_PER_SECOND=4096"))
	c.table("cut", time.Hour, 3)
	from := time.Now().Truncate(time.Hour).Add(-3 * time.Hour)
	parent := c.cover("cut", from, time.Hour, 1)[0]
	w := &cutRows{crowd: c, from: from, series: 32, written: map[string]map[int64]float64{}}
	w.write(1, 0, 60)
	w.erase(7)
	low, high := w.cut(parent, "time-middle")
	w.write(2, 10, 20)
	w.write(3, 50, 55)

	c.table("beside", time.Hour, 2)
	var acked atomic.Int64
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for n := int64(0); ; {
			select {
			case <-stop:
				return
			case <-time.After(5 * time.Millisecond):
			}
			status, _, err := processtest.PutLine(c.doors[1], "beside", fmt.Sprintf("m v=%d %d", n, from.UnixMilli()+n))
			if err == nil && status == http.StatusNoContent {
				n++
				acked.Store(n)
			}
		}
	}()
	c.within(processtest.Patience, "rows are acked beside", func() bool { return acked.Load() > 50 })

	dir := filepath.Join(t.TempDir(), "backups")
	before := acked.Load()
	victim := c.leaderOfLast([]lease.Partition{low, high, parent}) // on a slow machine the parent has left the map already
	ended := make(chan error, 1)
	go func() { ended <- (&backups.Backup{To: dir, URL: "http://" + c.GatewayAdmin[0]}).Run() }()
	c.server(victim).Kill()
	c.start(c.server(victim))
	c.must(<-ended)
	close(stop)
	<-stopped
	c.Kill()

	c2 := newCrowd(t, processes.Plan{Etcd: 1, Storage: 2, Gateways: 1, Env: []string{"SPILLWAY_TABLES_PARTITION_WIDTH=1h"}})
	into := backups.Restore{From: dir, URL: "http://" + c2.GatewayAdmin[0]}
	c2.must(into.Run())
	w2 := &cutRows{crowd: c2, from: from, series: w.series, written: w.written}
	w2.check("restored")
	status, text := processtest.Ask(c2.doors[0], "beside", fmt.Sprintf("count_over_time(m_v[2h]) >= %d and last_over_time(m_v[2h]) >= %d", before, before-1), from.Add(time.Hour))
	if status != http.StatusOK || !strings.Contains(text, `"value"`) {
		t.Errorf("%d rows were acked beside before the backup began, restored are: %d %s", before, status, text)
	}
	if err := into.Run(); err == nil || !strings.Contains(err.Error(), "--merge") {
		t.Errorf("a second restore into the same cluster: %v", err)
	}
	into.Merge = true
	c2.must(into.Run())
	w2.check("restored twice")
}
