package clustertest

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/cmd/internal/processtest"
	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/topology"
)

// TestClusterRowsOfACutPartitionMoveToItsHalves: a partition with three copies of its rows is cut in the middle of them by time, and one half by ring.
// Its leader moves the rows to its heirs, slowly here, and then the map and the disks have it no more. Meanwhile rows on both sides are
// written again, a series is deleted, and the server that moves the rows is killed: at every moment each gateway finds every row once, with the value acked
// last, and none that was deleted.
func TestClusterRowsOfACutPartitionMoveToItsHalves(t *testing.T) {
	w, parent := newCutRows(t, 4096)
	c := w.crowd
	low, high := w.cut(parent, "time-middle")
	still, began := watchStandstill(t), time.Now()
	w.erase(25)
	took, stood := time.Since(began), still.sum()
	t.Logf("a deletion right after the cut was acked within %v; this machine stood still for %v", took.Round(time.Millisecond), stood.Round(time.Millisecond))
	if took-stood >= 10*time.Second { // as long as slices that another leader sent are waited for: there was none
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
	was := c.leaderOfLast([]lease.Partition{low, parent}) // on a slow machine all rows of the parent may have moved already
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

// TestClusterADeletionAfterATakeoverIsNotHeldUp kills the server that moves the rows of a partition to its halves. Once another leads it, and the halves, a deletion is acked
// long before slices that the dead one sent can be over by their time: the halves' leaders have ended them.
func TestClusterADeletionAfterATakeoverIsNotHeldUp(t *testing.T) {
	w, parent := newCutRows(t, 1024)
	c := w.crowd
	low, high := w.cut(parent, "time-middle")
	w.write(2, 10, 50) // so that the halves are led
	still, series := watchStandstill(t), 3
	inTime(t, "a deletion is acked within 6 s of a takeover", func() bool {
		if c.gone(parent) { // on a slow machine all its rows may have moved
			parent = low
			low, high = w.cut(parent, "time-middle")
		}
		all := func(in func(p lease.Partition) bool) func() bool {
			return func() bool { return (c.gone(parent) || in(parent)) && in(low) && in(high) }
		}
		c.within(2*processtest.Patience, "three copies are in sync", all(func(p lease.Partition) bool { return c.listed(p, 3)() }))
		was := c.leaderOfLast([]lease.Partition{low, parent})
		moving := !c.gone(parent)
		c.server(was).Kill()
		c.within(2*processtest.Patience, "others lead", all(func(p lease.Partition) bool { s, _ := c.leader(p); return s != "" && s != was }))
		began, before := time.Now(), still.sum()
		series++
		w.erase(series)
		took, stood := time.Since(began), still.sum()-before
		t.Logf("after %s was killed and others led, a deletion was acked within %v; this machine stood still for %v", was, took.Round(time.Millisecond), stood.Round(time.Millisecond))
		w.check("a series was deleted")
		c.start(c.server(was))
		return moving && took-stood <= 6*time.Second
	})
}

// TestClusterAHalfIsCutAgainWhileItsLeaderDies: while the rows of a partition move to its halves, one half is cut, too, at a moment that the seed draws; in each round series are written again and others
// are deleted, both at once, and the server that leads a half or the parent is killed. After each round every gateway finds every row once, with the value acked last, and none that
// was deleted, and so when all rows have moved.
func TestClusterAHalfIsCutAgainWhileItsLeaderDies(t *testing.T) {
	seed := uint64(processtest.EnvInt(t, "TEST_SEED", int(rand.Uint32())))
	t.Logf("TEST_SEED=%d", seed)
	rng := rand.New(rand.NewPCG(seed, 0xca7))
	w, parent := newCutRows(t, []int{4096, 16384}[rng.IntN(2)])
	c := w.crowd
	ways := []string{"time-middle", "ring-middle"}
	low, high := w.cut(parent, ways[rng.IntN(2)])
	unloading, led := []lease.Partition{parent}, []lease.Partition{parent, low, high}
	if rng.IntN(2) == 0 {
		w.write(2, 10, 50)
	}
	if rng.IntN(3) > 0 {
		c.within(2*processtest.Patience, "some rows have moved", func() bool { return c.unloaded() >= float64(rng.IntN(400)) })
	}
	cutIn, value := rng.IntN(3), 2.0
	for round := range 12 { // each leader begins anew, so that some killed now and then would never end
		if round == cutIn {
			half := led[1+rng.IntN(2)]
			a, b := w.cut(half, ways[rng.IntN(2)])
			unloading, led = append(unloading, half), append(led, a, b)
		}
		value++
		series := rng.Perm(w.series)
		lo := rng.IntN(50)
		hi := lo + 1 + rng.IntN(10)
		var writes, erases sync.WaitGroup
		writes.Go(func() { w.writeTo(series[4:], value, lo, hi) })
		erases.Go(func() {
			for _, s := range series[:3] {
				w.erase(s)
			}
		})
		if kills := rng.IntN(3) > 0; kills {
			p := led[rng.IntN(len(led))]
			if s, _ := c.leader(p); s != "" {
				c.server(s).Kill()
				t.Logf("round %d: %s, which leads %v, is killed", round, s, p)
				writes.Wait()
				c.start(c.server(s)) // rows may be staged there: without it deletions are refused
			}
		}
		writes.Wait()
		erases.Wait()
		w.check(fmt.Sprintf("round %d", round))
		w.writeTo(series[1:2], value+0.5, lo, hi) // again after its deletion
		w.check(fmt.Sprintf("round %d, after a deleted series was written again", round))
		if t.Failed() || round > cutIn && c.gone(unloading...) {
			break
		}
	}
	c.within(2*processtest.Patience, "all rows have moved", func() bool {
		w.check("while the last leaders move the rows")
		return t.Failed() || c.gone(unloading...)
	})
	for _, p := range led {
		if !slices.Contains(unloading, p) {
			c.within(2*processtest.Patience, "three copies have all rows", c.listed(p, 3))
		}
	}
	w.check("all rows have moved")
}

// newCutRows starts a cluster with a partition of an hour, which has three copies. Once it is cut, its rows move at bytesPerSecond.
func newCutRows(t *testing.T, bytesPerSecond int) (w *cutRows, parent lease.Partition) {
	t.Helper()
	needsCluster(t)
	t.Parallel()
	c := newCrowd(t, movesPlan("SPILLWAY_API_ADMIN=true", fmt.Sprintf("SPILLWAY_STORAGE_UNLOAD_BYTES_PER_SECOND=%d", bytesPerSecond)))
	c.table("cut", time.Hour, 3)
	from := time.Now().Truncate(time.Hour).Add(-3 * time.Hour)
	parent = c.cover("cut", from, time.Hour, 1)[0]
	w = &cutRows{crowd: c, from: from, series: 32, written: map[string]map[int64]float64{}}
	w.write(1, 0, 60)
	c.within(2*processtest.Patience, "three copies have all rows", c.listed(parent, 3))
	return w, parent
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

// unloadingIn returns the partitions of an hour that unload. The master merges neighbours once it has seen their rows. While rows are written it
// may merge an hour in two passes, and one or two partitions remain; so no test may wait for a single partition of an hour.
func (c *crowd) unloadingIn(table string, from time.Time) (ps []*topology.Partition) {
	m, ok := c.view.Tables.Get(table)
	if !ok {
		return nil
	}
	for p := range m.All() {
		if p.State == topology.Unload && p.TimeLo >= from.UnixNano() && p.TimeLo < from.Add(time.Hour).UnixNano() {
			ps = append(ps, p)
		}
	}
	return ps
}

// TestClusterNarrowPartitionsAreMerged: closed partitions of a minute become wide ones of an hour at most, with all their rows, three copies of each. A leader is killed meanwhile, late rows
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
	var merged []lease.Partition
	c.within(2*processtest.Patience, "partitions of the hour are merged", func() bool {
		for _, p := range c.unloadingIn("cut", from) {
			merged = append(merged, lease.Partition{Table: "cut", ID: p.ID})
		}
		return len(merged) > 0
	})
	w.check("the partitions are merged")
	w.write(2, 20, 40)
	w.erase(3)
	w.check("rows were written again")
	c.within(2*processtest.Patience, "some rows have moved", func() bool { return c.unloaded() >= 100 })
	was := c.leaderOfLast(append(c.partitions("cut"), narrow...)) // on a fast machine some have left the map already
	c.server(was).Kill()
	w.check("a server is dead")
	value := 3.0
	c.within(2*processtest.Patience, "wide partitions have all rows", func() bool {
		value++
		w.write(value, 30, 32)
		w.check("while rows move")
		return c.gone(merged...) && len(c.unloadingIn("cut", from)) == 0
	})
	w.check("all rows have moved")
	c.start(c.server(was))
	c.within(2*processtest.Patience, "three copies have all rows", func() bool { return c.listed(c.partitions("cut")[0], 3)() }) // they may be merged once more
	w.check("the server is back")
}
