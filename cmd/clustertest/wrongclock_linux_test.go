package clustertest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/cmd/internal/processes"
	"github.com/spillwaydb/spillway/cmd/internal/processtest"
)

// TestClusterGatewayWithAWrongClock: a gateway whose clock was set back answered 400 to senders whose clocks were right, and they dropped those
// rows. It stored rows without a time in the past or the future, and its answers to queries without a time were empty.
func TestClusterGatewayWithAWrongClock(t *testing.T) {
	needsCluster(t)
	if os.Getenv("CHAOS_FAULTS") == "" {
		t.Skip("no clock can be set: the program is not that of .ci/faults; `make chaos` runs this with it")
	}
	t.Parallel()
	file := filepath.Join(t.TempDir(), "clock")
	if err := setClock(file, 0); err != nil {
		t.Fatal(err)
	}
	c := newCrowd(t, processes.Plan{Etcd: 1, Storage: 3, Gateways: 1, EnvOf: func(name string) []string {
		if name == "g1" {
			return []string{"FAULT_CLOCK=" + file}
		}
		return nil
	}})
	c.command("table", "create", "default", "--retention=30d", "--replicas=3", "--partition-width=1d")
	door, g := c.doors[0], c.Gateways[0]
	is := func(what string, want bool) {
		t.Helper()
		c.within(processtest.Patience, what, func() bool {
			_, text, err := door.Get("/metrics")
			return err == nil && strings.Contains(string(text), "\nspillway_clock_wrong 1\n") == want
		})
	}
	n := 0
	works := func(what string) {
		t.Helper()
		n++
		began := time.Now()
		for _, line := range []string{fmt.Sprintf("timed,n=%d v=1 %d", n, time.Now().UnixMilli()), fmt.Sprintf("untimed,n=%d v=1", n)} {
			c.within(processtest.Patience, what+": "+line, func() bool {
				status, text := door.Line(line)
				if status == http.StatusBadRequest {
					t.Fatalf("%s: %s: %d %s", what, line, status, text)
				}
				return status == http.StatusNoContent
			})
		}
		if status, text := door.Line(fmt.Sprintf("late,n=%d v=1 %d", n, time.Now().Add(20*time.Minute).UnixMilli())); status != http.StatusBadRequest {
			t.Errorf("%s: a row of 20 minutes ahead: %d %s", what, status, text)
		}
		if status, text := door.Line(fmt.Sprintf("late,n=%d v=1 %d", n, time.Now().Add(-31*24*time.Hour).UnixMilli())); status != http.StatusBadRequest {
			t.Errorf("%s: a row older than the retention: %d %s", what, status, text)
		}
		for _, name := range []string{"timed_v", "untimed_v"} {
			var at time.Time
			c.within(processtest.Patience, what+": a query without a time finds "+name, func() bool { // heartbeats were sent some moments ago, so the median is as far behind
				at = askNow(t, door, fmt.Sprintf(`timestamp(%s{n="%d"})`, name, n)) // without time=
				return !at.IsZero()
			})
			if at.Before(began.Add(-time.Minute)) || at.After(time.Now().Add(time.Minute)) {
				t.Errorf("%s: %s lies at %v, written at %v", what, name, at, began)
			}
		}
	}
	works("right")
	for _, by := range []time.Duration{-3 * time.Hour, 3 * time.Hour, -24 * 365 * time.Hour, 24 * 365 * time.Hour} {
		if err := setClock(file, by); err != nil {
			t.Fatal(err)
		}
		is(fmt.Sprintf("the clock is %v off, and the gateway knows", by), true)
		c.within(processtest.Patience, "the judgment is in force", func() bool { return doorProblem(door, "the median of the storage servers' clocks") })
		works(fmt.Sprint("off by ", by))
		g.Kill() // it starts with a wrong clock
		c.start(g)
		c.within(processtest.Patience, "the judgment is in force after a start", func() bool { return doorProblem(door, "the median of the storage servers' clocks") })
		works(fmt.Sprint("started off by ", by))
	}
	if err := setClock(file, 0); err != nil {
		t.Fatal(err)
	}
	c.within(processtest.Patience, "it is right again", func() bool { return !doorProblem(door, "The clock of this machine") })
	works("right again")
}

// doorProblem reports whether the status page says so.
func doorProblem(door *processtest.Process, what string) bool {
	_, text, err := door.Get("/api/v1/status/cluster")
	return err == nil && strings.Contains(string(text), what)
}

// askNow evaluates an expression, without naming a time, and returns its only value, a time; zero: it has none.
func askNow(t *testing.T, door *processtest.Process, expr string) time.Time {
	t.Helper()
	_, text, err := door.Get("/api/v1/query?query=" + url.QueryEscape(expr))
	if err != nil {
		t.Fatal(err)
	}
	var a struct {
		Data struct {
			Result []struct{ Value [2]any }
		}
	}
	if err := json.Unmarshal(text, &a); err != nil || len(a.Data.Result) != 1 {
		return time.Time{}
	}
	seconds, err := strconv.ParseFloat(fmt.Sprint(a.Data.Result[0].Value[1]), 64)
	if err != nil {
		t.Fatal(err)
	}
	return time.UnixMilli(int64(seconds * 1000))
}
