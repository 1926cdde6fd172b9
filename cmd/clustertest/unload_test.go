package clustertest

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/cmd/internal/processtest"
	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/topology"
)

// TestClusterRowsOfACutPartitionMoveToItsHalves: a partition with three copies of its rows is cut in the middle of them by time, and one half by ring.
// Its leader moves the rows to its successors, slowly here, and then the map and the disks have it no more. Meanwhile rows on both sides are
// written again, a series is deleted, and the server that moves the rows is killed: at every moment each gateway finds every row once, with the value acked
// last, and none that was deleted.
func TestClusterRowsOfACutPartitionMoveToItsHalves(t *testing.T) {
	needsCluster(t)
	t.Parallel()
	c := newCrowd(t, movesPlan("SPILLWAY_API_ADMIN=true", "SPILLWAY_STORAGE_UNLOAD_BYTES_PER_SECOND=4096"))
	c.table("cut", time.Hour, 3)
	from := time.Now().Truncate(time.Hour).Add(-3 * time.Hour)
	parent := c.cover("cut", from, time.Hour, 1)[0]
	w := &cutRows{crowd: c, from: from, series: 32, written: map[string]map[int64]float64{}}
	w.write(1, 0, 60)
	c.within(2*processtest.Patience, "three copies have all rows", c.listed(parent, 3))
	low, high := w.cut(parent, "time-middle")
	began := time.Now()
	w.erase(25)
	took := time.Since(began)
	t.Logf("a deletion right after the cut was acked within %v", took.Round(time.Millisecond))
	if took >= 10*time.Second { // as long as slices that another leader sent are waited for: there was none
		t.Errorf("a deletion right after the cut was acked within %v", took)
	}
	w.check("after the cut by time")
	w.write(2, 10, 20)
	w.write(2, 50, 55)
	w.cut(high, "ring-middle")
	w.check("after both cuts")

	gone := c.segmentDirs(parent, high)
	c.within(2*processtest.Patience, "some rows have moved", func() bool { return c.unloaded() >= 200 })
	w.erase(7)
	w.check("a series was deleted while its rows move")
	w.write(3, 25, 35)
	w.check("rows were written again while they move")
	was, _ := c.leader(parent)
	c.server(was).Kill()
	w.check("the server that moves the rows is dead")
	w.write(4, 40, 50)
	value := 5.0
	c.within(2*processtest.Patience, "the next leader moves all rows", func() bool {
		if value++; value < 20 { // the memory of deletions is no part of this
			w.erase(int(value))
		}
		w.write(value, 15, 18)
		w.check("while the next leader moves the rows")
		return c.gone(parent, high)
	})
	w.check("all rows have moved")
	c.start(c.server(was))
	c.within(2*processtest.Patience, "three copies of the lower half have all rows", c.listed(low, 3))
	w.check("the server is back")
	c.within(2*processtest.Patience, "no server has files of the partitions that were cut", func() bool {
		for _, dir := range gone {
			if files, err := os.ReadDir(dir); err == nil && len(files) > 0 {
				return false
			}
		}
		return true
	})
}

// unloaded is how many rows all servers have moved from partitions that were cut.
func (c *crowd) unloaded() (rows float64) {
	for _, addr := range c.Admin {
		rows += processtest.Metric(c.t, addr, "spillway_unload_rows_total")
	}
	return rows
}

// segmentDirs returns the directories of the placements of some partitions.
func (c *crowd) segmentDirs(ps ...lease.Partition) (dirs []string) {
	for _, p := range ps {
		m, _ := c.view.Tables.Get(p.Table)
		at, _ := m.ByID(p.ID)
		for _, pl := range at.Placements {
			dirs = append(dirs, filepath.Join(c.dirOf(c.server(pl.Server)), "segments", pl.ID.String()))
		}
	}
	return dirs
}

// leaderOfLast returns the leader of the last of some partitions that has one.
func (c *crowd) leaderOfLast(ps []lease.Partition) (s topology.ServerID) {
	c.within(processtest.Patience, "one of the partitions is led", func() bool {
		for _, p := range slices.Backward(ps) {
			if s, _ = c.leader(p); s != "" {
				return true
			}
		}
		return false
	})
	return s
}

// gone reports whether the map has none of some partitions any more.
func (c *crowd) gone(ps ...lease.Partition) bool {
	for _, p := range ps {
		m, _ := c.view.Tables.Get(p.Table)
		if at, ok := m.ByID(p.ID); ok && at.State != topology.Live {
			return false
		} else if ok {
			c.t.Fatalf("partition %v is live again", p)
		}
	}
	return true
}

// inHour counts the partitions that lie within an hour.
func (c *crowd) inHour(table string, from time.Time) (n int) {
	m, ok := c.view.Tables.Get(table)
	if !ok {
		return 0
	}
	for p := range m.All() {
		if p.TimeLo >= from.UnixNano() && p.TimeLo < from.Add(time.Hour).UnixNano() {
			n++
		}
	}
	return n
}

// TestClusterNarrowPartitionsAreMerged: closed partitions of a minute become one for the hour, with all their rows, three copies of each. A leader is killed meanwhile, late rows
// come, and at every moment each gateway finds every row once, with the value acked last.
func TestClusterNarrowPartitionsAreMerged(t *testing.T) {
	needsCluster(t)
	t.Parallel()
	c := newCrowd(t, movesPlan("SPILLWAY_API_ADMIN=true", "SPILLWAY_TABLES_MERGE_FROM=30"))
	c.table("cut", time.Minute, 3)
	from := time.Now().Truncate(time.Hour).Add(-3 * time.Hour)
	narrow := c.cover("cut", from, time.Minute, 60)
	w := &cutRows{crowd: c, from: from, series: 16, written: map[string]map[int64]float64{}}
	w.write(1, 0, 60)
	c.within(2*processtest.Patience, "the partitions of the hour are merged", func() bool { return c.stateOf(narrow[30]) == topology.Unload })
	w.check("the partitions are merged")
	w.write(2, 20, 40)
	w.erase(3)
	w.check("rows were written again")
	c.within(2*processtest.Patience, "some rows have moved", func() bool { return c.unloaded() >= 100 })
	was := c.leaderOfLast(append(c.partitions("cut"), narrow...)) // on a fast machine some have left the map already
	c.server(was).Kill()
	w.check("a server is dead")
	value := 3.0
	c.within(2*processtest.Patience, "one partition has all rows", func() bool {
		value++
		w.write(value, 30, 32)
		w.check("while rows move")
		return c.inHour("cut", from) == 1 // of those of now there are some from the next full hour on
	})
	w.check("all rows have moved")
	c.start(c.server(was))
	c.within(2*processtest.Patience, "three copies have all rows", c.listed(c.partitions("cut")[0], 3))
	w.check("the server is back")
}
