package clustertest

import (
	"crypto/sha256"
	"fmt"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/cmd/internal/processes"
	"github.com/spillwaydb/spillway/cmd/internal/processtest"
)

// TestClusterFullStagingLosesNothing kills all storage servers at once while smeared rows fill their share of staging, so that more of them go to their leaders
// at once: each acked row is there once when the servers are back, from both gateways, while rows wait and after they left.
func TestClusterFullStagingLosesNothing(t *testing.T) {
	needsCluster(t)
	t.Parallel()
	c := newCrowd(t, processes.Plan{Etcd: 1, Storage: 3, Gateways: 2, Env: []string{"SPILLWAY_STORAGE_STAGING_BYTES_MAX=1MiB"}})
	c.table("narrow", 10*time.Second, 3)
	c.command("table", "set", "narrow", "--smear=auto")
	l := c.flowOf("narrow", 1000, func(series int) string { // a row that waits needs as much as its series
		return fmt.Sprintf(",id=%x", sha256.Sum256([]byte{byte(series), byte(series >> 8)}))
	})
	defer l.stop()
	for round := range 2 {
		full := c.fellThrough()
		var held stagedLoad // the most that was seen: rows leave as they are due
		c.within(2*processtest.Patience, "staging is full", func() bool {
			now := c.staged()
			fullest := max(held.fullest, now.fullest)
			if now.bytes > held.bytes {
				held = now
			}
			held.fullest = fullest
			return c.fellThrough() > full+20_000
		})
		t.Logf("round %d: %.0f rows wait in %.0f bytes, %.0f found no room, %d were acked; all storage servers are killed", round+1, held.rows, held.bytes, c.fellThrough(), l.acked.Load())
		if held.fullest < (1<<20)/2*0.8 { // half of the room of a server, with some for frames that do not fit any more
			t.Errorf("staging is said to be full with %.0f bytes, %.0f at most on one server", held.bytes, held.fullest)
		}
		for _, p := range c.Storage {
			p.Kill()
		}
		c.start(c.Storage...)
		acked := l.acked.Load()
		c.within(2*processtest.Patience, "rows are acked again", func() bool { return l.acked.Load() > acked })
	}
	l.stop()
	l.check()
	c.within(2*processtest.Patience, "nothing waits", func() bool { return c.waiting() == 0 })
	l.check()
	t.Logf("%d rows were acked, %d requests failed", l.acked.Load(), l.failed.Load())
}

// stagedLoad is what waits on all storage servers, copies counted; fullest are the bytes on the one with most.
type stagedLoad struct{ rows, bytes, fullest float64 }

func (c *crowd) staged() (h stagedLoad) {
	for _, addr := range c.Admin {
		h.rows += processtest.Metric(c.t, addr, "spillway_staging_later_rows")
		bytes := processtest.Metric(c.t, addr, "spillway_staging_later_bytes")
		h.bytes, h.fullest = h.bytes+bytes, max(h.fullest, bytes)
	}
	return h
}

// fellThrough is how many rows went to their leaders at once since there was no room for them in staging.
func (c *crowd) fellThrough() (n float64) {
	for _, d := range c.doors {
		n += processtest.MetricWhere(c.t, d.Addr, "spillway_forward_smear_direct_rows_total", "reason", "full")
	}
	return n
}
