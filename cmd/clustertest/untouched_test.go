package clustertest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/cmd/internal/processes"
	"github.com/spillwaydb/spillway/cmd/internal/processtest"
)

// TestClusterEvaluatesBesideRowsThatWait: rows of now wait for up to ten seconds, and more come all the time. Servers evaluate the steps that waiting rows do not touch, and each
// step has every row once: as many as a gateway finds before that evaluates nothing on servers, and no more than it finds afterwards.
func TestClusterEvaluatesBesideRowsThatWait(t *testing.T) {
	needsCluster(t)
	t.Parallel()
	c := newCrowd(t, processes.Plan{Etcd: 1, Storage: 3, Gateways: 2})
	c.table("narrow", 10*time.Second, 3)
	c.command("table", "set", "narrow", "--smear=20s")
	rows := c.oneMore(nil, "SPILLWAY_QUERY_PLAIN_ENGINE=true")
	l := c.flow("narrow", 40)
	defer l.stop()
	var pushed, compared int
	c.within(processtest.Patience, "servers evaluate beside rows that wait", func() bool {
		from, to := l.from.Add(time.Second), time.Now()
		if to.Sub(from) < 20*time.Second {
			return false
		}
		before, waited := l.steps(rows, from, to), c.waiting()
		got := l.steps(c.doors[compared%2], from, to)
		after := l.steps(rows, from, to)
		if before.parts["evaluated"] > 0 {
			t.Fatalf("the gateway that reads rows had steps evaluated: %v", before.parts)
		}
		for at, n := range got.rows {
			if n < before.rows[at] || n > after.rows[at] {
				t.Errorf("%d rows at %d, %d before and %d after; %v", n, at, before.rows[at], after.rows[at], got.parts)
			}
		}
		if len(got.rows) < len(before.rows) {
			t.Errorf("%d steps, %d before", len(got.rows), len(before.rows))
		}
		if compared++; got.parts["evaluated"] > 0 && got.parts["rows"] > 0 && waited > 0 {
			pushed++
		}
		return pushed >= 10
	})
	l.stop()
	l.check()
	l.complain()
	t.Logf("%d rows were acked; of %d answers %d were evaluated by servers in part", l.acked.Load(), compared, pushed)
}

// stepCounts is an answer with the rows at each step, by their times, and how many parts were evaluated where.
type stepCounts struct {
	rows  map[int64]int64
	parts map[string]int
}

// steps counts the rows of each second.
func (l *flow) steps(door *processtest.Process, from, to time.Time) stepCounts {
	l.c.t.Helper()
	q := url.Values{"query": {"sum(count_over_time(flow_v[1s]))"}, "step": {"1"}, "explain": {"1"},
		"start": {strconv.FormatInt(from.Unix(), 10)}, "end": {strconv.FormatInt(to.Unix(), 10)}}
	var status int
	var body []byte
	var err error
	l.c.within(processtest.Patience, "the steps are answered", func() bool { // 503 is no answer yet
		status, body, err = door.Get("/t/" + l.table + "/api/v1/query_range?" + q.Encode())
		return status != http.StatusServiceUnavailable
	})
	var a struct {
		Warnings []string
		Data     struct {
			Result  []struct{ Values [][2]any }
			Explain struct{ Parts []struct{ What string } }
		}
	}
	if err != nil || status != http.StatusOK || json.Unmarshal(body, &a) != nil || len(a.Warnings) > 0 {
		l.c.t.Fatalf("%d %s %v", status, body, err)
	}
	out := stepCounts{map[int64]int64{}, map[string]int{}}
	for _, s := range a.Data.Result {
		for _, v := range s.Values {
			at, _ := v[0].(float64)
			out.rows[int64(at)], err = strconv.ParseInt(fmt.Sprint(v[1]), 10, 64)
			l.c.must(err)
		}
	}
	for _, p := range a.Data.Explain.Parts {
		out.parts[p.What]++
	}
	return out
}

// oneMore starts one more gateway, with other values of some arguments, which end with =, and more variables.
func (c *crowd) oneMore(instead map[string]string, env ...string) *processtest.Process {
	c.t.Helper()
	addr, err := processes.FreeAddr()
	c.must(err)
	first := c.Gateways[0]
	p := &processes.Process{Name: "g9", Ready: "http://" + addr + "/-/ready", Env: append(append([]string{}, first.Env...), env...)}
	values := map[string]string{"--data-dir=": filepath.Join(c.t.TempDir(), "g9"), "--http.listen=": addr, "--admin.listen=": ""}
	for _, arg := range first.Line {
		for _, of := range []map[string]string{values, instead} {
			for key, value := range of {
				if strings.HasPrefix(arg, key) {
					arg = key + value
				}
			}
		}
		p.Line = append(p.Line, arg)
	}
	c.start(p)
	c.t.Cleanup(p.Kill)
	return &processtest.Process{T: c.t, Addr: addr}
}
