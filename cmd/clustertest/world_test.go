package clustertest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/oklog/run"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/spillwaydb/spillway/cmd/internal/processes"
	"github.com/spillwaydb/spillway/cmd/internal/processtest"
	"github.com/spillwaydb/spillway/cmd/spillway/connect"
	"github.com/spillwaydb/spillway/cmd/spillway/settings"
	"github.com/spillwaydb/spillway/cmd/spillway/view"
	"github.com/spillwaydb/spillway/gateway/peers"
	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/point"
)

// crowd is a cluster of real processes under test, with a view from outside: the test follows leases and maps as a
// gateway does.
type crowd struct {
	t *testing.T
	*processes.Cluster
	doors []*processtest.Process // the gateways, as their clients see them
	peer  connect.Peer           // how its processes authenticate each other
	coord connect.Coord          // how they reach etcd
	view  view.Cluster
	dir   string // of all processes

	failure string // why the test ended
	setBack bool   // etcd is restored from a backup, and the view ends
}

// needsCluster leaves long tests to `make test-cluster`.
func needsCluster(t *testing.T) {
	t.Helper()
	if testing.Short() || os.Getenv("CLUSTER") == "" {
		t.Skip("processes of a cluster are killed and cut off in `make test-cluster`")
	}
}

// unmerged has old narrow partitions stay as they are: a test counts them.
const unmerged = "SPILLWAY_TABLES_MERGE_FROM=0"

// newCrowd starts a cluster. Bin of the plan is the test's, and so is Dir unless it is set.
func newCrowd(t *testing.T, p processes.Plan) *crowd {
	t.Helper()
	c, _ := newCrowdOf(t, p, p.Storage)
	return c
}

// newCrowdOf starts a cluster with the first n storage servers of a plan, and returns the others, which have not joined yet.
func newCrowdOf(t *testing.T, p processes.Plan, n int) (c *crowd, later []*processes.Process) {
	t.Helper()
	p.Memory, p.Bin = cmp.Or(p.Memory, "512MiB"), cmp.Or(p.Bin, os.Getenv("CLUSTER_BIN"))
	if p.Dir == "" {
		p.Dir = t.TempDir()
	}
	if p.Bin == "" {
		p.Bin = processtest.Program(t)
	}
	// Tests count tables, leases and rows: the processes' own metrics are left out where a test does not ask for them.
	p.Env = append([]string{"SPILLWAY_SELF_SCRAPE_INTERVAL=0"}, append(p.Env, "SPILLWAY_STORAGE_FREE_BYTES_MIN=1")...)
	layout, err := processes.Layout(p)
	if err != nil {
		t.Fatal(err)
	}
	layout.Storage, later = layout.Storage[:n:n], layout.Storage[n:]
	c = &crowd{t: t, Cluster: layout, dir: p.Dir}
	for _, addr := range c.HTTP {
		c.doors = append(c.doors, &processtest.Process{T: t, Addr: addr})
	}
	t.Cleanup(func() {
		c.Kill()
		if t.Failed() {
			c.show()
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), processtest.Patience)
	defer cancel()
	if err := c.Start(ctx); err != nil {
		t.Fatal(err)
	}
	c.peer.Insecure = !p.Certs
	if p.Certs {
		file := func(name string) string { return filepath.Join(p.Dir, "certs", name) }
		c.peer = connect.Peer{CA: file("ca.crt"), Cert: file("g1.crt"), Key: file("g1.key")}
		c.coord = connect.Coord{CA: file("etcd-ca.crt"), Cert: file("etcd-user-spillway.crt"), Key: file("etcd-user-spillway.key")}
	}
	c.look()
	return c, later
}

// show prints the last output of all.
func (c *crowd) show() {
	for _, p := range c.All() {
		lines := strings.Split(strings.TrimSpace(p.Said()), "\n")
		c.t.Logf("%s said last:\n%s", p.Name, strings.Join(lines[max(0, len(lines)-25):], "\n"))
	}
	if c.failure != "" {
		c.t.Log("the test ended because:", c.failure)
	}
}

// fatal ends the test. The reason stands last in its output, too.
func (c *crowd) fatal(reason string) {
	c.t.Helper()
	c.failure = reason
	c.t.Fatal(reason)
}

// look begins to follow leases and maps.
func (c *crowd) look() {
	cfg := settings.Default()
	cfg.Coord, cfg.Peer, cfg.DataDir = c.coord, c.peer, c.t.TempDir()
	cfg.Coord.URL = c.Coord
	ctx, stop := context.WithCancel(context.Background())
	if err := c.view.Open(ctx, &cfg, slog.New(slog.DiscardHandler), prometheus.NewRegistry(), "", peers.Local{}); err != nil {
		stop()
		c.t.Fatal(err)
	}
	var g run.Group
	g.Add(func() error { <-ctx.Done(); return nil }, func(error) { stop() })
	c.view.Actors(ctx, &g)
	ended := make(chan error, 1)
	go func() { ended <- g.Run() }()
	c.t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil && !(c.setBack && errors.Is(err, coord.ErrSetBack)) {
			c.t.Error(err)
		}
		_ = c.view.Close()
	})
}

func (c *crowd) must(err error) {
	c.t.Helper()
	if err != nil {
		c.fatal(err.Error())
	}
}

// within waits until ok returns true. It pauses for twice as long as ok lasts: queries of all rows one after the other, of several tests at once, would
// have the processors that all wait for.
func (c *crowd) within(d time.Duration, what string, ok func() bool) {
	c.t.Helper()
	began := time.Now()
	for end := began.Add(d); !ok(); began = time.Now() {
		if time.Now().After(end) {
			c.fatal(fmt.Sprintf("after %v not yet: %s", d, what))
		}
		time.Sleep(min(max(2*time.Since(began), 5*time.Millisecond), 500*time.Millisecond))
	}
}

// start starts processes and waits until they serve.
func (c *crowd) start(ps ...*processes.Process) {
	c.t.Helper()
	for _, p := range ps {
		c.must(p.Launch())
	}
	ctx, cancel := context.WithTimeout(c.t.Context(), processtest.Patience)
	defer cancel()
	for _, p := range ps {
		c.must(p.Wait(ctx))
	}
}

// table makes a table.
func (c *crowd) table(name string, width time.Duration, replicas int) {
	c.t.Helper()
	_, err := c.view.Tables.Create(c.t.Context(), name, topology.Config{PartitionWidth: width, Replicas: replicas})
	c.must(err)
}

// cover makes n consecutive partitions from a time on, in groups, and returns when all are led.
func (c *crowd) cover(table string, from time.Time, width time.Duration, n int) []lease.Partition {
	c.t.Helper()
	for at := 0; at < n; at += 250 {
		var times []point.Nanos
		for i := at; i < min(n, at+250); i++ {
			times = append(times, point.Nanos(from.Add(time.Duration(i)*width).UnixNano()))
		}
		_, err := c.view.Tables.Cover(c.t.Context(), table, times)
		c.must(err)
	}
	ps := c.partitions(table)
	c.within(2*processtest.Patience, "all partitions of "+table+" are led", func() bool { return len(c.unled(ps)) == 0 })
	return ps
}

func (c *crowd) partitions(table string) (ps []lease.Partition) {
	c.t.Helper()
	var m *topology.Map
	c.within(processtest.Patience, "table "+table+" is known", func() (ok bool) { m, ok = c.view.Tables.Get(table); return ok && m.Len() > 0 })
	for p := range m.All() {
		if p.TimeLo <= time.Now().UnixNano() { // before an hour ends the master makes the next one's, which no server leads yet
			ps = append(ps, lease.Partition{Table: table, ID: p.ID})
		}
	}
	return ps
}

// leader returns the leader by the rows.
func (c *crowd) leader(p lease.Partition) (topology.ServerID, point.Epoch) {
	s, e, ok := c.view.Leaders.Leader(p)
	if !ok {
		return "", 0
	}
	return s, e
}

// waitLeader returns the leader by the rows as soon as there is one: rows are acked without one too, when they are staged.
func (c *crowd) waitLeader(p lease.Partition) (s topology.ServerID, e point.Epoch) {
	c.t.Helper()
	c.within(processtest.Patience, fmt.Sprintf("partition %v is led", p), func() bool { s, e = c.leader(p); return s != "" })
	return s, e
}

func (c *crowd) unled(ps []lease.Partition) []lease.Partition {
	return slices.DeleteFunc(slices.Clone(ps), func(p lease.Partition) bool { s, _ := c.leader(p); return s != "" })
}

// led returns the partitions that a server leads.
func (c *crowd) led(ps []lease.Partition, by topology.ServerID) []lease.Partition {
	return slices.DeleteFunc(slices.Clone(ps), func(p lease.Partition) bool { s, _ := c.leader(p); return s != by })
}

// moves watches until every partition is led by a server other than was, and returns each one's time since began.
func (c *crowd) moves(ps []lease.Partition, was topology.ServerID, began time.Time) []time.Duration {
	c.t.Helper()
	var took []time.Duration
	left := slices.Clone(ps)
	for end := time.Now().Add(processtest.Patience); len(left) > 0; {
		changed := c.view.Leaders.Changed() // fetched before looking
		now := time.Since(began)
		left = slices.DeleteFunc(left, func(p lease.Partition) bool {
			s, _ := c.leader(p)
			gone := s != "" && s != was
			if gone {
				took = append(took, now)
			}
			return gone
		})
		select {
		case <-changed:
		case <-time.After(50 * time.Millisecond):
		}
		if time.Now().After(end) {
			c.t.Fatalf("%d of %d partitions that %s led are not led by another after %v", len(left), len(ps), was, processtest.Patience)
		}
	}
	slices.Sort(took)
	return took
}

// spreadOf summarizes a sorted list of durations.
func spreadOf(took []time.Duration) string {
	if len(took) == 0 {
		return "none"
	}
	at := func(q float64) time.Duration { return took[int(q*float64(len(took)-1))].Round(time.Millisecond) }
	return fmt.Sprintf("%d: first %v, median %v, last %v", len(took), at(0), at(0.5), at(1))
}

// server is the process of a storage server.
func (c *crowd) server(id topology.ServerID) *processes.Process {
	i := slices.IndexFunc(c.Storage, func(p *processes.Process) bool { return p.Name == string(id) })
	return c.Storage[i]
}

// acked has one gateway ack lines for a table. It may answer 503 for a while, as where a server stands still: senders come again.
func (c *crowd) acked(door *processtest.Process, table, lines string) {
	c.t.Helper()
	c.within(processtest.Patience, "the gateway at "+door.Addr+" acks rows of "+table, func() bool {
		status, text, err := processtest.PutLine(door, table, lines)
		if err != nil || status != http.StatusNoContent && status != http.StatusServiceUnavailable {
			c.t.Fatalf("rows of %s are answered %d %.300s %v", table, status, text, err)
		}
		return status == http.StatusNoContent
	})
}

// commit writes a row to etcd, and repeats the write where a busy etcd does not answer in time.
func (c *crowd) commit(w coord.Write) {
	c.t.Helper()
	c.within(processtest.Patience, "etcd has "+w.Key, func() bool {
		_, ok, err := c.view.Coord.Commit(c.t.Context(), nil, []coord.Write{w})
		if err != nil {
			c.t.Logf("write %s: %v", w.Key, err)
		}
		return err == nil && ok
	})
}

// atLeaders waits until the rows of a table that were acked when they were staged are with the leaders of their partitions.
func (c *crowd) atLeaders(table string) {
	c.t.Helper()
	c.within(processtest.Patience, "the partitions of "+table+" are led, and no row is staged", func() bool {
		return len(c.unled(c.partitions(table))) == 0 && c.waiting() == 0
	})
}

// ackAll writes lines of many partitions until all are acked, and returns the number of requests: one, or smaller ones where it is refused. On
// a busy machine a gateway may never end a request of a thousand partitions within its time.
func (c *crowd) ackAll(table string, lines []string) (requests int) {
	c.t.Helper()
	began, size := time.Now(), len(lines)
	for end := began.Add(2 * processtest.Patience); len(lines) > 0; {
		size = min(size, len(lines))
		status, text, err := processtest.PutLine(c.doors[0], table, strings.Join(lines[:size], "\n"))
		requests++
		switch {
		case err == nil && status == http.StatusNoContent:
			lines = lines[size:]
			continue
		case err != nil || status/100 != 5 || time.Now().After(end):
			c.fatal(fmt.Sprintf("%d lines are not acked: %d %.300s %v", len(lines), status, text, err))
		}
		c.t.Logf("after %v a request of %d lines: %d %.300s", time.Since(began).Round(time.Millisecond), size, status, text)
		size = max(size/2, 20)
	}
	return requests
}

// answers waits until every gateway answers the query, and returns after how long.
func (c *crowd) answers(table, query string) time.Duration {
	return c.answersAt(table, query, time.Now)
}

// answersAt is answers for a query at another time: its partitions may have other leaders than those of now.
func (c *crowd) answersAt(table, query string, at func() time.Time) time.Duration {
	c.t.Helper()
	began := time.Now()
	for _, d := range c.doors {
		last := ""
		for end := began.Add(processtest.Patience); ; time.Sleep(20 * time.Millisecond) {
			status, text := processtest.AskAt(d, table, query, at())
			if status == http.StatusOK {
				break
			}
			if last = fmt.Sprintf("%d %.300s", status, text); time.Now().After(end) {
				c.t.Fatalf("%s is not answered by the gateway at %s: %s", query, d.Addr, last)
			}
		}
	}
	return time.Since(began)
}

// acks waits until every gateway acks a line for the table, and returns after how long.
func (c *crowd) acks(table, line string) time.Duration {
	c.t.Helper()
	began := time.Now()
	for _, d := range c.doors {
		c.acksAt(d, table, line)
	}
	return time.Since(began)
}

// acksAt waits until a gateway acks lines for the table.
func (c *crowd) acksAt(d *processtest.Process, table, lines string) {
	c.t.Helper()
	for end := time.Now().Add(processtest.Patience); ; time.Sleep(20 * time.Millisecond) {
		status, text, err := processtest.PutLine(d, table, lines)
		if err == nil && status == http.StatusNoContent {
			return
		}
		if time.Now().After(end) {
			c.t.Fatalf("a row of %s is not acked by the gateway at %s: %d %.300s %v", table, d.Addr, status, text, err)
		}
	}
}
