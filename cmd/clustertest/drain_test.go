package clustertest

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/cmd/internal/processes"
	"github.com/spillwaydb/spillway/cmd/internal/processtest"
	"github.com/spillwaydb/spillway/cmd/spillway/administration"
	"github.com/spillwaydb/spillway/cmd/spillway/terminal"
	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/topology"
)

// cli runs a command for people, as a person does, and returns its output and its exit code.
func (c *crowd) cli(args ...string) (out string, code int) {
	c.t.Helper()
	cmd := exec.CommandContext(c.t.Context(), c.Storage[0].Line[0], append(args, "--coord="+c.Coord, "--dev.insecure-peers")...)
	var said, complained strings.Builder
	cmd.Stdout, cmd.Stderr = &said, &complained
	var exit *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
		c.t.Fatalf("spillway %s: %v", strings.Join(args, " "), err)
	}
	if said.Len() == 0 && complained.Len() > 0 {
		c.t.Logf("spillway %s: %s", strings.Join(args, " "), complained.String())
	}
	return said.String(), cmd.ProcessState.ExitCode()
}

// shown returns a server as shown by `spillway server show`. On a machine that stands still a command may end by its time: a person tries
// again.
func (c *crowd) shown(s topology.ServerID) (r administration.ServerRow) {
	c.t.Helper()
	c.within(processtest.Patience, "server show "+string(s)+" shows it", func() bool {
		out, code := c.cli("server", "show", string(s), "--output=json")
		r = administration.ServerRow{}
		if err := json.Unmarshal([]byte(out), &r); err != nil || code != 0 {
			c.t.Logf("server show %s ended with %d: %v: %s", s, code, err, out)
			return false
		}
		return true
	})
	return r
}

// shows waits until `spillway server show` shows a server as wanted: that comes from heartbeats and rows that other processes
// write.
func (c *crowd) shows(s topology.ServerID, what string, wanted func(administration.ServerRow) bool) {
	c.t.Helper()
	last := ""
	c.within(processtest.Patience, "server show "+string(s)+": "+what, func() bool {
		r := c.shown(s)
		if now := fmt.Sprintf("%+v", r); now != last {
			last = now
			c.t.Logf("server show %s: %s", s, now)
		}
		return wanted(r)
	})
}

// placedOn returns the partitions that the map places on a server.
func (c *crowd) placedOn(ps []lease.Partition, s topology.ServerID) []lease.Partition {
	return slices.DeleteFunc(slices.Clone(ps), func(p lease.Partition) bool {
		m, _ := c.view.Tables.Get(p.Table)
		at, ok := m.ByID(p.ID)
		if !ok {
			return true
		}
		_, on := at.On(s)
		return !on
	})
}

// without leaves out some partitions.
func without(ps, not []lease.Partition) []lease.Partition {
	return slices.DeleteFunc(slices.Clone(ps), func(p lease.Partition) bool { return slices.Contains(not, p) })
}

// single makes a table of one replica, with rows in some of the partitions that each server leads.
func (c *crowd) single(n int) (all []lease.Partition, rows map[topology.ServerID][]lease.Partition, written map[string]int64) {
	c.t.Helper()
	c.within(processtest.Patience, "all servers live", func() bool { // partitions are placed on those that do
		return !slices.ContainsFunc(c.Storage, func(p *processes.Process) bool { return !c.view.Leaders.Live(topology.ServerID(p.Name)) })
	})
	c.table("single", time.Minute, 1)
	all = c.cover("single", time.Now().Truncate(time.Hour).Add(-5*time.Hour), time.Minute, n)
	rows, written = map[topology.ServerID][]lease.Partition{}, map[string]int64{}
	for i, p := range c.Storage {
		s := topology.ServerID(p.Name)
		led := c.led(all, s)
		if len(led) < 4 {
			c.t.Fatalf("%s leads %d of %d partitions", s, len(led), n)
		}
		rows[s] = led[:2]
		for series, ms := range c.putInto("single", rows[s], i) {
			written[series] = ms
		}
	}
	c.within(processtest.Patience, "all rows are at their leaders", func() bool { return c.waiting() == 0 })
	return all, rows, written
}

// TestClusterDrainMovesWhatHasNoRows drains a server that keeps no copies, of a table with one replica: its partitions without rows are soon
// led by others, and accept rows there; its partitions with rows stay, and are served.
func TestClusterDrainMovesWhatHasNoRows(t *testing.T) {
	needsCluster(t)
	t.Parallel()
	c := newCrowd(t, processes.Plan{Etcd: 1, Storage: 3, Gateways: 2, Env: []string{"SPILLWAY_STORAGE_COPIES=false"}}) // with copies rows leave, too: moves_test.go
	all, rows, written := c.single(90)
	empty := without(c.led(all, "s1"), rows["s1"])
	began := time.Now()
	c.command("server", "drain", "s1", "--reason=old disk")
	took := c.moves(empty, "s1", began)
	t.Logf("s1 drains, what it led without rows is led by others: %s", spreadOf(took))
	c.within(processtest.Patience, "s1 has nothing but what it has rows of", func() bool { return slices.Equal(c.placedOn(all, "s1"), rows["s1"]) })
	t.Logf("the map has nothing else on s1 after %v", time.Since(began).Round(time.Millisecond))
	c.shows("s1", "it drains, and leads the two partitions that it has rows of", func(r administration.ServerRow) bool {
		return r.State == "draining" && r.Empty == 0 && r.Placements == 2 && r.Leads == 2 && r.OnlyCopy == 2
	})
	c.within(processtest.Patience, "doctor says what is left", func() bool {
		out, code := c.cli("doctor")
		return code == int(terminal.Degraded) && strings.Contains(out, "2 placements, 0 of them of partitions without rows")
	})
	for i := range 2 { // first rows of the moved partitions, second ones of the others
		for series, ms := range c.putInto("single", all, 10+i) {
			written[series] = ms
		}
	}
	c.holdsOnce("single", written)
	for _, p := range rows["s1"] {
		if s, _ := c.leader(p); s != "s1" {
			t.Errorf("%v has its rows on s1, and is led by %q", p, s)
		}
	}

	// Undrained, it is used again: it gets its share of new partitions.
	c.command("server", "undrain", "s1")
	from := time.Now().Truncate(time.Hour).Add(-2 * time.Hour)
	c.within(processtest.Patience, "s1 leads some of what was made since it is drained no more", func() bool { // the process that makes them sees it up to a second later
		c.cover("single", from, time.Minute, 3)
		from = from.Add(3 * time.Minute)
		return len(c.led(without(c.partitions("single"), all), "s1")) > 0
	})
	c.alive(c.All()...)
}

// TestClusterTakesOverWhatADeadServerHadNoRowsOf kills one of three servers, of a table with one replica. Its partitions
// without rows accept rows on others after the master's grace time; those with rows are refused until it is back, and then
// have all rows.
func TestClusterTakesOverWhatADeadServerHadNoRowsOf(t *testing.T) {
	needsCluster(t)
	t.Parallel()
	c := newCrowd(t, processes.Plan{Etcd: 1, Storage: 3, Gateways: 2, Env: unstaged})
	all, rows, written := c.single(60)
	empty := without(c.led(all, "s1"), rows["s1"])
	others := without(without(all, empty), rows["s1"])
	began := time.Now()
	c.server("s1").Kill()
	for series, ms := range c.putInto("single", others, 20) { // no other server is affected
		written[series] = ms
	}
	took := c.moves(empty, "s1", began)
	t.Logf("s1 is killed, what it led without rows is led by others: %s", spreadOf(took))
	for series, ms := range c.putInto("single", empty, 21) {
		written[series] = ms
	}
	t.Logf("a row in each of %d acked %v after the kill", len(empty), time.Since(began).Round(time.Millisecond))
	c.shows("s1", "it is silent, and alone has the rows of two partitions", func(r administration.ServerRow) bool {
		return r.State == "silent" && r.Empty == 0 && r.OnlyCopy == 2
	})
	m, _ := c.view.Tables.Get("single")
	for _, p := range rows["s1"] {
		at, _ := m.ByID(p.ID)
		status, text, err := processtest.PutLine(c.doors[0], "single", fmt.Sprintf("m,i=late v=1 %d", int64(at.TimeLo)/int64(time.Millisecond)+30))
		if err != nil || status != http.StatusServiceUnavailable {
			t.Errorf("%v has its rows on a server that is dead, and a row for it is answered with %d %s %v", p, status, text, err)
		}
	}

	c.start(c.server("s1"))
	for series, ms := range c.putInto("single", all, 22) {
		written[series] = ms
	}
	c.answers("single", "sum(count_over_time(m_v[8h]))") // every gateway has found s1 again
	c.holdsOnce("single", written)
	for _, p := range rows["s1"] {
		if s, _ := c.leader(p); s != "s1" {
			t.Errorf("%v has its rows on s1, and is led by %q", p, s)
		}
	}
	if led := c.led(empty, "s1"); len(led) > 0 {
		t.Errorf("s1 came back and leads %v, which others have rows of", led)
	}
	c.alive(c.All()...)
}
