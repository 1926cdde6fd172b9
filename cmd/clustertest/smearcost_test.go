package clustertest

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/cmd/internal/processes"
	"github.com/spillwaydb/spillway/cmd/internal/processtest"
)

// TestClusterSmearCost measures the CPU of storage servers and gateways for rows that wait and for rows that do not, in turns, in one cluster: `make bench-smear`. The sizes of requests are
// those of a busy sender; the use of the processes without any rows is subtracted.
func TestClusterSmearCost(t *testing.T) {
	if os.Getenv("SMEAR_COST") == "" {
		t.Skip("the cost of smeared rows is measured by `make bench-smear`")
	}
	needsCluster(t)
	c := newCrowd(t, processes.Plan{Etcd: 1, Storage: 3, Gateways: 1})
	windows := []string{"off", "auto"}
	if w := os.Getenv("SMEAR_WINDOW"); w != "" {
		windows = append(windows, w)
	}
	copies := processtest.EnvInt(t, "SMEAR_COPIES", 3)
	for i, window := range windows {
		c.table(costTable(i), 10*time.Second, copies)
		c.command("table", "set", costTable(i), "--smear="+window)
	}
	const rest = 36 * time.Second // the rows of the longest delay leave
	run := processtest.EnvDuration(t, "SMEAR_RUN", 10*time.Second)
	var idle consumed
	spent := make([]consumed, len(windows))
	for round := range processtest.EnvInt(t, "SMEAR_ROUNDS", 3) {
		before := c.consumed()
		time.Sleep(run + rest) // as long as the others: heartbeats and the like are as much as a third of the cost of direct rows
		idle = idle.plus(c.consumed().minus(before))
		for i := range windows {
			i = (i + round) % len(windows)
			before := c.consumed()
			if dir := os.Getenv("SMEAR_PROFILE"); dir != "" && round == 0 {
				c.profile(filepath.Join(dir, costTable(i)), run+rest-2*time.Second) // it ends before the next begins
			}
			rows := c.pour(costTable(i), run)
			time.Sleep(rest)
			used := c.consumed().minus(before)
			used.rows = float64(rows)
			spent[i] = spent[i].plus(used)
		}
	}
	quiet := func(v, of float64) float64 { return v - of/idle.seconds }
	direct := 0.0
	for i, w := range windows {
		s, g := quiet(spent[i].storage, idle.storage*spent[i].seconds)/spent[i].rows, quiet(spent[i].gateway, idle.gateway*spent[i].seconds)/spent[i].rows
		if i == 0 {
			direct = s + g
		}
		t.Logf("%d copies, smear %-8s %9.0f rows, CPU a row: %5.2f µs of storage servers, %5.2f µs of the gateway, together %.2f of direct; %.0f rows staged", copies, w, spent[i].rows, s*1e6, g*1e6, (s+g)/direct, spent[i].staged)
	}
}

// profile records where every storage server and gateway spends CPU, and allocates memory, in a time: into files whose names begin so.
func (c *crowd) profile(name string, d time.Duration) {
	take := func(addr, kind, file string) {
		answer, err := http.Get(fmt.Sprintf("http://%s/debug/pprof/%s?seconds=%d", addr, kind, int(d.Seconds())))
		if err != nil {
			return
		}
		defer answer.Body.Close()
		if f, err := os.Create(file); err == nil {
			_, _ = io.Copy(f, answer.Body)
			_ = f.Close()
		}
	}
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		c.t.Fatal(err)
	}
	for who, addrs := range map[string][]string{"storage": c.Admin, "gateway": c.GatewayAdmin} {
		for i, addr := range addrs {
			go take(addr, "profile", fmt.Sprintf("%s-%s%d.cpu.pprof", name, who, i))
			go take(addr, "allocs", fmt.Sprintf("%s-%s%d.allocs.pprof", name, who, i))
		}
	}
}

func costTable(i int) string { return fmt.Sprintf("cost%d", i) }

// consumed is what processes have used: CPU seconds.
type consumed struct{ seconds, storage, gateway, staged, rows float64 }

func (c *crowd) consumed() (k consumed) {
	for _, addr := range c.Admin {
		k.storage += processtest.Metric(c.t, addr, "process_cpu_seconds_total")
		k.staged += processtest.Metric(c.t, addr, "spillway_staging_rows_total")
	}
	for _, d := range c.doors {
		k.gateway += processtest.Metric(c.t, d.Addr, "process_cpu_seconds_total")
	}
	k.seconds = float64(time.Now().UnixNano()) / 1e9
	return k
}

func (k consumed) minus(o consumed) consumed {
	return consumed{k.seconds - o.seconds, k.storage - o.storage, k.gateway - o.gateway, k.staged - o.staged, k.rows - o.rows}
}

func (k consumed) plus(o consumed) consumed {
	return consumed{k.seconds + o.seconds, k.storage + o.storage, k.gateway + o.gateway, k.staged + o.staged, k.rows + o.rows}
}

// Requests of pour: so many series in so many requests of equal size, over and over, on a few connections.
const costSeries, costRequest = 10_000, 2_000

// costPace is the time from one request to the next.
func costPace(t *testing.T) time.Duration {
	return time.Second * costRequest / time.Duration(processtest.EnvInt(t, "SMEAR_RATE", 80_000))
}

// pour writes rows of now for a time, and returns how many were acked.
func (c *crowd) pour(table string, d time.Duration) (rows int) {
	var mu sync.Mutex
	var wait sync.WaitGroup
	tags := os.Getenv("SMEAR_TAGS")
	began, pace := time.Now(), costPace(c.t)
	for worker := range 4 {
		wait.Go(func() {
			var b bytes.Buffer
			for i := worker; ; i += 4 {
				due := began.Add(time.Duration(i) * pace)
				if due.Sub(began) >= d {
					return
				}
				time.Sleep(time.Until(due))
				b.Reset()
				at := time.Now().UnixMilli()
				for s := range costRequest {
					fmt.Fprintf(&b, "load,host=h%d%s v=%d %d\n", i*costRequest%costSeries+s, tags, i, at)
				}
				if status, _, err := processtest.PutLine(c.doors[0], table, b.String()); err == nil && status == http.StatusNoContent {
					mu.Lock()
					rows += costRequest
					mu.Unlock()
				}
			}
		})
	}
	wait.Wait()
	return rows
}
