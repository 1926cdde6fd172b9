package clustertest

import (
	"crypto/sha256"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/cmd/internal/processes"
	"github.com/spillwaydb/spillway/cmd/internal/processtest"
	"github.com/spillwaydb/spillway/metadata/lease"
)

// segmentsPlan is a cluster with leaders that flush and compact within seconds.
func segmentsPlan(env ...string) processes.Plan {
	return processes.Plan{Etcd: 1, Storage: 3, Gateways: 1, Env: append([]string{
		"SPILLWAY_STORAGE_FLUSH_AGE=1s", "SPILLWAY_STORAGE_MINORS_MAX=3"}, env...)}
}

// segmentsOn returns the segment files of a server, by name, with a checksum of their bytes, and its unfinished files.
func (c *crowd) segmentsOn(p *processes.Process) (sums map[string][sha256.Size]byte, unfinished []string) {
	c.t.Helper()
	sums = map[string][sha256.Size]byte{}
	return sums, c.eachSegment(p, func(path string, sum [sha256.Size]byte) { sums[filepath.Base(path)] = sum })
}

// eachSegment passes the segment files of a server to f, each with a checksum of its bytes, and returns its unfinished files.
func (c *crowd) eachSegment(p *processes.Process, f func(path string, sum [sha256.Size]byte)) (unfinished []string) {
	c.t.Helper()
	err := filepath.WalkDir(filepath.Join(c.dirOf(p), "segments"), func(path string, d fs.DirEntry, err error) error {
		switch {
		case os.IsNotExist(err):
			return nil // compacted away meanwhile
		case err != nil:
			return err
		case strings.HasSuffix(path, ".tmp"):
			unfinished = append(unfinished, path)
		case strings.HasSuffix(path, ".seg"):
			b, err := os.ReadFile(path)
			if err == nil {
				f(path, sha256.Sum256(b))
			}
		}
		return nil
	})
	c.must(err)
	return unfinished
}

func (c *crowd) dirOf(p *processes.Process) string { return filepath.Join(c.dir, p.Name) }

// sameSegments reports whether all storage servers have the same segments, byte for byte, and at least one.
func (c *crowd) sameSegments() bool {
	first, _ := c.segmentsOn(c.Storage[0])
	for _, p := range c.Storage[1:] {
		if other, unfinished := c.segmentsOn(p); !maps.Equal(first, other) || len(unfinished) > 0 {
			return false
		}
	}
	return len(first) > 0
}

// shrunk reports whether no server has rows in memory, or a log that some placement needs.
func (c *crowd) shrunk() bool {
	for i := range c.Storage {
		if processtest.Metric(c.t, c.Admin[i], "spillway_server_head_rows") > 0 || processtest.Metric(c.t, c.Admin[i], "spillway_brick_log_live_bytes") > 1<<10 {
			return false
		}
	}
	return true
}

func (c *crowd) listed(p lease.Partition, n int) func() bool {
	return func() bool { return len(c.inSync(p)) == n }
}

// follower returns a server that does not lead a partition.
func (c *crowd) follower(p lease.Partition) *processes.Process {
	leader, _ := c.waitLeader(p)
	return c.Storage[slices.IndexFunc(c.Storage, func(s *processes.Process) bool { return s.Name != string(leader) })]
}

// TestClusterCopiesGetTheSegmentsOfTheirLeader writes rows to a table of three replicas until the leader has flushed and
// compacted: its followers have the same segments, byte for byte, and as little in memory and in their logs as the leader.
func TestClusterCopiesGetTheSegmentsOfTheirLeader(t *testing.T) {
	needsCluster(t)
	t.Parallel()
	c := newCrowd(t, segmentsPlan())
	c.table("copied", 24*time.Hour, 3)
	w := &copiesWriter{c: c, from: time.Now().Add(-time.Hour).Truncate(time.Minute)}
	w.write(100)
	p := c.partitions("copied")[0]
	c.within(processtest.Patience, "all three are in sync", c.listed(p, 3))
	for round := range 6 { // more than MINORS_MAX: a major is among them
		w.write(50)
		began := time.Now()
		c.within(processtest.Patience, "heads and logs are empty", c.shrunk)
		c.within(processtest.Patience, "segments are equal", c.sameSegments)
		sums, _ := c.segmentsOn(c.Storage[0])
		t.Logf("round %d: %d segments on all servers after %v", round+1, len(sums), time.Since(began).Round(time.Millisecond))
	}
	w.check()
	adopted := 0.0
	for i := range c.Storage {
		adopted += processtest.Metric(t, c.Admin[i], "spillway_replica_segments_adopted_total")
	}
	if adopted < 6 {
		t.Errorf("followers adopted %v segments", adopted)
	}
	sum := func(name string) (n float64) {
		for i := range c.Storage {
			n += processtest.Metric(t, c.Admin[i], name)
		}
		return n
	}
	c.within(processtest.Patience, "leaders have compared their copies at rest", func() bool { return sum("spillway_replica_comparisons_total") > 0 })
	if n := sum("spillway_replica_differences_found_total"); n > 0 {
		t.Errorf("%v copies differ from their leaders", n)
	}
	was, _ := c.waitLeader(p)
	c.server(was).Kill()
	w.write(10)
	w.check()
}

// TestClusterCopiesCatchUpBySegments stops a follower, writes, flushes and compacts until the log does not reach back to its end,
// and starts it: it is listed again with all rows. Then the same with a follower after its directory was emptied. At last the leader
// is killed.
func TestClusterCopiesCatchUpBySegments(t *testing.T) {
	needsCluster(t)
	t.Parallel()
	c := newCrowd(t, segmentsPlan())
	c.table("copied", 24*time.Hour, 3)
	w := &copiesWriter{c: c, from: time.Now().Add(-2 * time.Hour).Truncate(time.Minute)}
	w.write(100)
	p := c.partitions("copied")[0]
	for round, wipe := range []bool{false, true, false, true} {
		c.within(processtest.Patience, "all three are in sync", c.listed(p, 3))
		away := c.follower(p)
		away.Kill()
		c.within(processtest.Patience, "two are in sync", c.listed(p, 2))
		for range 5 {
			w.write(30)
			c.within(processtest.Patience, "the leader has flushed", func() bool { return c.flushed(away) })
		}
		if wipe {
			c.must(os.RemoveAll(c.dirOf(away)))
		}
		w.write(20)
		began := time.Now()
		line := away.Line
		if wipe {
			away.Line = append(slices.Clone(line), "--replace-store")
		}
		c.start(away)
		away.Line = line
		c.within(processtest.Patience, "all three are in sync again", c.listed(p, 3))
		t.Logf("round %d: %s (emptied: %t) is listed again %v after its start", round+1, away.Name, wipe, time.Since(began).Round(time.Millisecond))
		w.write(20)
		c.within(processtest.Patience, "heads and logs are empty", c.shrunk)
		c.within(processtest.Patience, "segments are equal", c.sameSegments)
		w.check()
	}
	for range 2 { // the two that were there, then one that was refilled
		was, epoch := c.waitLeader(p)
		c.killUntilAnotherLeads(p, was)
		w.write(20)
		w.check()
		next, now := c.leader(p)
		t.Logf("%s led in epoch %d and was killed; %s leads in epoch %d", was, epoch, next, now)
		c.start(c.server(was))
		c.within(processtest.Patience, "all three are in sync again", c.listed(p, 3))
	}
	w.check()
}

// flushed reports whether the live servers have no rows in memory.
func (c *crowd) flushed(away *processes.Process) bool {
	for i, s := range c.Storage {
		if s != away && processtest.Metric(c.t, c.Admin[i], "spillway_server_head_rows") > 0 {
			return false
		}
	}
	return true
}

// TestClusterCopiesMendAFlippedSegment flips bytes in a segment of a follower that runs, and of one that is stopped: the file
// becomes equal to its leader's again, nothing wrong is answered, and the follower has every row when it leads.
func TestClusterCopiesMendAFlippedSegment(t *testing.T) {
	needsCluster(t)
	t.Parallel()
	c := newCrowd(t, segmentsPlan("SPILLWAY_STORAGE_SCRUB_PERIOD=500ms"))
	c.table("copied", 24*time.Hour, 3)
	w := &copiesWriter{c: c, from: time.Now().Add(-time.Hour).Truncate(time.Minute)}
	w.write(100)
	p := c.partitions("copied")[0]
	c.within(processtest.Patience, "all three are in sync", c.listed(p, 3))
	c.within(processtest.Patience, "heads and logs are empty", c.shrunk)
	c.within(processtest.Patience, "segments are equal", c.sameSegments)
	harmed := c.follower(p)
	for _, stopped := range []bool{false, true} {
		if stopped {
			harmed.Kill()
		}
		path := c.flip(harmed)
		began := time.Now()
		if stopped {
			c.start(harmed)
		}
		w.write(10)
		c.within(processtest.Patience, "segments are equal again", func() bool { return c.shrunk() && c.sameSegments() })
		t.Logf("%s (stopped: %t) has a whole file in place of %s after %v", harmed.Name, stopped, filepath.Base(path), time.Since(began).Round(time.Millisecond))
		w.check()
		c.within(processtest.Patience, "all three are in sync", c.listed(p, 3))
	}
	for leader, _ := c.waitLeader(p); string(leader) != harmed.Name; leader, _ = c.waitLeader(p) { // until the follower leads
		c.killUntilAnotherLeads(p, leader)
		w.write(10)
		w.check()
		c.start(c.server(leader))
		c.within(processtest.Patience, "all three are in sync", c.listed(p, 3))
	}
	w.check()
}

// TestClusterLeaderMendsAFlippedSegment flips bytes in a segment of a leader while queries run and rows are written: every query is answered, with
// all rows, and the leader has the whole file again, from a follower.
func TestClusterLeaderMendsAFlippedSegment(t *testing.T) {
	needsCluster(t)
	t.Parallel()
	c := newCrowd(t, segmentsPlan("SPILLWAY_STORAGE_SCRUB_PERIOD=500ms", "SPILLWAY_STORAGE_MINORS_MAX=100"))
	c.table("copied", 24*time.Hour, 3)
	w := &copiesWriter{c: c, from: time.Now().Add(-time.Hour).Truncate(time.Minute)}
	w.write(1)
	w.writeMany()
	p := c.partitions("copied")[0]
	c.within(processtest.Patience, "all three are in sync", c.listed(p, 3))
	c.within(processtest.Patience, "heads and logs are empty", c.shrunk)
	c.within(processtest.Patience, "segments are equal", c.sameSegments)
	mended := func() (n float64) {
		for i := range c.Storage {
			n += processtest.Metric(t, c.Admin[i], "spillway_replica_segments_mended_total")
		}
		return n
	}
	for round := range 3 {
		before := mended()
		leader, epoch := c.waitLeader(p)
		path := c.flip(c.server(leader))
		began, queries := time.Now(), 0
		for whole := false; !whole; queries++ {
			w.whole()
			if queries%4 == 0 {
				w.write(1)
			}
			whole = mended() > before
			if time.Since(began) > processtest.Patience {
				t.Fatalf("%s of the leader is still damaged after %v", path, processtest.Patience)
			}
		}
		next, now := c.leader(p)
		t.Logf("round %d: %s of %s, which leads in epoch %d, is whole after %v and %d queries; %s leads in epoch %d", round+1, filepath.Base(path), leader, epoch,
			time.Since(began).Round(time.Millisecond), queries, next, now)
		c.within(processtest.Patience, "segments are equal again", func() bool { return c.shrunk() && c.sameSegments() })
		w.whole()
	}
}

// bulk is how many rows a large segment has.
const bulk = 50_000

// writeMany writes so many rows at once that their segment is large, and no compaction replaces it soon.
func (w *copiesWriter) writeMany() {
	w.c.t.Helper()
	var many strings.Builder
	for i := range bulk {
		fmt.Fprintf(&many, "bulk,i=%d v=%v %d\n", i%100, rand.Float64(), w.from.Add(time.Duration(i)*50*time.Millisecond).UnixMilli())
	}
	w.c.within(processtest.Patience, "many rows are acked", func() bool {
		status, _, err := processtest.PutLine(w.c.doors[0], "copied", many.String())
		return err == nil && status == http.StatusNoContent
	})
}

// whole asks until there is an answer, on a busy machine perhaps more than once, and it must contain every acked row.
func (w *copiesWriter) whole() {
	w.c.t.Helper()
	for query, rows := range map[string]int{"sum(count_over_time(kept_v[2h]))": w.acked, "sum(count_over_time(bulk_v[2h]))": bulk} {
		var status int
		var text string
		w.c.within(processtest.Patience, "a query is answered", func() bool {
			status, text = processtest.AskAt(w.c.doors[0], "copied", query, w.from.Add(time.Hour))
			if status != http.StatusOK {
				w.c.t.Logf("%s: %d %.300s", query, status, text)
			}
			return status == http.StatusOK
		})
		if want := fmt.Sprintf("\"%d\"", rows); status != http.StatusOK || !strings.Contains(text, want) {
			w.c.t.Fatalf("%s should be %s: %d %.400s", query, want, status, text)
		}
	}
}

// flip changes bytes in the middle of a server's largest segment.
func (c *crowd) flip(p *processes.Process) (path string) {
	c.t.Helper()
	c.within(processtest.Patience, "a segment is damaged", func() bool {
		found, err := filepath.Glob(filepath.Join(c.dirOf(p), "segments", "*", "*.seg"))
		c.must(err)
		var most int64
		for _, f := range found {
			if st, err := os.Stat(f); err == nil && st.Size() > most {
				path, most = f, st.Size()
			}
		}
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			return false // compacted away meanwhile
		}
		var b [8]byte
		_, err = f.ReadAt(b[:], most/2)
		c.must(err)
		for i := range b {
			b[i] ^= 0xff
		}
		_, err = f.WriteAt(b[:], most/2)
		c.must(err)
		c.must(f.Close())
		return true
	})
	return path
}

// TestClusterCopiesAreRefilledThroughKills empties a follower and, while segments are on their way to it, slowly, kills the leader
// that sends them, then the follower itself: in the end it has all segments and leads with every row.
func TestClusterCopiesAreRefilledThroughKills(t *testing.T) {
	needsCluster(t)
	t.Parallel()
	c := newCrowd(t, segmentsPlan("SPILLWAY_STORAGE_COPY_BYTES_PER_SECOND=64KiB"))
	c.table("copied", 24*time.Hour, 3)
	w := &copiesWriter{c: c, from: time.Now().Add(-time.Hour).Truncate(time.Minute)}
	w.write(20)
	p := c.partitions("copied")[0]
	c.within(processtest.Patience, "all three are in sync", c.listed(p, 3))
	for i := range 40 { // segments whose sending lasts seconds
		var b strings.Builder
		for j := range 2000 {
			fmt.Fprintf(&b, "noise,s=%d v=%v %d\n", j%100, rand.Float64(), w.from.Add(time.Duration(i*20+j/100)*time.Millisecond).UnixMilli())
		}
		c.acks("copied", b.String())
	}
	away := c.follower(p)
	away.Kill()
	c.within(processtest.Patience, "two are in sync", c.listed(p, 2))
	c.within(processtest.Patience, "the leader has flushed", func() bool { return c.flushed(away) })
	c.must(os.RemoveAll(c.dirOf(away)))
	line := away.Line
	away.Line = append(slices.Clone(line), "--replace-store")
	c.start(away)
	away.Line = line
	onItsWay := func() bool { _, unfinished := c.segmentsOn(away); return len(unfinished) > 0 }
	c.within(processtest.Patience, "a segment is on its way, or all are there", func() bool { return onItsWay() || len(c.inSync(p)) == 3 })
	_, unfinished := c.segmentsOn(away)
	was, _ := c.waitLeader(p)
	c.server(was).Kill()
	c.start(c.server(was))
	t.Logf("%s was killed while it sent to %s, which had %d unfinished files", was, away.Name, len(unfinished))
	c.within(processtest.Patience, "a segment is on its way again, or all are there", func() bool { return onItsWay() || len(c.inSync(p)) == 3 })
	away.Kill()
	c.start(away)
	c.within(processtest.Patience, "all three are in sync", c.listed(p, 3))
	w.write(20)
	c.within(processtest.Patience, "segments are equal", func() bool { return c.shrunk() && c.sameSegments() })
	for leader, _ := c.waitLeader(p); string(leader) != away.Name; leader, _ = c.waitLeader(p) {
		c.killUntilAnotherLeads(p, leader)
		w.write(5)
		c.start(c.server(leader))
		c.within(processtest.Patience, "all three are in sync", c.listed(p, 3))
	}
	w.check()
	at := w.from.Add(time.Minute)
	if status, text := processtest.Ask(c.doors[0], "copied", "sum(count_over_time(noise_v[5m]))", at); status != http.StatusOK || !strings.Contains(text, `"80000"`) {
		t.Errorf("80000 rows were acked: %d %.300s", status, text)
	}
}
