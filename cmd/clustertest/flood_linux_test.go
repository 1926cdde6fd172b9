package clustertest

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/cmd/internal/processes"
	"github.com/spillwaydb/spillway/cmd/internal/processtest"
)

// TestClusterBystanderSurvivesFloodsOfAStorageServer: gateways with memory for everything send a storage server that has little more new series than it has room for,
// and read all of a large table again and again. It stays within its memory, and refuses a table within its share nothing.
func TestClusterBystanderSurvivesFloodsOfAStorageServer(t *testing.T) {
	needsCluster(t)
	const memory, series = 320 << 20, 600_000
	c := newCrowd(t, processes.Plan{Etcd: 1, Storage: 1, Gateways: 2, Memory: "320MiB"})
	for _, g := range c.Gateways { // at the addresses that they had
		c.stop(g)
		g.Line = slices.DeleteFunc(slices.Clone(g.Line), func(arg string) bool { return arg == "--memory=320MiB" })
		g.Line = append(g.Line, "--memory=2GiB")
		c.start(g)
	}
	for _, table := range []string{"default", "bystander", "flood1", "flood2"} {
		c.table(table, 24*time.Hour, 1)
	}
	now := time.Now()
	processtest.ManyHosts(c.doors[0], 30_000, 10, now)
	var wg, writers sync.WaitGroup
	var refused, taken atomic.Int64
	var ended atomic.Bool
	flood := &processtest.QueryFlood{At: c.doors[0], Now: now, Over: ended.Load, Codes: map[int]int{}}
	for i := range 4 {
		writers.Go(func() {
			for n := i; n < series/1000; n += 4 {
				var b bytes.Buffer
				for k := range 1000 {
					fmt.Fprintf(&b, "m,pod=pod-%d-%d,container=abcdefghijklmnopqrstuvwxyz v=1 %d\n", n, k, now.UnixMilli())
				}
				for {
					code, text, err := processtest.PutLine(c.doors[i%2], fmt.Sprintf("flood%d", 1+n%2), b.String())
					switch {
					case err != nil:
						t.Error(err)
						return
					case code == http.StatusNoContent:
						taken.Add(1)
					case code == http.StatusBadRequest && strings.Contains(string(text), "as many series on a storage server as its share"):
						refused.Add(1)
					case code == http.StatusServiceUnavailable || code == http.StatusTooManyRequests:
						time.Sleep(50 * time.Millisecond)
						continue
					default:
						t.Errorf("%d %.300s", code, text)
					}
					break
				}
			}
		})
	}
	for i := range 8 {
		wg.Go(func() { flood.Ask(rand.New(rand.NewPCG(1, uint64(i)))) })
	}
	wg.Go(func() { writers.Wait(); ended.Store(true) })
	acked := flood.Bystand()
	wg.Wait()
	if got := flood.Count("count(count_over_time(bystander_v[1h]))"); got != acked || acked == 0 {
		t.Errorf("%d series of the bystander are there, %d rows of them were acked", got, acked)
	}
	if refused.Load() == 0 || taken.Load() == 0 {
		t.Errorf("%d requests are taken, %d refused: the flood shows nothing", taken.Load(), refused.Load())
	}
	peak := processtest.PeakOf(t, c.Storage[0].PID())
	t.Logf("peak %d MiB of %d; of %d requests of 1,000 new series %d are taken, %d refused in part; answers to reads %v; %d rows of the bystander",
		peak>>20, memory>>20, series/1000, taken.Load(), refused.Load(), flood.Codes, acked)
	if peak > memory/10*11 {
		t.Errorf("%d MiB of memory were taken of %d", peak>>20, memory>>20)
	}
}
