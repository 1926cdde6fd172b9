package clustertest

import (
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/cmd/internal/processes"
	"github.com/spillwaydb/spillway/cmd/internal/processtest"
)

// TestClusterSmearSpreadsTheLoad writes rows of now into partitions of ten seconds, on three servers, each of which accepts all rows for ten seconds. Then the table
// is smeared: in any ten seconds the busiest server accepts little more than the mean. All the while both gateways are asked for all rows, and find each once.
func TestClusterSmearSpreadsTheLoad(t *testing.T) {
	needsCluster(t)
	t.Parallel()
	c := newCrowd(t, processes.Plan{Etcd: 1, Storage: 3, Gateways: 2})
	c.table("narrow", 10*time.Second, 1)
	l := c.flow("narrow", 160)
	defer l.stop()
	m := c.meter()
	defer m.stop()
	before, without := []reading(nil), 0.0
	for try := 0; try < 3 && without < 2; try++ { // where servers are slow to say how many rows they have, turns seem to be even
		before = m.after(processtest.EnvDuration(t, "SMEAR_RUN", 40*time.Second))
		without = m.busiest(before)
	}
	c.command("table", "set", "narrow", "--smear=auto")
	t.Log(c.command("table", "show", "narrow"))
	time.Sleep(35 * time.Second) // the rows of the longest delay arrive
	after, with := []reading(nil), 2.0
	still, stood := watchStandstill(t), time.Duration(0)
	// Beside other tests a server may stand still for seconds, and catches up.
	for try := 0; (try < 3 || try < 8 && stood > time.Second) && (with > 1.25 || with == 0); try++ {
		stood = -still.sum()
		after = m.after(processtest.EnvDuration(t, "SMEAR_RUN", 40*time.Second))
		with = m.busiest(after)
		stood += still.sum()
	}
	t.Logf("the busiest server in any ten seconds, of the mean: %.2f without smearing, %.2f with it; %v rows wait", without, with, c.waiting())
	if file := os.Getenv("SMEAR_SVG"); file != "" {
		c.must(os.WriteFile(file, drawLoads([]loadCurves{
			{fmt.Sprintf("without smearing: the busiest server in any 10 s takes %.2f of the mean", without), before},
			{fmt.Sprintf("with a window of 30 s: %.2f of the mean", with), after}}), 0o644))
	}
	if without < 2 {
		t.Errorf("without smearing the busiest server takes %.2f of the mean: the test shows nothing", without)
	}
	if with > 1.25 || with == 0 { // 0: no rows were seen to come
		t.Errorf("with smearing the busiest server takes %.2f of the mean", with)
	}
	l.stop()
	l.check()
	c.within(2*processtest.Patience, "nothing waits", func() bool { return c.waiting() == 0 })
	l.check()
	l.complain()
}

// TestClusterSmearLosesNothing kills one server after another while they are full of smeared rows: every acked row is there once, while rows wait and after they left.
func TestClusterSmearLosesNothing(t *testing.T) {
	needsCluster(t)
	t.Parallel()
	c := newCrowd(t, processes.Plan{Etcd: 1, Storage: 3, Gateways: 2})
	c.table("narrow", 10*time.Second, 3)
	c.command("table", "set", "narrow", "--smear=auto")
	l := c.flow("narrow", 160)
	defer l.stop()
	time.Sleep(30 * time.Second) // rows of every delay wait
	for _, p := range c.Storage {
		t.Logf("%v rows wait, %d were acked; %s is killed", c.waiting(), l.acked.Load(), p.Name)
		p.Kill()
		time.Sleep(5 * time.Second)
		c.start(p)
		time.Sleep(10 * time.Second)
	}
	l.stop()
	c.within(2*processtest.Patience, "nothing waits", func() bool { return c.waiting() == 0 })
	l.check()
	t.Logf("%d rows were acked, %d requests failed", l.acked.Load(), l.failed.Load())
}

// flow writes the series of a table again and again, at the time it is, and asks for them.
type flow struct {
	c      *crowd
	table  string
	series int
	more   func(series int) string // labels beside s, each with a comma before it
	ended  chan struct{}
	once   sync.Once
	wait   sync.WaitGroup
	from   time.Time

	sent, acked, failed atomic.Int64 // rows; failed: requests

	mu    sync.Mutex
	wrong []string
}

// flow begins to write ten times a second, through the gateways in turn. Rows of a request that fails are sent again, as they were.
func (c *crowd) flow(table string, series int) *flow {
	return c.flowOf(table, series, func(int) string { return "" })
}

// flowOf is flow with more labels.
func (c *crowd) flowOf(table string, series int, more func(series int) string) *flow {
	l := &flow{c: c, table: table, series: series, more: more, ended: make(chan struct{}), from: time.Now()}
	l.wait.Go(func() {
		for i := 0; l.goesOn(); i++ {
			l.request(i)
			time.Sleep(100 * time.Millisecond)
		}
	})
	l.wait.Go(func() {
		for i := 0; l.goesOn(); i++ {
			l.ask(i)
			time.Sleep(500 * time.Millisecond)
		}
	})
	return l
}

func (l *flow) goesOn() bool {
	select {
	case <-l.ended:
		return false
	default:
		return true
	}
}

func (l *flow) stop() {
	l.once.Do(func() { close(l.ended) })
	l.wait.Wait()
}

func (l *flow) request(i int) {
	var b strings.Builder
	at := time.Now().UnixMilli()
	for s := range l.series {
		fmt.Fprintf(&b, "flow,s=%d%s v=%d %d\n", s, l.more(s), i, at)
	}
	l.sent.Add(int64(l.series))
	for end := time.Now().Add(processtest.Patience); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if status, _, err := processtest.PutLine(l.c.doors[i%len(l.c.doors)], l.table, b.String()); err == nil && status == http.StatusNoContent {
			l.acked.Add(int64(l.series))
			return
		}
		l.failed.Add(1)
	}
}

// ask compares the rows that a gateway finds with those acked before the query began and those sent until it ended.
func (l *flow) ask(i int) {
	least := l.acked.Load()
	if least == 0 {
		return // a gateway need not know the table yet
	}
	got, text := l.count(i)
	for end := time.Now().Add(30 * time.Second); got < 0 && time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		got, text = l.count(i) // a server that is needed may stand still for some seconds
	}
	if most := l.sent.Load(); got < 0 || got < least || got > most {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.wrong = append(l.wrong, fmt.Sprintf("%d rows were acked, %d sent, and %d found: %.300s", least, most, got, text))
	}
}

// count asks for all rows. Below 0: there is no answer.
func (l *flow) count(i int) (int64, string) {
	door := l.c.doors[(i+1)%len(l.c.doors)]
	now := time.Now().Add(time.Second)
	query := fmt.Sprintf("sum(count_over_time(flow_v[%ds]))", int(math.Ceil(now.Sub(l.from).Seconds()))+5)
	q := url.Values{"query": {query}, "time": {strconv.FormatFloat(float64(now.UnixMilli())/1000, 'f', 3, 64)}}
	status, body, err := door.Get("/t/" + l.table + "/api/v1/query?" + q.Encode())
	var a struct {
		Warnings []string
		Data     struct{ Result []struct{ Value [2]any } }
	}
	if err != nil || status != http.StatusOK || json.Unmarshal(body, &a) != nil {
		return -1, fmt.Sprintf("%d %s %v", status, body, err)
	}
	if len(a.Data.Result) == 0 {
		return 0, string(body)
	}
	n, _ := strconv.ParseInt(fmt.Sprint(a.Data.Result[0].Value[1]), 10, 64)
	return n, string(body)
}

// check wants all acked rows, once each, from every gateway.
func (l *flow) check() {
	l.c.t.Helper()
	for i := range l.c.doors {
		got, text := int64(0), ""
		for end := time.Now().Add(processtest.Patience); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
			if got, text = l.count(i); got == l.acked.Load() {
				break
			}
		}
		if got != l.acked.Load() {
			l.c.t.Errorf("%d rows were acked, %d are found: %.300s", l.acked.Load(), got, text)
		}
	}
}

// complain reports answers that were wrong while rows were written.
func (l *flow) complain() {
	l.c.t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, w := range l.wrong {
		l.c.t.Error(w)
	}
	if n := l.failed.Load(); n > 0 {
		l.c.t.Logf("%d requests were sent again", n)
	}
}

// meter records how many rows each server has accepted as a leader, once in a second.
type meter struct {
	ended chan struct{}
	once  sync.Once
	wait  sync.WaitGroup

	mu  sync.Mutex
	all []reading
}

type reading struct {
	at   time.Time
	rows []float64 // by server
}

func (c *crowd) meter() *meter {
	m := &meter{ended: make(chan struct{})}
	m.wait.Go(func() {
		for {
			r := reading{at: time.Now()}
			for _, addr := range c.Admin {
				r.rows = append(r.rows, processtest.Metric(c.t, addr, "spillway_server_rows_total"))
			}
			m.mu.Lock()
			m.all = append(m.all, r)
			m.mu.Unlock()
			select {
			case <-m.ended:
				return
			case <-time.After(time.Second):
			}
		}
	})
	return m
}

func (m *meter) stop() {
	m.once.Do(func() { close(m.ended) })
	m.wait.Wait()
}

// after returns the readings of the time to come.
func (m *meter) after(d time.Duration) []reading {
	began := time.Now()
	time.Sleep(d) // the readings of this time are the result
	m.mu.Lock()
	defer m.mu.Unlock()
	i := slices.IndexFunc(m.all, func(r reading) bool { return r.at.After(began) })
	if i < 0 { // a server needed as long to say how many rows it has
		return nil
	}
	return slices.Clone(m.all[i:])
}

// busiest is the load of the busiest server in any ten seconds, of the mean of all.
func (m *meter) busiest(all []reading) (worst float64) {
	for i := range all {
		for j := i; j < len(all); j++ {
			if all[j].at.Sub(all[i].at) < 10*time.Second {
				continue
			}
			most, sum := 0.0, 0.0
			for s := range all[i].rows {
				n := all[j].rows[s] - all[i].rows[s]
				most, sum = max(most, n), sum+n
			}
			if sum > 0 {
				worst = max(worst, most*float64(len(all[i].rows))/sum)
			}
			break
		}
	}
	return worst
}
