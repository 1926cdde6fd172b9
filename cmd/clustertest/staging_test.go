package clustertest

import (
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/cmd/internal/processes"
	"github.com/spillwaydb/spillway/cmd/internal/processtest"
	"github.com/spillwaydb/spillway/cmd/spillway/terminal"
	"github.com/spillwaydb/spillway/metadata/topology"
)

// unstaged are the settings of a cluster in which rows wait for their leader at their senders.
var unstaged = []string{"SPILLWAY_INTAKE_STAGING=false"}

// TestClusterWritesDoNotWaitForALeader kills the server that leads a table, freezes the next one, and writes all the while: every write is acked at once, and is
// read through both gateways before another server leads. When one does, nothing is staged any more, and every row is there once.
func TestClusterWritesDoNotWaitForALeader(t *testing.T) {
	needsCluster(t)
	c := newCrowd(t, processes.Plan{Etcd: 1, Storage: 3, Gateways: 2})
	c.table("copied", 24*time.Hour, 3)
	w := &copiesWriter{c: c, from: time.Now().Add(-time.Hour).Truncate(time.Minute)}
	w.write(100)
	p := c.partitions("copied")[0]
	c.within(processtest.Patience, "all three are in sync", func() bool { return len(c.inSync(p)) == 3 })
	for round, blow := range []func(*processes.Process){(*processes.Process).Kill, func(p *processes.Process) { c.must(p.Pause()) }} {
		was, epoch := c.waitLeader(p)
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
		c.within(processtest.Patience, "nothing is staged", func() bool { return c.waiting() == 0 })
		c.within(processtest.Patience, "all three are in sync again", func() bool { return len(c.inSync(p)) == 3 })
		w.check()
	}
}

// stagesAlone begins a cluster in which the only server with a table's copy was killed, and rows were written since.
func stagesAlone(t *testing.T, servers, rows int) (c *crowd, w *copiesWriter, only topology.ServerID) {
	c = newCrowd(t, processes.Plan{Etcd: 1, Storage: servers, Gateways: 2})
	c.table("copied", 24*time.Hour, 1)
	w = &copiesWriter{c: c, from: time.Now().Add(-time.Hour).Truncate(time.Minute)}
	w.write(1)
	c.atLeaders("copied") // no row of before is among those that are staged
	only, _ = c.waitLeader(c.partitions("copied")[0])
	c.server(only).Kill()
	w.atOnce(rows)
	return c, w, only
}

// TestClusterStagedRowsLeaveWithTheirServerAndTable: the only copy of a table is away, so that its rows stay staged on one server each. A server that is drained, and one that is
// stopped, stage theirs elsewhere, and all are there when the leader is back. Those that are staged when the table is dropped are gone too, and are not in the
// table that has its name then.
func TestClusterStagedRowsLeaveWithTheirServerAndTable(t *testing.T) {
	needsCluster(t)
	t.Parallel()
	c, w, only := stagesAlone(t, 4, 30)
	holders := c.stagedOn()
	t.Logf("30 rows of which %s has the only partition are staged: %v", only, holders)
	if sumOfRows(holders) < 30 || len(holders) < 2 { // more: a row that a server was slow to stage is staged by another, too
		t.Fatalf("30 rows are staged on two servers or more: %v", holders)
	}
	names := slices.Sorted(maps.Keys(holders))
	drained, stopped := names[0], names[1]
	c.must(c.ran("server", "drain", drained, "--reason=test"))
	c.within(processtest.Patience, "the drained server has no staged rows", func() bool { return c.stagedOn()[drained] == 0 })
	if now := c.stagedOn(); sumOfRows(now) < 30 {
		t.Errorf("after %s was drained: %v", drained, now)
	}
	began := time.Now()
	c.must(c.server(topology.ServerID(stopped)).Terminate())
	<-c.server(topology.ServerID(stopped)).Done()
	now := c.stagedOn()
	t.Logf("%s was drained, %s stopped within %v, and staged are %v", drained, stopped, time.Since(began).Round(time.Millisecond), now)
	if sumOfRows(now) < 30 {
		t.Errorf("after %s was stopped: %v", stopped, now)
	}
	c.start(c.server(topology.ServerID(stopped)), c.server(only))
	c.within(processtest.Patience, "nothing is staged", func() bool { return sumOfRows(c.stagedOn()) == 0 })
	w.check()

	c.must(c.ran("server", "undrain", drained))
	c.server(only).Kill()
	w.atOnce(10)
	if now := c.stagedOn(); sumOfRows(now) < 10 {
		t.Fatalf("10 rows are staged: %v", now)
	}
	t.Log(c.command("table", "drop", "copied", "--confirm=copied", "--reason=test", "--timeout=50s"))
	w = &copiesWriter{c: c, from: w.from, acked: 1000} // of the table that has the name then
	w.write(5)
	c.within(processtest.Patience, "nothing is staged", func() bool { return sumOfRows(c.stagedOn()) == 0 })
	c.start(c.server(only))
	c.within(processtest.Patience, "the server is back", func() bool { return c.view.Leaders.Live(only) })
	for _, d := range c.doors {
		rows := d.RowsOf("copied", "kept_v", "2d", time.Now().Add(time.Hour))
		if len(rows) != 1 || len(rows["kept_v/"]) != 5 {
			t.Errorf("the table was dropped and made again with 5 rows: %v", rows)
		}
	}
}

// TestClusterStagedRowsOutliveTheirHolders: of a table with two replicas, both of which are in sync, one is away, so that rows stay staged. They are read while they wait,
// after a holder is killed, and after all servers are; and are there once when the replica is back.
func TestClusterStagedRowsOutliveTheirHolders(t *testing.T) {
	needsCluster(t)
	t.Parallel()
	c := newCrowd(t, processes.Plan{Etcd: 1, Storage: 4, Gateways: 2})
	c.table("copied", 24*time.Hour, 2)
	w := &copiesWriter{c: c, from: time.Now().Add(-time.Hour).Truncate(time.Minute)}
	w.write(20)
	p := c.partitions("copied")[0]
	c.within(processtest.Patience, "both are in sync", func() bool { return len(c.inSync(p)) == 2 })
	was, _ := c.waitLeader(p)
	other := slices.DeleteFunc(c.inSync(p), func(s topology.ServerID) bool { return s == was })[0]
	c.server(was).Kill()
	if refused, slowest := w.atOnce(100); refused > 0 {
		t.Errorf("%d writes were refused, the slowest took %v", refused, slowest)
	}
	waits := func() map[string]int {
		t.Helper()
		w.check()
		now := c.stagedOn()
		if sumOfRows(now) < 100 {
			t.Fatalf("100 rows wait: %v", now)
		}
		return now
	}
	now := waits()
	t.Logf("100 rows are staged on two servers each, and read: %v", now)
	for _, victim := range c.Storage {
		if now[victim.Name] > 0 && victim.Name != string(other) {
			victim.Kill()
			break
		}
	}
	waits()
	c.within(processtest.Patience, "each is staged on two servers again", func() bool { return sumOfRows(c.stagedOn()) >= 200 })
	t.Logf("a holder was killed, and staged are %v", waits())
	for _, s := range c.Storage {
		s.Kill()
	}
	for _, s := range c.Storage {
		if s != c.server(was) {
			c.start(s)
		}
	}
	t.Logf("all were killed, and staged are %v", waits())
	c.start(c.server(was))
	c.within(processtest.Patience, "nothing is staged", func() bool { return sumOfRows(c.stagedOn()) == 0 })
	w.check()
}

// TestClusterRowsOfADeadHolderAreNotMissedInSilence: rows of a table with one replica are staged on one server each, and one of these is dead when their leader is back. Every answer
// without its rows is an error, or has a warning where the request allows it, also long after the gateway staged them. When the server is back, all rows are there.
func TestClusterRowsOfADeadHolderAreNotMissedInSilence(t *testing.T) {
	needsCluster(t)
	t.Parallel()
	c, w, only := stagesAlone(t, 3, 20)
	now := c.stagedOn()
	if len(now) != 2 {
		t.Fatalf("20 rows are staged on two servers: %v", now)
	}
	dead := slices.Sorted(maps.Keys(now))[0]
	c.within(processtest.Patience, fmt.Sprintf("the page shows that %d rows wait on %s", now[dead], dead), func() bool {
		status, page, err := c.doors[0].Get("/api/v1/status/cluster")
		return err == nil && status == http.StatusOK && strings.Contains(string(page), fmt.Sprintf(`"staged":[{"server":%q,"rows":%d,`, dead, now[dead]))
	})
	c.server(topology.ServerID(dead)).Kill()
	c.start(c.server(only))
	c.within(processtest.Patience, "the rows of the other holder are with their leader", func() bool { return sumOfRows(c.stagedOn()) == 0 })
	q := url.Values{"query": {fmt.Sprintf("count_over_time(kept_v[%ds])", w.acked+10)}, "time": {fmt.Sprint(w.from.Unix() + int64(w.acked))}}
	refused, warned := 0, 0
	for began := time.Now(); time.Since(began) < 15*time.Second; time.Sleep(200 * time.Millisecond) { // gateways remember for 10 s where they staged rows
		for _, d := range c.doors {
			status, body, err := d.Get("/t/copied/api/v1/query?" + q.Encode())
			c.must(err)
			if status == http.StatusOK {
				t.Fatalf("%d of %d rows are on a dead server, and a query is answered %d %s", now[dead], w.acked, status, body)
			}
			refused++
			status, body, err = d.Get("/t/copied/api/v1/query?partial_response=true&" + q.Encode())
			c.must(err)
			if status == http.StatusServiceUnavailable { // as where the leader stands still, too
				continue
			}
			if status != http.StatusOK || !strings.Contains(string(body), "rows of table") || !strings.Contains(string(body), dead) {
				t.Fatalf("a query that takes partial answers: %d %s", status, body)
			}
			warned++
		}
	}
	if warned == 0 {
		t.Error("no query that takes partial answers was answered")
	}
	c.within(processtest.Patience, "the doctor says that rows may be staged on it", func() bool {
		out, code := c.cli("doctor")
		return (code == int(terminal.Degraded) || code == int(terminal.Broken)) && strings.Contains(out, "rows may be staged on it")
	})
	t.Logf("%d rows are on %s, which is dead: %d queries were refused, %d warned", now[dead], dead, refused, warned)
	c.start(c.server(topology.ServerID(dead)))
	c.within(processtest.Patience, "nothing is staged", func() bool { return sumOfRows(c.stagedOn()) == 0 })
	w.check()
}

// ran runs a command for people that has to succeed.
func (c *crowd) ran(args ...string) error {
	if out, code := c.cli(args...); code != 0 {
		return fmt.Errorf("%v ended with %d: %s", args, code, out)
	}
	return nil
}

// stagedOn counts the staged rows by server, of those that run and have some.
func (c *crowd) stagedOn() map[string]int {
	all := map[string]int{}
	for i, p := range c.Storage {
		select {
		case <-p.Done():
			continue
		default:
		}
		if n := processtest.Metric(c.t, c.Admin[i], "spillway_staging_rows"); n > 0 {
			all[p.Name] = int(n)
		}
	}
	return all
}

func sumOfRows(of map[string]int) (n int) {
	for _, rows := range of {
		n += rows
	}
	return n
}

// atOnce writes rows, each once: a refusal is counted and the row is sent again.
func (w *copiesWriter) atOnce(n int) (refused int, slowest time.Duration) {
	w.c.t.Helper()
	for range n {
		line := fmt.Sprintf("kept v=%d %d", w.acked, w.from.Add(time.Duration(w.acked)*time.Second).UnixMilli())
		for end := time.Now().Add(processtest.Patience); ; {
			began := time.Now()
			status, text, err := processtest.PutLine(w.c.doors[w.acked%len(w.c.doors)], "copied", line)
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
		n += processtest.Metric(c.t, d.Addr, "spillway_forward_staged_rows_total")
	}
	return n
}

func (c *crowd) waiting() (n float64) {
	for _, addr := range c.Admin {
		n += processtest.Metric(c.t, addr, "spillway_staging_rows")
	}
	return n
}
