package clustertest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/cmd/internal/processes"
	"github.com/spillwaydb/spillway/cmd/internal/processtest"
)

// TestClusterRowsAreReadWhileEveryRowWaits: a table of two replicas has lost a server, so that each row waits, and writers send one after the other. Every query is answered, with
// all rows that were acked before it.
func TestClusterRowsAreReadWhileEveryRowWaits(t *testing.T) {
	needsCluster(t)
	t.Parallel()
	c := newCrowd(t, processes.Plan{Etcd: 1, Storage: 3, Gateways: 2})
	c.table("waits", time.Hour, 2)
	began := time.Now()
	var acked [4]atomic.Int64
	ended := make(chan struct{})
	var writers sync.WaitGroup
	defer writers.Wait()
	defer close(ended)
	for i := range acked {
		door := c.doors[i%len(c.doors)]
		writers.Go(func() {
			for n := int64(1); ; n++ {
				select {
				case <-ended:
					return
				default:
				}
				var b strings.Builder
				for s := range 16 {
					fmt.Fprintf(&b, "seen,w=%d,s=%d v=%d %d\n", i, s, n, time.Now().UnixMilli())
				}
				if status, _, err := processtest.PutLine(door, "waits", b.String()); err == nil && status == http.StatusNoContent {
					acked[i].Store(n)
				}
			}
		})
	}
	c.within(processtest.Patience, "rows are acked", func() bool { return acked[0].Load() > 5 })
	leader, _ := c.waitLeader(c.partitions("waits")[0])
	c.server(leader).Kill()
	waiting := func() (n float64) {
		for i, addr := range c.Admin {
			if c.Storage[i].Name != string(leader) {
				n += processtest.Metric(t, addr, "spillway_staging_rows")
			}
		}
		return n
	}
	c.within(processtest.Patience, "rows wait", func() bool { return waiting() > 0 })
	slowest, asked := time.Duration(0), 0
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); asked++ {
		var want [len(acked)]int64
		for i := range want {
			want[i] = acked[i].Load()
		}
		at := time.Now()
		status, text := processtest.Ask(c.doors[asked%len(c.doors)], "waits", fmt.Sprintf(`max by (w) (last_over_time(seen_v[%ds]))`, int(at.Sub(began).Seconds())+5), at.Add(time.Second))
		slowest = max(slowest, time.Since(at))
		if status != http.StatusOK {
			t.Fatalf("after %d queries: %d %.300s", asked, status, text)
		}
		for i, found := range byWriter(t, text, len(want)) {
			if found < want[i] {
				t.Fatalf("after %d queries: of writer %d row %d is the last one read, %d were acked", asked, i, found, want[i])
			}
		}
	}
	wait := waiting()
	t.Logf("%d queries, the slowest in %v; %v rows wait", asked, slowest.Round(time.Millisecond), wait)
}

// byWriter returns the values of an answer by label w.
func byWriter(t *testing.T, text string, n int) []int64 {
	t.Helper()
	var a struct {
		Data struct {
			Result []struct {
				Metric struct {
					W int `json:"w,string"`
				}
				Value [2]any
			}
		}
	}
	if err := json.Unmarshal([]byte(text), &a); err != nil {
		t.Fatal(err)
	}
	found := make([]int64, n)
	for _, r := range a.Data.Result {
		if _, err := fmt.Sscan(fmt.Sprint(r.Value[1]), &found[r.Metric.W]); err != nil {
			t.Fatal(err)
		}
	}
	return found
}
