package clustertest

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/cmd/internal/processes"
	"github.com/spillwaydb/spillway/cmd/internal/processtest"
	"github.com/spillwaydb/spillway/metadata/topology"
)

// TestClusterProcessesStayWithinTheirMemoryBesideAFrozenServer: a server stands still twice, and catches up, while gateways write as much as the others accept, short
// and long requests, into many partitions with two and three copies, some of which are acked without it. All processes stay within their memory.
func TestClusterProcessesStayWithinTheirMemoryBesideAFrozenServer(t *testing.T) {
	needsCluster(t)
	const memory, hours, senders = 512 << 20, 40, 12
	c := newCrowd(t, processes.Plan{Etcd: 1, Storage: 3, Gateways: 2})
	tables := []string{"two1", "three1", "three2"}
	for i, cfg := range []topology.Config{{Replicas: 2, InSyncMin: 1}, {Replicas: 3, InSyncMin: 1}, {Replicas: 3, InSyncMin: 2}} {
		cfg.PartitionWidth = time.Hour
		_, err := c.view.Tables.Create(t.Context(), tables[i], cfg)
		c.must(err)
	}
	from := time.Now().Truncate(time.Hour).Add(-hours * time.Hour)
	for _, table := range tables {
		c.cover(table, from, time.Hour, hours)
	}
	var ended atomic.Bool
	var wg sync.WaitGroup
	var mu sync.Mutex
	codes, rows := map[int]int{}, 0
	for i := range senders {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(1, uint64(i)))
			for !ended.Load() {
				table, at := tables[rng.IntN(len(tables))], from.Add(time.Duration(rng.IntN(hours))*time.Hour)
				n := []int{200, 5_000, 60_000, 300_000}[rng.IntN(4)]
				var b bytes.Buffer
				for k := range n {
					fmt.Fprintf(&b, "m,host=h%d v=%v %d\n", k%1000, rng.Float64(), at.Add(time.Duration(rng.IntN(3_600_000))*time.Millisecond).UnixMilli())
				}
				code, _, err := processtest.PutLine(c.doors[i%2], table, b.String())
				if err != nil {
					code = -1
				}
				mu.Lock()
				codes[code]++
				if code == http.StatusNoContent {
					rows += n
				}
				mu.Unlock()
				if code != http.StatusNoContent {
					time.Sleep(20 * time.Millisecond)
				}
			}
		})
	}
	defer func() { ended.Store(true); wg.Wait() }()
	for _, step := range []struct {
		frozen bool
		last   time.Duration
	}{{false, 10 * time.Second}, {true, 5 * time.Second}, {false, 10 * time.Second}, {true, 20 * time.Second}, {false, 20 * time.Second}} {
		if step.frozen {
			c.must(c.Storage[2].Pause())
		} else {
			c.must(c.Storage[2].Resume())
		}
		time.Sleep(step.last)
	}
	mu.Lock()
	t.Logf("%d rows are acked; answers %v", rows, codes)
	if rows == 0 {
		t.Error("nothing was acked: the test shows nothing")
	}
	mu.Unlock()
	for _, p := range append(append([]*processes.Process(nil), c.Storage...), c.Gateways...) {
		peak := processtest.PeakOf(t, p.PID())
		t.Logf("%s: peak %d MiB of %d", p.Name, peak>>20, memory>>20)
		if peak > memory/10*11 {
			t.Errorf("%s had %d MiB of %d", p.Name, peak>>20, memory>>20)
		}
	}
}
