package clustertest

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/cmd/internal/processes"
	"github.com/spillwaydb/spillway/cmd/internal/processtest"
	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/topology"
)

// TestClusterPartitionsUnloadBetweenBuilds: two of three servers are upgraded, and narrow partitions are merged until some move their rows from the server of the earlier build to
// a wide one that an upgraded server leads, and some the other way, while rows are written again and a series is deleted: the unloads end, with every row once.
func TestClusterPartitionsUnloadBetweenBuilds(t *testing.T) {
	x := newHalfUpgraded(t)
	for fromOld, toOld := false, false; !fromOld || !toOld; { // the cluster chooses the leaders
		x.bounded("rows went from the server of the earlier build: %t, to it: %t", fromOld, toOld)
		for _, u := range x.merge() {
			fromOld, toOld = fromOld || u.from == x.old && u.to != x.old, toOld || u.from != x.old && u.to == x.old
		}
	}
	x.erase(3)
	x.end("while one server is of the earlier build")
}

// TestClusterPartitionsUnloadAfterARollback: two of three servers are upgraded, and begin to unload partitions that were merged. Then they get the earlier build again, and a series is
// deleted in the midst of it: the servers of the earlier build end the unloads, with every row once.
func TestClusterPartitionsUnloadAfterARollback(t *testing.T) {
	x := newHalfUpgraded(t)
	for begun := false; !begun; {
		x.bounded("an upgraded server unloaded a partition: %t", begun)
		begun = slices.ContainsFunc(x.merge(), func(u unloading) bool { return u.from != x.old })
	}
	x.become(x.earlier, x.Storage[0])
	x.erase(5)
	x.become(x.earlier, x.Storage[1])
	for _, w := range x.hours {
		w.check("all servers have the earlier build again")
	}
	x.end("after the rollback")
}

// halfUpgraded is a cluster of three storage servers; the third runs an earlier build. Narrow partitions of several hours were merged in it.
type halfUpgraded struct {
	*crowd
	earlier string
	old     topology.ServerID
	last    time.Time // where the hours begin, backwards: the clock may enter the next one meanwhile
	hours   []*cutRows
	parents []lease.Partition // that were seen to unload
}

// unloading names the leader of a partition that unloads, and that of the one that gets its rows.
type unloading struct{ from, to topology.ServerID }

func newHalfUpgraded(t *testing.T) *halfUpgraded {
	needsCluster(t)
	t.Parallel()
	earlier, present := builds(t)
	plan := movesPlan("SPILLWAY_API_ADMIN=true", "SPILLWAY_TABLES_MERGE_FROM=36")
	plan.Bin, plan.Storage = earlier, 3
	x := &halfUpgraded{crowd: newCrowd(t, plan), earlier: earlier, last: time.Now().Truncate(time.Hour).Add(-3 * time.Hour)}
	x.table("cut", time.Minute, 3)
	x.become(present, x.Storage[:2]...)
	x.old = topology.ServerID(x.Storage[2].Name)
	return x
}

// become replaces the program of servers, one after the other.
func (x *halfUpgraded) become(bin string, servers ...*processes.Process) {
	x.t.Helper()
	for _, s := range servers {
		x.must(s.Terminate())
		<-s.Done()
		s.Line = append([]string{bin}, s.Line[1:]...)
		x.start(s)
	}
}

// bounded fails the test where too many hours were merged already.
func (x *halfUpgraded) bounded(format string, args ...any) {
	if len(x.hours) > 16 {
		x.t.Fatalf("in so many hours "+format, args...)
	}
}

// merge writes rows into narrow partitions of three more hours, waits until of each some are merged, or all, writes rows of them again, and returns the leaders of both sides of each unload.
func (x *halfUpgraded) merge() (all []unloading) {
	x.t.Helper()
	const minutes = 18 // the master has 128 partitions of a table unload at a time: those of six hours begin without a wait for the end of others
	var hours []*cutRows
	for range 3 {
		w := &cutRows{crowd: x.crowd, from: x.last.Add(-time.Duration(len(x.hours)) * time.Hour), series: 8, written: map[string]map[int64]float64{}}
		hours, x.hours = append(hours, w), append(x.hours, w)
		x.cover("cut", w.from, time.Minute, minutes)
	}
	for _, w := range hours {
		w.write(1, 0, minutes)
	}
	for _, w := range hours {
		var parents []*topology.Partition
		x.within(2*processtest.Patience, "partitions of an hour are merged", func() bool {
			parents = x.unloadingIn("cut", w.from)
			return len(parents) > 0 || x.hasWide(w.from) // on a slow machine they have left the map already
		})
		w.write(2, minutes/3, 2*minutes/3)
		by := map[unloading]int{}
		for _, p := range parents {
			key := lease.Partition{Table: "cut", ID: p.ID}
			x.parents = append(x.parents, key)
			heir, _ := x.waitLeader(lease.Partition{Table: "cut", ID: p.Into[0]})
			if leader, _ := x.leader(key); leader != "" {
				u := unloading{leader, heir}
				all = append(all, u)
				by[u]++
			}
		}
		x.t.Logf("partitions of %v that unload, by their leader and the heir's: %v", w.from, by)
	}
	return all
}

// hasWide reports whether the map has a partition of an hour that is wider than those that were made.
func (x *halfUpgraded) hasWide(from time.Time) bool {
	m, _ := x.view.Tables.Get("cut")
	for p := range m.All() {
		if p.TimeLo >= from.UnixNano() && p.TimeHi <= from.Add(time.Hour).UnixNano() && p.TimeHi-p.TimeLo > int64(time.Minute) {
			return true
		}
	}
	return false
}

// erase deletes a series of all hours.
func (x *halfUpgraded) erase(series int) {
	x.t.Helper()
	x.hours[0].erase(series)
	for _, w := range x.hours {
		delete(w.written, fmt.Sprintf("m_v/%d", series)) // in all times
	}
}

// end waits until all unloads have ended, and checks the rows.
func (x *halfUpgraded) end(when string) {
	x.t.Helper()
	x.within(2*processtest.Patience, "all rows have moved "+when, func() bool {
		return x.gone(x.parents...) && !slices.ContainsFunc(x.hours, func(w *cutRows) bool { return len(x.unloadingIn("cut", w.from)) > 0 })
	})
	for _, w := range x.hours {
		w.check("all rows have moved " + when)
	}
}
