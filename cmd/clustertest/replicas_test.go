package clustertest

import (
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
	"github.com/spillwaydb/spillway/metadata/lease"
)

// TestClusterReplicasOfATableChangeUnderLoad raises the number of copies of a table with rows from one to three, kills the server that led most of its partitions, and lowers it to one again, while rows
// are written again and again. At every moment each gateway finds every row once, with the value acked last; in the end no server has files of copies that left.
func TestClusterReplicasOfATableChangeUnderLoad(t *testing.T) {
	needsCluster(t)
	t.Parallel()
	c := newCrowd(t, movesPlan())
	c.table("grows", time.Hour, 1)
	from := time.Now().Truncate(time.Hour).Add(-5 * time.Hour)
	ps := c.cover("grows", from, time.Hour, 2)
	r := c.race("grows", from, 8, 120)
	c.within(processtest.Patience, "rows of all minutes are acked", func() bool { return !slices.Contains(r.values(r.acked), 0) })
	set := func(replicas int) {
		c.command("table", "set", "grows", fmt.Sprintf("--replicas=%d", replicas), "--reason=test")
		began := time.Now()
		c.within(2*processtest.Patience, fmt.Sprintf("%d copies of each partition are in sync", replicas), func() bool {
			r.check(fmt.Sprintf("on the way to %d copies", replicas))
			return c.moved(ps, replicas)()
		})
		t.Logf("%d copies after %v", replicas, time.Since(began).Round(time.Millisecond))
	}
	set(3)
	// Rows that were staged while there was one copy lie on one server alone: without it answers would be refused.
	c.within(processtest.Patience, "none of those rows waits", func() bool { return len(c.view.Registry.Staging("grows")) == 0 })
	was := c.server(c.leadsMost(ps))
	was.Kill()
	r.check("a server is dead")
	c.start(was)
	c.within(2*processtest.Patience, "three copies are in sync again", c.moved(ps, 3))
	dirs := c.segmentDirs(ps...)
	set(1)
	stay := c.segmentDirs(ps...)
	c.within(processtest.Patience, "copies that left are deleted", func() bool {
		return !slices.ContainsFunc(dirs, func(dir string) bool {
			files, err := os.ReadDir(dir)
			return err == nil && len(files) > 0 && !slices.Contains(stay, dir)
		})
	})
	r.end()
	r.check("after all")
	t.Logf("%d requests acked, the slowest after %v", r.acks, r.slowest.Round(time.Millisecond))
}

// TestClusterRowsOfADeadServerAreCopiedToAnother: a server dies with its disk. After tables.dead_after each partition that it had a copy of has as many copies as before, on the others,
// also if it was the only one that led; and another server may die then.
func TestClusterRowsOfADeadServerAreCopiedToAnother(t *testing.T) {
	needsCluster(t)
	t.Parallel()
	c := newCrowd(t, movesPlan("SPILLWAY_TABLES_DEAD_AFTER=10s"))
	c.table("kept", time.Hour, 2)
	from := time.Now().Truncate(time.Hour).Add(-5 * time.Hour)
	ps := c.cover("kept", from, time.Hour, 4)
	r := c.race("kept", from, 16, 240)
	c.within(processtest.Patience, "two copies have rows of all minutes", func() bool { return c.moved(ps, 2)() && !slices.Contains(r.values(r.acked), 0) })
	first := c.leadsMost(ps)
	c.server(first).Kill()
	died := time.Now()
	c.must(os.RemoveAll(c.dirOf(c.server(first))))
	c.within(2*processtest.Patience, "two copies are on the others", func() bool {
		r.check("a server is dead")
		return c.moved(ps, 2, first)()
	})
	if took := time.Since(died); took < 10*time.Second {
		t.Errorf("after %v already", took)
	}
	t.Logf("two copies on the others %v after its death", time.Since(died).Round(time.Millisecond))
	second := c.leadsMost(ps)
	c.server(second).Kill()
	c.must(os.RemoveAll(c.dirOf(c.server(second))))
	r.check("another one is dead")
	r.end()
	r.check("after all")
	t.Logf("%d requests acked, the slowest after %v", r.acks, r.slowest.Round(time.Millisecond))
}

// TestClusterAtomicRequestsSurviveLeadersWhole kills the leader of a partition with three copies, and all servers at once, while atomic requests are on their way through two gateways: of each request all
// rows are there in the end, or none, and all of those that were acked.
func TestClusterAtomicRequestsSurviveLeadersWhole(t *testing.T) {
	needsCluster(t)
	t.Parallel()
	seed := uint64(processtest.EnvInt(t, "TEST_SEED", int(rand.Uint32())))
	t.Logf("TEST_SEED=%d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	c := newCrowd(t, movesPlan())
	c.table("whole", time.Hour, 3)
	from := time.Now().Truncate(time.Hour).Add(-3 * time.Hour)
	p := c.cover("whole", from, time.Hour, 1)[0]
	const rows = 500
	var acked []bool
	send := func() {
		lines := make([]string, rows)
		for i := range lines {
			lines[i] = fmt.Sprintf("whole,i=%d v=1 %d", i, from.UnixMilli()+int64(len(acked)))
		}
		status, text, err := c.doors[len(acked)%len(c.doors)].Do(http.MethodPost, "/write?db=whole&precision=ms&atomic=true", nil, []byte(strings.Join(lines, "\n")))
		if err == nil && status != http.StatusNoContent && status/100 != 5 {
			t.Errorf("request %d: %d %s", len(acked), status, text)
		}
		acked = append(acked, err == nil && status == http.StatusNoContent)
	}
	for kill := range 4 {
		c.within(2*processtest.Patience, "three copies are in sync", func() bool { send(); return c.listed(p, 3)() })
		victims := c.Storage
		if leader, _ := c.leader(p); kill < 3 {
			victims = slices.DeleteFunc(slices.Clone(c.Storage), func(s *processes.Process) bool { return s.Name != string(leader) })
		}
		done := make(chan struct{})
		go func() {
			time.Sleep(time.Duration(rng.IntN(300)) * time.Millisecond) // at any moment of a request
			for _, v := range victims {
				v.Kill()
			}
			close(done)
		}()
		for open := true; open; {
			send()
			select {
			case <-done:
				open = false
			default:
			}
		}
		before := len(acked)
		if kill < 3 {
			c.within(processtest.Patience, "an atomic request is acked without the leader", func() bool { send(); return acked[len(acked)-1] })
		}
		c.start(victims...)
		t.Logf("kill %d: %d requests, %d until one was acked", kill+1, len(acked), len(acked)-before)
	}
	c.within(2*processtest.Patience, "three copies are in sync", c.listed(p, 3))
	c.holdsWhole(p, from, rows, acked)
}

// holdsWhole compares atomic requests, of a row of each series at a millisecond of their own, with what each gateway reads.
func (c *crowd) holdsWhole(p lease.Partition, from time.Time, rows int, acked []bool) {
	c.t.Helper()
	whole := 0
	for i, d := range c.doors {
		var got map[string][]processtest.Sample
		c.within(processtest.Patience, "an answer", func() (ok bool) {
			status, text := processtest.AskAt(d, p.Table, "whole_v[1h]", from.Add(time.Hour-time.Second))
			if ok = status == http.StatusOK; ok {
				got = processtest.SamplesOf(c.t, []byte(text))
			}
			return ok
		})
		counts := map[int64]int{}
		for _, samples := range got {
			for _, s := range samples {
				counts[s.Ms-from.UnixMilli()]++
			}
		}
		whole = 0
		for request, ok := range acked {
			n := counts[int64(request)]
			if n != rows && (ok || n != 0) {
				c.t.Errorf("gateway %d: of request %d (acked: %t) %d of %d rows are there", i, request, ok, n, rows)
			}
			if n == rows {
				whole++
			}
		}
	}
	c.t.Logf("%d atomic requests, %d are there", len(acked), whole)
	if whole == 0 || whole < len(acked)/4 {
		c.t.Error("too few were kept to prove anything")
	}
}
