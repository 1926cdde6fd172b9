package clustertest

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/cmd/internal/processes"
	"github.com/spillwaydb/spillway/cmd/internal/processtest"
	"github.com/spillwaydb/spillway/cmd/spillway/verify"
	"github.com/spillwaydb/spillway/metadata/lease"
)

// TestClusterWritersWaitForNoDamagedFile kills a server, cuts a segment of its partition short, and starts it, at once: so the start finds the damage. A follower accepts frames all the same, as after
// any restart, and is in sync until and after its file is repaired. A leader leaves the lease to a server that is whole.
func TestClusterWritersWaitForNoDamagedFile(t *testing.T) {
	needsCluster(t)
	t.Parallel()
	c := newCrowd(t, segmentsPlan("SPILLWAY_STORAGE_MINORS_MAX=100", "SPILLWAY_STORAGE_COPY_BYTES_PER_SECOND=50KiB")) // the repair lasts longer than a member may be slow
	from, width := time.Now().Add(-2*time.Hour).Truncate(time.Minute), 24*time.Hour
	for time.Duration(time.Now().UnixNano())%width < 2*time.Hour+time.Minute { // all rows are to lie in one partition: the file that is cut short is of it
		width += time.Hour
	}
	c.table("copied", width, 3)
	w := &copiesWriter{c: c, from: from}
	w.write(1)
	p := c.partitions("copied")[0]
	c.within(processtest.Patience, "all three are in sync", c.listed(p, 3))
	w.writeMany()
	still := watchStandstill(t)
	for _, what := range []string{"a follower, whole", "a follower", "the leader"} {
		inTime(t, what+" is killed, and rows are acked as after a restart", func() bool { return w.goesOnAfter(what, p, still) })
		w.check()
	}
}

// goesOnAfter kills a member of a partition, cuts a file of it short unless it is to stay whole, and starts it again while rows are written.
// It reports whether they were acked, and all are in sync again, as soon as after a restart.
func (w *copiesWriter) goesOnAfter(what string, p lease.Partition, still *standstill) bool {
	c, t := w.c, w.c.t
	t.Helper()
	c.within(processtest.Patience, "all three are in sync", c.listed(p, 3))
	c.within(2*processtest.Patience, "segments are equal", func() bool { return c.shrunk() && c.sameSegments() })
	was, epoch := c.waitLeader(p)
	victim := c.follower(p)
	if what == "the leader" {
		victim = c.server(was)
	}
	before, began := still.sum(), time.Now()
	victim.Kill()
	if what != "a follower, whole" {
		c.cutShort(victim)
	}
	c.start(victim)
	var next led // the first leader after it
	fewest := 3
	longest := w.writeFor(12*time.Second, func() {
		if s, e := c.leader(p); next.server == "" && e > epoch {
			next = led{s, e}
		}
		if list := c.inSync(p); len(list) > 0 { // none: the coordination store gave no answer
			fewest = min(fewest, len(list))
		}
	})
	slow := still.sum() - before
	c.within(processtest.Patience, "all three are in sync again", c.listed(p, 3))
	took := time.Since(began) - (still.sum() - before)
	c.within(2*processtest.Patience, "segments are equal again", func() bool { return c.shrunk() && c.sameSegments() })
	t.Logf("%s, %s, was killed: no row was acked for %v at most, of which this machine stood still for up to %v; "+
		"all are in sync after %v, at least %d were; led by %s in %d, then by %s in %d",
		what, victim.Name, longest.Round(time.Millisecond), slow.Round(time.Millisecond),
		took.Round(time.Millisecond), fewest, was, epoch, next.server, next.epoch)
	if what == "the leader" {
		if next.server == was {
			t.Errorf("%s leads again with a damaged file; no row was acked for %v", was, longest)
		}
		return longest-slow <= 5*time.Second
	}
	return longest-slow <= 3500*time.Millisecond && took <= 28*time.Second && fewest >= 2
}

// cutShort cuts the end off the largest segment of a server that does not run.
func (c *crowd) cutShort(p *processes.Process) {
	c.t.Helper()
	cut, size := "", int64(0)
	c.eachSegment(p, func(path string, _ [32]byte) {
		info, err := os.Stat(path)
		if c.must(err); info.Size() > size {
			cut, size = path, info.Size()
		}
	})
	c.t.Logf("%s of %d bytes is cut short", cut, size)
	c.must(os.Truncate(cut, size*2/3))
}

// writeFor writes rows for a while, with look after each, and returns the longest time between two acks.
func (w *copiesWriter) writeFor(d time.Duration, look func()) (longest time.Duration) {
	w.c.t.Helper()
	last := time.Now()
	for began := last; time.Since(began) < d; time.Sleep(20 * time.Millisecond) {
		line := fmt.Sprintf("kept v=%d %d", w.acked, w.from.Add(time.Duration(w.acked)*time.Second).UnixMilli())
		if status, _, err := processtest.PutLine(w.c.doors[w.acked%len(w.c.doors)], "copied", line); err == nil && status == http.StatusNoContent {
			w.acked++
			longest, last = max(longest, time.Since(last)), time.Now()
		}
		look()
	}
	return max(longest, time.Since(last))
}

// TestClusterStagedRowsOutliveADamagedLog cuts the log of staged frames of a server short, deletes it, and flips a bit of it, while rows of two servers each wait: they are staged there again, so
// that each of the others may be away then, and all rows are read.
func TestClusterStagedRowsOutliveADamagedLog(t *testing.T) {
	needsCluster(t)
	t.Parallel()
	c := newCrowd(t, processes.Plan{Etcd: 1, Storage: 3, Gateways: 2, Env: []string{unmerged}})
	c.table("copied", 30*time.Second, 3)
	c.command("table", "set", "copied", "--smear=10m")
	w := &copiesWriter{c: c, from: time.Now().Add(-2 * time.Minute).Truncate(time.Second)}
	seen := 0 // how often rows were staged again before they were due
	for i, harm := range []func(path string) error{
		func(path string) error { return os.Truncate(path, 300) },
		os.Remove,
		func(path string) error {
			b, err := os.ReadFile(path)
			if err == nil && len(b) > 200 { // else its rows have left
				b[200] ^= 4
				err = processtest.Overwrite(path, b)
			}
			return err
		},
	} {
		victim := c.Storage[i]
		for len(c.stagedOn()) < 3 { // those of one series are due together, within ten minutes
			w.write(60)
		}
		all := sumOfRows(c.stagedOn()) // each on two servers
		victim.Kill()
		logs, err := filepath.Glob(filepath.Join(c.dirOf(victim), verify.StagedDir, "*.staged"))
		c.must(err)
		for _, path := range logs {
			c.must(harm(path))
		}
		c.start(victim)
		// There; or on the third one, where the victim was away for so long that it counted as silent.
		c.within(3*processtest.Patience, "each row is staged on two servers again, or with its leader", func() bool {
			n := sumOfRows(c.stagedOn())
			if n >= all*9/10 {
				seen++
			}
			return n == 0 || n >= all*9/10
		})
		c.within(processtest.Patience, "no row is on one server alone", func() bool { return c.sole() == 0 })
		for _, other := range c.Storage {
			if other != victim {
				other.Kill()
				w.check()
				c.start(other)
				c.within(processtest.Patience, "no row is on one server alone", func() bool { return c.sole() == 0 })
			}
		}
	}
	if seen == 0 {
		t.Error("no row was staged again before it was due: the test shows nothing")
	}
}

// sole counts the staged rows that only one server holds.
func (c *crowd) sole() (n float64) {
	for _, addr := range c.Admin {
		n += processtest.Metric(c.t, addr, "spillway_staging_sole_rows")
	}
	return n
}
