package main

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/cmd/internal/processes"
)

// stages are the settings of a cluster that stages rows.
var stages = []string{"SPILLWAY_STORAGE_COPIES=true", "SPILLWAY_STORAGE_STAGING=true", "SPILLWAY_INTAKE_STAGING=true"}

// TestClusterWritesDoNotWaitForALeader kills the server that leads a table, freezes the next one, and writes all the while: every write is acked at once, and is
// read through both gateways before another server leads. When one does, nothing is staged any more, and every row is there once.
func TestClusterWritesDoNotWaitForALeader(t *testing.T) {
	needsCluster(t)
	c := newCrowd(t, processes.Plan{Etcd: 1, Storage: 3, Gateways: 2, Env: stages})
	c.table("copied", 24*time.Hour, 3)
	w := &copiesWriter{c: c, from: time.Now().Add(-time.Hour).Truncate(time.Minute)}
	w.write(100)
	p := c.partitions("copied")[0]
	c.within(patience, "all three are in sync", func() bool { return len(c.inSync(p)) == 3 })
	for round, blow := range []func(*processes.Process){(*processes.Process).Kill, func(p *processes.Process) { c.must(p.Pause()) }} {
		was, epoch := c.leader(p)
		before := c.stagedRows()
		blow(c.server(was))
		began := time.Now()
		refused, slowest := w.atOnce(30)
		took := time.Since(began)
		next, now := c.leader(p)
		t.Logf("round %d: 30 rows acked in %v after the blow to %s (epoch %d, then %s in %d), the slowest after %v, %d refused, %v staged", round+1,
			took.Round(time.Millisecond), was, epoch, next, now, slowest.Round(time.Millisecond), refused, c.stagedRows()-before)
		if refused > 0 {
			t.Errorf("round %d: %d writes were refused", round+1, refused)
		}
		if now == epoch && c.stagedRows() == before {
			t.Errorf("round %d: rows were acked without a leader, and none was staged", round+1)
		}
		w.check()
		w.write(20)
		if round == 0 {
			c.start(c.server(was))
		} else {
			c.must(c.server(was).Resume())
		}
		c.within(patience, "nothing is staged", func() bool { return c.waiting() == 0 })
		c.within(patience, "all three are in sync again", func() bool { return len(c.inSync(p)) == 3 })
		w.check()
	}
}

// atOnce writes rows, each once: a refusal is counted and the row is sent again.
func (w *copiesWriter) atOnce(n int) (refused int, slowest time.Duration) {
	w.c.t.Helper()
	for range n {
		line := fmt.Sprintf("kept v=%d %d", w.acked, w.from.Add(time.Duration(w.acked)*time.Second).UnixMilli())
		for end := time.Now().Add(patience); ; {
			began := time.Now()
			status, text, err := putLine(w.c.doors[w.acked%len(w.c.doors)], "copied", line)
			slowest = max(slowest, time.Since(began))
			if err == nil && status == http.StatusNoContent {
				break
			}
			refused++
			w.c.t.Logf("row %d was refused: %d %.300s %v", w.acked, status, text, err)
			if time.Now().After(end) {
				w.c.t.Fatal("no row is acked")
			}
		}
		w.acked++
	}
	return refused, slowest
}

// stagedRows counts the rows that gateways have staged; waiting counts those that servers hold.
func (c *crowd) stagedRows() (n float64) {
	for _, d := range c.doors {
		n += metric(c.t, d.addr, "spillway_forward_staged_rows_total")
	}
	return n
}

func (c *crowd) waiting() (n float64) {
	for _, addr := range c.Admin {
		n += metric(c.t, addr, "spillway_staging_rows")
	}
	return n
}
