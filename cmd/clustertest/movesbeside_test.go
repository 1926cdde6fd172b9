package clustertest

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/cmd/internal/processtest"
	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/topology"
)

// racing writes rows again and again, with values that rise, beside what a test does: the row of each minute of all series in one request. Whoever reads a
// row finds the value acked last before the question, or a later one that was sent.
type racing struct {
	*crowd
	table   string
	from    time.Time
	series  int
	minutes int

	ended chan struct{}
	work  sync.WaitGroup

	mu          sync.Mutex
	sent, acked []float64 // by minute
	next        float64
	acks        int
	slowest     time.Duration
}

// race begins to write, by a goroutine for each gateway.
func (c *crowd) race(table string, from time.Time, series, minutes int) *racing {
	r := &racing{crowd: c, table: table, from: from, series: series, minutes: minutes, ended: make(chan struct{}), sent: make([]float64, minutes), acked: make([]float64, minutes)}
	for i := range c.doors {
		r.work.Go(func() {
			for minute := i; ; minute += len(c.doors) {
				select {
				case <-r.ended:
					return
				case <-time.After(2 * time.Millisecond):
				}
				r.write(i, minute%minutes)
			}
		})
	}
	c.t.Cleanup(r.end)
	return r
}

// end ends the writers, after the acks of their rows.
func (r *racing) end() {
	select {
	case <-r.ended:
	default:
		close(r.ended)
	}
	r.work.Wait()
}

// write writes the rows of a minute until they are acked.
func (r *racing) write(door, minute int) {
	r.mu.Lock()
	r.next++
	value := r.next
	r.sent[minute] = value
	r.mu.Unlock()
	var b strings.Builder
	for s := range r.series {
		fmt.Fprintf(&b, "m,i=%d v=%v,x=%v %d\n", s, value, rand.Float64(), r.at(minute)) // x gives segments a size
	}
	began := time.Now()
	for {
		status, text, err := processtest.PutLine(r.doors[door], r.table, b.String())
		if err == nil && status == http.StatusNoContent {
			break
		}
		if time.Since(began) > processtest.Patience {
			r.t.Errorf("rows of minute %d are not acked: %d %s %v", minute, status, text, err)
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.acked[minute], r.acks = value, r.acks+1
	r.slowest = max(r.slowest, time.Since(began))
}

// at is the time of the rows of a minute, in milliseconds.
func (r *racing) at(minute int) int64 {
	return r.from.Add(time.Duration(minute) * time.Minute).UnixMilli()
}

// check asks each gateway for all rows. An answer may fail while a leader changes, but never be wrong.
func (r *racing) check(when string) {
	r.t.Helper()
	for i, d := range r.doors {
		var got map[string][]processtest.Sample
		var least, most []float64
		r.within(processtest.Patience, when+": an answer", func() bool {
			least = r.values(r.acked)
			status, text := processtest.AskAt(d, r.table, fmt.Sprintf("m_v[%dm]", r.minutes), r.from.Add(time.Duration(r.minutes)*time.Minute-time.Second))
			most = r.values(r.sent)
			if status == http.StatusOK {
				got = processtest.SamplesOf(r.t, []byte(text))
			} else {
				r.t.Logf("gateway %d, %s: %d %.300s", i, when, status, text)
			}
			return status == http.StatusOK
		})
		for s := range r.series {
			if wrong := r.wrong(got[fmt.Sprintf("m_v/%d", s)], least, most); wrong != "" {
				r.t.Errorf("%s, gateway %d: series %d %s", when, i, s, wrong)
				break
			}
		}
	}
}

func (r *racing) values(of []float64) []float64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(of)
}

// wrong describes the first row of a series that is missing, doubled, older than the last ack, or newer than the last write; "": none.
func (r *racing) wrong(rows []processtest.Sample, least, most []float64) string {
	found := map[int64]float64{}
	for _, row := range rows {
		if _, ok := found[row.Ms]; ok {
			return fmt.Sprintf("has two rows at %d: %v", row.Ms, rows)
		}
		found[row.Ms] = row.Value
	}
	for minute := range r.minutes {
		value, ok := found[r.at(minute)]
		delete(found, r.at(minute))
		switch {
		case !ok && least[minute] > 0:
			return fmt.Sprintf("has no row in minute %d, %v was acked", minute, least[minute])
		case ok && (value < least[minute] || value > most[minute]):
			return fmt.Sprintf("has %v in minute %d, from %v on was acked, up to %v was sent", value, minute, least[minute], most[minute])
		}
	}
	if len(found) > 0 {
		return fmt.Sprintf("has rows that nobody wrote: %v", found)
	}
	return ""
}

// TestClusterADrainBesideASplitLosesNothing drains the leader of a partition that is split at the same moment, in either order, while its rows are written again
// and again. In the end nothing is left on that server; it is killed, with its directory, and every row is there with the value acked last.
func TestClusterADrainBesideASplitLosesNothing(t *testing.T) {
	needsCluster(t)
	t.Parallel()
	for _, first := range []string{"drain", "split"} {
		t.Run(first+" first", func(t *testing.T) {
			t.Parallel()
			c := newCrowd(t, movesPlan("SPILLWAY_STORAGE_COPY_BYTES_PER_SECOND=64KiB"))
			c.table("cut", time.Hour, 2)
			from := time.Now().Truncate(time.Hour).Add(-3 * time.Hour)
			p := c.cover("cut", from, time.Hour, 1)[0]
			r := c.race("cut", from, 16, 60)
			c.within(2*processtest.Patience, "two copies have rows of all minutes", func() bool {
				return c.listed(p, 2)() && !slices.Contains(r.values(r.acked), 0)
			})
			was, _ := c.waitLeader(p)
			drain := func() { c.command("server", "drain", string(was), "--reason=old disk") }
			split := func() {
				c.within(2*processtest.Patience, "the split is accepted", func() bool { // not while a copy joins
					_, code := c.cli("partition", "split", "cut", fmt.Sprint(p.ID), "--at", "time-middle")
					return code == 0
				})
			}
			if first == "drain" {
				drain()
				split()
			} else {
				split()
				drain()
			}
			var all []lease.Partition
			c.within(3*processtest.Patience, "its halves are in use, and it has nothing of them", func() bool {
				r.check("while " + string(was) + " is drained and the partition is split")
				m, _ := c.view.Tables.Get("cut")
				all = all[:0]
				for at := range m.All() {
					all = append(all, lease.Partition{Table: "cut", ID: at.ID})
				}
				return !slices.Contains(all, p) && len(all) >= 2 && c.moved(all, 2, was)()
			})
			c.within(processtest.Patience, "it deleted its copies", func() bool { sums, _ := c.segmentsOn(c.server(was)); return len(sums) == 0 })
			c.server(was).Kill()
			c.must(os.RemoveAll(c.dirOf(c.server(was))))
			r.check("the server is gone with its directory")
			r.end()
			r.check("after all")
			t.Logf("%d requests acked, the slowest after %v", r.acks, r.slowest.Round(time.Millisecond))
		})
	}
}

// TestClusterAMoveOutlivesItsTarget moves a partition of one copy and kills the server that gets it as soon as a step of the move is seen in the map or in the lease row; while it may have no
// row alone its directory is emptied, too. While it is dead and when it is back every acked row is read; the move ends.
func TestClusterAMoveOutlivesItsTarget(t *testing.T) { movesOutliveTheirTarget(t, 1) }

// TestClusterAMoveOfCopiesOutlivesItsTarget is the same with two copies, for one of which the server is the target.
func TestClusterAMoveOfCopiesOutlivesItsTarget(t *testing.T) { movesOutliveTheirTarget(t, 2) }

func movesOutliveTheirTarget(t *testing.T, replicas int) {
	needsCluster(t)
	t.Parallel()
	steps := []struct {
		name  string
		alone bool // from here on it may have rows that no other server has
		seen  func(c *crowd, p lease.Partition, was, to topology.ServerID) bool
	}{
		// Or more, where the test stood still meanwhile.
		{"it joins", false, func(c *crowd, p lease.Partition, _, to topology.ServerID) bool { return c.isOn(p, to) }},
		{"segments come", false, func(c *crowd, p lease.Partition, _, to topology.ServerID) bool {
			_, unfinished := c.segmentsOn(c.server(to))
			return len(unfinished) > 0 || slices.Contains(c.inSync(p), to)
		}},
		{"it is in sync", false, func(c *crowd, p lease.Partition, _, to topology.ServerID) bool {
			return slices.Contains(c.inSync(p), to)
		}},
		{"it is live", true, func(c *crowd, p lease.Partition, _, to topology.ServerID) bool {
			return c.isOn(p, to) && !c.joins(p, to)
		}},
		// Of two copies the other one may acquire the lease: it is first in the list, unless it has just given this partition up.
		{"the source leads no more", true, func(c *crowd, p lease.Partition, was, _ topology.ServerID) bool {
			s, _ := c.leader(p)
			return s != "" && s != was
		}},
	}
	c := newCrowd(t, movesPlan("SPILLWAY_STORAGE_COPY_BYTES_PER_SECOND=32KiB"))
	c.table("moved", time.Hour, replicas)
	from := time.Now().Truncate(time.Hour).Add(-3 * time.Hour)
	p := c.cover("moved", from, time.Hour, 1)[0]
	r := c.race("moved", from, 64, 60)
	c.within(2*processtest.Patience, "rows of all minutes", func() bool { return !slices.Contains(r.values(r.acked), 0) })
	for _, step := range steps {
		c.within(2*processtest.Patience, "nothing is on its way", c.moved([]lease.Partition{p}, replicas))
		was, _ := c.waitLeader(p)
		_, to := c.placesOf(p)
		c.movesTo(p, was, to)
		c.within(2*processtest.Patience, step.name, func() bool { return step.seen(c, p, was, to) })
		c.server(to).Kill()
		line := c.server(to).Line
		emptied := !step.alone && !c.mayLead(p, to)
		if emptied {
			c.must(os.RemoveAll(c.dirOf(c.server(to))))
			c.server(to).Line = append(slices.Clone(line), "--replace-store")
		}
		t.Logf("%s was killed when %s; emptied: %v", to, step.name, emptied)
		if replicas > 1 || !step.alone { // else it may be the only one with the rows
			r.check("its target is dead since " + step.name)
		}
		c.start(c.server(to))
		c.server(to).Line = line
		r.check("the target is back")
		c.within(4*processtest.Patience, fmt.Sprintf("the move from %s has ended", was), func() bool {
			r.check("the move goes on")
			return c.moved([]lease.Partition{p}, replicas, was)()
		})
	}
	r.end()
	r.check("after all")
	t.Logf("%d requests acked, the slowest after %v", r.acks, r.slowest.Round(time.Millisecond))
}

// joins reports whether a partition is being copied to a server.
func (c *crowd) joins(p lease.Partition, s topology.ServerID) bool {
	m, _ := c.view.Tables.Get(p.Table)
	at, ok := m.ByID(p.ID)
	if !ok {
		return false
	}
	_, joins := at.JoiningOn(s)
	return joins
}

// mayLead reports whether the newest map has a live placement of a partition on a server, or the newest lease row names it as the leader.
func (c *crowd) mayLead(p lease.Partition, s topology.ServerID) bool {
	c.t.Helper()
	var m *topology.Map
	c.within(processtest.Patience, "the newest map of "+p.Table+" is here", func() bool {
		var err error
		m, err = c.view.Tables.Refresh(c.t.Context(), p.Table, 0)
		return err == nil
	})
	if at, ok := m.ByID(p.ID); ok {
		if _, on := at.On(s); on {
			return true
		}
	}
	var l lease.Lease
	c.within(processtest.Patience, "the lease row of "+p.String()+" is read", func() bool {
		row, ok, err := c.view.Coord.Get(c.t.Context(), lease.RowKey(p))
		return err == nil && ok && json.Unmarshal(row.Value, &l) == nil
	})
	return l.Holder == s
}

// TestClusterLateRowsRaceAMerge writes rows into narrow partitions while they are merged into a wide one, by gateways that learn of it late, while a leader dies. At every moment each
// gateway finds each row once, with a value not older than the one acked before the question.
func TestClusterLateRowsRaceAMerge(t *testing.T) {
	needsCluster(t)
	t.Parallel()
	c := newCrowd(t, movesPlan("SPILLWAY_TABLES_MERGE_FROM=30", "SPILLWAY_STORAGE_UNLOAD_BYTES_PER_SECOND=64KiB"))
	c.table("cut", time.Minute, 3) // the server that dies may have a copy of the wide one, which of two copies needs both to accept rows
	from := time.Now().Truncate(time.Hour).Add(-3 * time.Hour)
	narrow := c.cover("cut", from, time.Minute, 60)
	r := c.race("cut", from, 16, 60)
	var merged []lease.Partition
	c.within(2*processtest.Patience, "partitions of the hour are merged", func() bool {
		r.check("before the merge")
		for _, p := range c.unloadingIn("cut", from) {
			merged = append(merged, lease.Partition{Table: "cut", ID: p.ID})
		}
		return len(merged) > 0
	})
	r.check("the partitions are merged")
	c.within(2*processtest.Patience, "some rows have moved", func() bool { return c.unloaded() >= 100 })
	was := c.leaderOfLast(append(c.partitions("cut"), narrow...))
	c.server(was).Kill()
	r.check("a server is dead")
	c.within(2*processtest.Patience, "wide partitions have all rows", func() bool {
		r.check("while rows move")
		return c.gone(merged...) && len(c.unloadingIn("cut", from)) == 0
	})
	c.start(c.server(was))
	c.within(2*processtest.Patience, "three copies have all rows", c.listed(c.partitions("cut")[0], 3))
	r.end()
	r.check("after all")
	t.Logf("%d requests acked, the slowest after %v", r.acks, r.slowest.Round(time.Millisecond))
}

// TestClusterRetentionEndsAMove shortens the retention of a table while partitions of it are copied to another server, slowly: those that are too old leave the map and the disks of
// all servers, and never come back; the others have every row.
func TestClusterRetentionEndsAMove(t *testing.T) {
	needsCluster(t)
	t.Parallel()
	c := newCrowd(t, movesPlan("SPILLWAY_STORAGE_COPY_BYTES_PER_SECOND=4096"))
	c.table("aged", time.Hour, 2)
	const hours = 8
	from := time.Now().Truncate(time.Hour).Add(-hours * time.Hour)
	ps := c.cover("aged", from, time.Hour, hours)
	r := c.race("aged", from, 384, hours*60) // some 180 kB an hour: 45 s to copy them
	c.within(2*processtest.Patience, "rows of all minutes", func() bool { return !slices.Contains(r.values(r.acked), 0) })
	r.end()
	old := ps[:3] // fewer than half: retention.Judge asks a person otherwise
	for _, p := range old {
		was, _ := c.waitLeader(p)
		_, to := c.placesOf(p)
		c.movesTo(p, was, to)
		c.within(2*processtest.Patience, "it joins", func() bool { return c.isOn(p, to) })
	}
	dirs := c.segmentDirs(old...)
	if c.moved(old, 2)() { // on a busy machine the first may have ended
		t.Error("all moves ended before the retention was shortened")
	}
	c.command("table", "set", "aged", "--confirm=aged", fmt.Sprintf("--retention=%dm", (hours-3)*60-5)) // from the newest row on
	c.within(2*processtest.Patience, "what is too old is gone from the map", func() bool {
		m, _ := c.view.Tables.Get("aged")
		return !slices.ContainsFunc(old, func(p lease.Partition) bool { _, ok := m.ByID(p.ID); return ok })
	})
	c.within(2*processtest.Patience, "no server has files of it", func() bool {
		return !slices.ContainsFunc(dirs, func(dir string) bool { files, err := os.ReadDir(dir); return err == nil && len(files) > 0 })
	})
	left := &racing{crowd: c, table: "aged", from: from.Add(3 * time.Hour), series: r.series, minutes: (hours - 3) * 60, sent: r.sent[180:], acked: r.acked[180:]}
	left.check("after what is too old was dropped")
	for _, s := range c.Storage { // a start finds nothing of them, either
		s.Kill()
		c.start(s)
		left.check(s.Name + " started again")
	}
	for _, d := range c.doors {
		status, text := processtest.Ask(d, "aged", "count(m_v)", from.Add(time.Hour))
		if status != http.StatusOK || strings.Contains(text, `"metric"`) {
			t.Errorf("rows that were dropped are there again: %d %s", status, text)
		}
	}
}
