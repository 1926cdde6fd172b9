package clustertest

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/cmd/internal/processes"
	"github.com/spillwaydb/spillway/cmd/internal/processtest"
	"github.com/spillwaydb/spillway/cmd/spillway/administration"
	"github.com/spillwaydb/spillway/gateway/ui"
	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/topology"
)

// movesPlan is a cluster of four servers that keep copies, whose leaders flush within seconds.
func movesPlan(env ...string) processes.Plan {
	return processes.Plan{Etcd: 1, Storage: 4, Gateways: 2, Env: append([]string{
		"SPILLWAY_STORAGE_FLUSH_AGE=1s", "SPILLWAY_STORAGE_MINORS_MAX=3", "SPILLWAY_TABLES_PARTITION_WIDTH=1h"}, env...)}
}

// filled makes a table with n partitions of the last hours, each with rows.
func (c *crowd) filled(table string, replicas, n int) (ps []lease.Partition, written map[string]int64) {
	c.t.Helper()
	c.table(table, time.Minute, replicas)
	ps = c.cover(table, time.Now().Truncate(time.Hour).Add(-3*time.Hour), time.Minute, n)
	written = map[string]int64{}
	for round := range 3 {
		for series, ms := range c.putInto(table, ps, round) {
			written[series] = ms
		}
	}
	return ps, written
}

// isOn reports whether a server has anything of a partition: in the map, or in the lease row.
func (c *crowd) isOn(p lease.Partition, s topology.ServerID) bool {
	m, _ := c.view.Tables.Get(p.Table)
	at, ok := m.ByID(p.ID)
	if !ok {
		return false
	}
	_, on := at.On(s)
	_, joins := at.JoiningOn(s)
	return on || joins || slices.Contains(c.inSync(p), s)
}

// moved reports whether partitions have as many live placements as they should, all in sync, and none on the servers named.
func (c *crowd) moved(ps []lease.Partition, replicas int, not ...topology.ServerID) func() bool {
	return func() bool {
		for _, p := range ps {
			m, _ := c.view.Tables.Get(p.Table)
			at, ok := m.ByID(p.ID)
			list := c.inSync(p)
			if !ok || len(at.Placements) != replicas || len(at.Joining) > 0 || len(list) != replicas {
				return false
			}
			for _, s := range not {
				if c.isOn(p, s) {
					return false
				}
			}
		}
		return true
	}
}

// movesTo has a command move a partition. It is refused while a server counts as silent, say: a person tries again.
func (c *crowd) movesTo(p lease.Partition, from, to topology.ServerID) {
	c.t.Helper()
	c.within(processtest.Patience, fmt.Sprintf("a move of %v from %s to %s is accepted", p, from, to), func() bool {
		_, code := c.cli("partition", "move", p.Table, fmt.Sprintf("p%d", p.ID), "--from="+string(from), "--to="+string(to), "--reason=hot")
		return code == 0
	})
}

// TestClusterDrainEmptiesAServerOfItsRows drains one of four servers while rows are written to tables of one, two and three replicas, and kills it when
// nothing is left there: every acked row is there.
func TestClusterDrainEmptiesAServerOfItsRows(t *testing.T) {
	needsCluster(t)
	t.Parallel()
	seed := uint64(processtest.EnvInt(t, "TEST_SEED", int(rand.Uint32())))
	t.Logf("TEST_SEED=%d", seed)
	c := newCrowd(t, movesPlan())
	c.table("default", time.Hour, 2)
	var ps []lease.Partition
	wrote := map[string]map[string]int64{}
	for replicas := 1; replicas <= 3; replicas++ {
		table := fmt.Sprintf("of%d", replicas)
		made, written := c.filled(table, replicas, 8)
		ps, wrote[table] = append(ps, made...), written
	}
	senders := []*sender{c.sender(0, seed), c.sender(1, seed)}
	stop := c.load(senders)
	c.ackMore(senders)
	began := time.Now()
	if out, code := c.cli("server", "drain", "s1", "--reason=old disk", "--wait=1s"); code == 0 {
		t.Fatalf("a drain of a server with rows ended within a second: %s", out)
	}
	waited := make(chan string, 1)
	go func() {
		out, code := c.cli("server", "drain", "s1", "--reason=old disk", fmt.Sprint("--wait=", 5*processtest.Patience))
		waited <- fmt.Sprintf("%d: %s", code, out)
	}()
	for replicas := 1; replicas <= 3; replicas++ {
		mine := slices.DeleteFunc(slices.Clone(ps), func(p lease.Partition) bool { return p.Table != fmt.Sprintf("of%d", replicas) })
		c.within(3*processtest.Patience, fmt.Sprintf("nothing of a table of %d replicas is on s1", replicas), c.moved(mine, replicas, "s1"))
		t.Logf("tables of %d replicas have left s1 after %v", replicas, time.Since(began).Round(time.Millisecond))
	}
	c.within(processtest.Patience, "the drain has ended", func() bool { return len(waited) > 0 })
	if out := <-waited; !strings.HasPrefix(out, "0: ") || !strings.Contains(out, "has nothing left") {
		t.Fatalf("drain --wait ended with %s", out)
	}
	c.within(processtest.Patience, "s1 has nothing", func() bool { r := c.shown("s1"); return r.Placements == 0 && r.Leads == 0 && r.OnlyCopy == 0 })
	c.within(processtest.Patience, "s1 has deleted its copies", func() bool { sums, _ := c.segmentsOn(c.server("s1")); return len(sums) == 0 })
	t.Logf("s1 is empty after %v", time.Since(began).Round(time.Millisecond))
	c.ackMore(senders)
	stop()
	c.server("s1").Kill()
	c.must(os.RemoveAll(c.dirOf(c.server("s1"))))
	for table, written := range wrote {
		for series, ms := range c.putInto(table, slices.DeleteFunc(slices.Clone(ps), func(p lease.Partition) bool { return p.Table != table }), 10) {
			written[series] = ms
		}
		c.holdsOnce(table, written)
	}
	for _, s := range senders {
		c.answers("default", s.metric)
		s.check()
	}
	c.report(senders)
}

// TestClusterADrainedServerThatDiesWhileItsFilesAreRemovedIsUsedAgain drains one of four servers while rows are written, kills it each time that files of partitions wait to be
// removed there, and has it used again. Every acked row is there, it has files of its placements alone, and none was put aside.
func TestClusterADrainedServerThatDiesWhileItsFilesAreRemovedIsUsedAgain(t *testing.T) {
	needsCluster(t)
	t.Parallel()
	seed := uint64(processtest.EnvInt(t, "TEST_SEED", int(rand.Uint32())))
	t.Logf("TEST_SEED=%d", seed)
	c := newCrowd(t, movesPlan())
	c.table("default", time.Hour, 2)
	ps, written := c.filled("of2", 2, 12)
	c.within(processtest.Patience, "all have two copies", c.moved(ps, 2))
	senders := []*sender{c.sender(0, seed), c.sender(1, seed)}
	stop := c.load(senders)
	c.ackMore(senders)
	dropped := func() float64 { return processtest.Metric(t, c.Admin[0], "spillway_brick_dropped_bytes") }
	c.within(processtest.Patience, "s1 drains", func() bool {
		_, code := c.cli("server", "drain", "s1", "--reason=old disk")
		return code == 0
	})
	began := time.Now()
	empty := func() bool { return len(c.placedOn(ps, "s1")) == 0 && c.bytesIn("s1") == 0 }
	for kills := 1; kills <= 3 && !empty(); kills++ {
		c.within(3*processtest.Patience, "files of partitions wait to be removed at s1, or all are", func() bool { return dropped() > 0 || empty() })
		t.Logf("s1 is killed, after %v, %v bytes wait to be removed there", time.Since(began).Round(time.Millisecond), dropped())
		c.server("s1").Kill()
		c.start(c.server("s1"))
	}
	c.within(3*processtest.Patience, "all have two copies elsewhere", c.moved(ps, 2, "s1"))
	t.Logf("all have two copies elsewhere after %v", time.Since(began).Round(time.Millisecond))
	c.within(3*processtest.Patience, "s1 has nothing", func() bool { r := c.shown("s1"); return r.Placements == 0 && r.Leads == 0 })
	c.within(processtest.Patience, "s1 has deleted its copies", func() bool { sums, _ := c.segmentsOn(c.server("s1")); return len(sums) == 0 && dropped() == 0 })
	t.Logf("s1 is empty after %v", time.Since(began).Round(time.Millisecond))
	c.command("server", "undrain", "s1")
	p := ps[0]
	on, _ := c.placesOf(p)
	c.movesTo(p, on[0], "s1")
	c.within(3*processtest.Patience, "a partition has moved to s1", func() bool { return c.moved([]lease.Partition{p}, 2, on[0])() && c.isOn(p, "s1") })
	for series, ms := range c.putInto("of2", ps, 10) {
		written[series] = ms
	}
	c.ackMore(senders)
	stop()
	c.server("s1").Kill()
	c.start(c.server("s1"))
	c.holdsOnce("of2", written)
	for _, s := range senders {
		c.answers("default", s.metric)
		s.check()
	}
	c.report(senders)
	for i, addr := range c.Admin {
		if n := processtest.Metric(t, addr, "spillway_brick_lost_found_entries"); n != 0 {
			t.Errorf("%v files were put aside on %s", n, c.Storage[i].Name)
		}
	}
}

// TestClusterAPartitionMovesToTheServerNamed moves partitions with rows, led by the server that they leave, while rows are written to them and others; the
// source and the target are killed in the middle. At every moment all acked rows are read.
func TestClusterAPartitionMovesToTheServerNamed(t *testing.T) {
	needsCluster(t)
	t.Parallel()
	seed := uint64(processtest.EnvInt(t, "TEST_SEED", int(rand.Uint32())))
	t.Logf("TEST_SEED=%d", seed)
	c := newCrowd(t, movesPlan("SPILLWAY_STORAGE_COPY_BYTES_PER_SECOND=64KiB"))
	c.table("default", time.Hour, 2)
	ps, written := c.filled("moved", 2, 4)
	c.within(processtest.Patience, "all have two copies", c.moved(ps, 2))
	senders := []*sender{c.sender(0, seed), c.sender(1, seed)}
	for i, p := range ps {
		stop := c.load(senders)
		c.within(2*processtest.Patience, "it has two copies", c.moved([]lease.Partition{p}, 2))
		from, _ := c.waitLeader(p)
		on, to := c.placesOf(p)
		name := fmt.Sprintf("p%d", p.ID)
		if out, code := c.cli("partition", "move", p.Table, name, "--from="+string(from), "--to="+string(on[0]), "--reason=hot"); code == 0 {
			t.Fatalf("a move to a server that has it was taken: %s", out)
		}
		c.movesTo(p, from, to)
		victim := []topology.ServerID{"", to, from, ""}[i%4]
		if victim != "" {
			time.Sleep(time.Duration(seed>>i%1500) * time.Millisecond)
			c.server(victim).Kill()
			c.start(c.server(victim))
		}
		c.within(3*processtest.Patience, fmt.Sprintf("%s has left %s for %s", name, from, to), func() bool {
			return c.moved([]lease.Partition{p}, 2, from)() && c.isOn(p, to)
		})
		for series, ms := range c.putInto("moved", ps, 10+i) {
			written[series] = ms
		}
		stop()
		c.holdsOnce("moved", written)
		for _, s := range senders {
			c.answers("default", s.metric)
			s.check()
		}
	}
	c.report(senders)
}

// TestClusterAMoveShowsHowFarItIs moves a partition at a few bytes a second: `partition show` and the page of each gateway say where from and to, how far it is, and
// the time that is left.
func TestClusterAMoveShowsHowFarItIs(t *testing.T) {
	needsCluster(t)
	t.Parallel()
	c := newCrowd(t, movesPlan("SPILLWAY_STORAGE_COPY_BYTES_PER_SECOND=4096"))
	c.table("slow", time.Hour, 1)
	p := c.cover("slow", time.Now().Truncate(time.Hour).Add(-3*time.Hour), time.Hour, 1)[0]
	m, _ := c.view.Tables.Get(p.Table)
	at, _ := m.ByID(p.ID)
	lines := make([]string, 100_000)
	for i := range lines { // no two values are alike: some 1 MB of segment, minutes of copying
		lines[i] = fmt.Sprintf("m,i=%d v=%v %d", i%100, rand.Float64(), at.TimeLo/int64(time.Millisecond)+int64(i))
	}
	c.acksAt(c.doors[0], p.Table, strings.Join(lines, "\n"))
	on, to := c.placesOf(p)
	name := fmt.Sprintf("p%d", p.ID)
	c.movesTo(p, on[0], to)
	c.within(2*processtest.Patience, "it is shown how far the move is", func() bool {
		return c.shownOnItsWay(p, func(x ui.Transfer) bool {
			return x.From == string(on[0]) && x.To == string(to) && x.Done > 0 && x.Done < x.Total && x.BytesPerSecond > 0 && x.Left != nil
		})
	})
	if out := c.command("partition", "show", p.Table, name); !strings.Contains(out, fmt.Sprintf("%s → %s: ", on[0], to)) {
		t.Errorf("partition show prints:\n%s", out)
	}
	c.command("partition", "move", p.Table, name, "--cancel", "--reason=enough")
	c.within(2*processtest.Patience, "nothing is on its way", func() bool {
		return c.moved([]lease.Partition{p}, 1, to)() && !c.shownOnItsWay(p, func(ui.Transfer) bool { return true })
	})
}

// shownOnItsWay reports whether `partition show` and the page of each gateway have rows of a partition on their way that are as wanted.
func (c *crowd) shownOnItsWay(p lease.Partition, wanted func(ui.Transfer) bool) bool {
	c.t.Helper()
	var row administration.PartitionRow
	c.within(processtest.Patience, "partition show shows it", func() bool {
		out, code := c.cli("partition", "show", p.Table, fmt.Sprintf("p%d", p.ID), "--output=json")
		row = administration.PartitionRow{}
		return code == 0 && json.Unmarshal([]byte(out), &row) == nil
	})
	if !slices.ContainsFunc(row.Transfers, wanted) {
		return false
	}
	for _, door := range c.doors {
		var page struct{ Data ui.Status }
		resp, err := http.Get("http://" + door.Addr + ui.Path + "?table=" + p.Table)
		if err != nil {
			c.t.Fatal(err)
		}
		err = json.NewDecoder(resp.Body).Decode(&page)
		_ = resp.Body.Close()
		if err != nil {
			c.t.Fatal(err)
		}
		if !slices.ContainsFunc(page.Data.Tables, func(m ui.Table) bool {
			return slices.ContainsFunc(m.Partitions, func(x ui.Partition) bool {
				return x.ID == uint64(p.ID) && slices.ContainsFunc(x.Transfers, wanted)
			})
		}) {
			return false
		}
	}
	return true
}

// placesOf returns the servers that a partition is on, and the first one that it is not on.
func (c *crowd) placesOf(p lease.Partition) (on []topology.ServerID, free topology.ServerID) {
	for _, s := range []topology.ServerID{"s1", "s2", "s3", "s4"} {
		if c.isOn(p, s) {
			on = append(on, s)
		} else if free == "" {
			free = s
		}
	}
	return on, free
}

// TestClusterRowsMoveToAServerThatComes has rows on three servers, and a fourth one comes: closed partitions move to it until it has its part, and they are read
// all the time. Then the one that leads most is killed: nothing is missing.
func TestClusterRowsMoveToAServerThatComes(t *testing.T) {
	needsCluster(t)
	t.Parallel()
	c, later := newCrowdOf(t, movesPlan("SPILLWAY_TABLES_BALANCE_BYTES=1"), 3)
	const n, replicas = 40, 2
	ps, written := c.filled("even", replicas, n)
	c.within(2*processtest.Patience, "all copies are there", c.moved(ps, replicas))
	came := later[0]
	c.Storage = append(c.Storage, came)
	c.start(came)
	began := time.Now()
	id := topology.ServerID(came.Name)
	c.within(5*processtest.Patience, "it has its part", func() bool {
		c.holdsOnce("even", written)
		return len(c.placedOn(ps, id)) >= n*replicas/4*2/3
	})
	c.within(2*processtest.Patience, "all copies are there", c.moved(ps, replicas))
	t.Logf("after %v it has %d of %d copies", time.Since(began).Round(time.Second), len(c.placedOn(ps, id)), n*replicas)
	c.server(c.leadsMost(ps)).Kill()
	c.holdsOnce("even", written)
}
