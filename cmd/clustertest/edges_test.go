package clustertest

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/cmd/internal/processes"
	"github.com/spillwaydb/spillway/cmd/internal/processtest"
)

// TestClusterWindowsOverEdgesBetweenBuilds replaces gateways and storage servers of an earlier build one by one. Queries whose windows cross the
// edges of partitions have the same answers to the bit, through gateways of both builds. Servers of the earlier build do not know the requests
// for rows that a gateway of the present build sends.
func TestClusterWindowsOverEdgesBetweenBuilds(t *testing.T) {
	needsCluster(t)
	t.Parallel()
	earlier, present := builds(t)
	seed := uint64(processtest.EnvInt(t, "TEST_SEED", int(rand.Uint32())))
	t.Logf("TEST_SEED=%d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	c := newCrowd(t, processes.Plan{Bin: earlier, Etcd: 1, Storage: 3, Gateways: 2})
	from := time.Now().Add(-8 * time.Hour).Truncate(time.Hour)
	tables := map[string]time.Duration{"narrow": 10 * time.Minute, "hours": time.Hour, "copied": 10 * time.Minute}
	for table, width := range tables {
		c.table(table, width, map[bool]int{true: 3, false: 1}[table == "copied"])
		for hour := range 3 {
			var lines []string
			for i := range 360 {
				at := from.Add(time.Duration(hour)*time.Hour + time.Duration(i)*10*time.Second)
				for host := range 3 {
					lines = append(lines, fmt.Sprintf("cpu,host=%d used=%d %d", host, rng.IntN(1000), at.UnixMilli()+int64(host/2)))
				}
			}
			for some := range slices.Chunk(lines, 300) {
				c.acksAt(c.doors[0], table, strings.Join(some, "\n"))
			}
		}
	}
	ask := func(door int, table, expr string, step time.Duration) string {
		at := func(d time.Duration) []string { return []string{strconv.FormatInt(from.Add(d).Unix(), 10)} }
		q := url.Values{"query": {expr}, "start": at(7 * time.Minute), "end": at(170 * time.Minute), "step": {step.String()}}
		for end := time.Now().Add(processtest.Patience); ; time.Sleep(50 * time.Millisecond) {
			status, body, err := c.doors[door].Get("/t/" + table + "/api/v1/query_range?" + q.Encode())
			if err == nil && status == http.StatusOK {
				return string(body)
			}
			if time.Now().After(end) {
				t.Fatalf("%s of %s through gateway %d: %d %.300s %v", expr, table, door, status, body, err)
			}
		}
	}
	exprs := []string{
		"rate(cpu_used[5m])", "cpu_used", "max(max_over_time(cpu_used[3m]))", "count(cpu_used) + max(cpu_used offset 4m)",
		"topk(1, increase(cpu_used[7m]))", "quantile_over_time(0.7, cpu_used[2m])",
	}
	want := map[string]string{}
	same := func(when string) {
		t.Helper()
		for table := range tables {
			for _, expr := range exprs {
				for _, step := range []time.Duration{30 * time.Second, 4 * time.Minute} {
					key := fmt.Sprint(table, " ", expr, " ", step)
					for door := range 2 {
						got := ask(door, table, expr, step)
						if want[key] == "" {
							want[key] = got
						}
						if got != want[key] || len(got) < 500 {
							t.Errorf("%s, through gateway %d, %s: %.600s, at first %.600s", when, door, key, got, want[key])
						}
					}
				}
			}
		}
	}
	same("all are of the earlier build")
	unknown := func() (n float64) {
		for _, addr := range c.Admin {
			n += processtest.MetricWhere(t, addr, "spillway_server_evaluations_total", "outcome", "unknown")
		}
		return n
	}
	if n := unknown(); n > 0 {
		t.Errorf("servers did not know %v questions of gateways of their build", n)
	}
	for i, p := range []*processes.Process{c.Gateways[0], c.Storage[0], c.Storage[1], c.Storage[2], c.Gateways[1]} {
		c.must(p.Terminate())
		<-p.Done()
		p.Line = append([]string{present}, p.Line[1:]...)
		c.start(p)
		same(fmt.Sprintf("%d of five are of the present build", i+1))
		if i == 0 && unknown() == 0 {
			t.Error("servers of the earlier build were asked for nothing that they do not know")
		}
	}
}
