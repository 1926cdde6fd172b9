package clustertest

import (
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/cmd/internal/processes"
	"github.com/spillwaydb/spillway/cmd/internal/processtest"
	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/mapstore"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/point"
)

// TestClusterSplitWithoutMetadataServersTakesRows stops two of a table's three metadata servers while a partition is
// being split. Rows for it are still acked, none waits for more than a second (or twice the longest wait before, on a
// busy machine), and they are read. When the servers resume the split ends, and every row is there once.
// CLUSTER_SPLIT_AWAY is how long they are stopped.
func TestClusterSplitWithoutMetadataServersTakesRows(t *testing.T) {
	needsCluster(t)
	t.Parallel()
	away := processtest.EnvDuration(t, "CLUSTER_SPLIT_AWAY", 8*time.Second)
	c := newCrowd(t, processes.Plan{Etcd: 1, Storage: 4, Gateways: 1, StorageArgs: []string{"--no-master"}})
	from := time.Now().Truncate(time.Hour).Add(-24 * time.Hour)
	c.table("cut", time.Hour, 1)
	ps := c.cover("cut", from, time.Hour, 6)
	for i, p := range ps {
		w := &cutWriter{crowd: c, from: from.Add(time.Duration(i) * time.Hour), written: map[string]int64{}}
		before := w.write(time.Second)
		stopped := c.stopMetadata("cut", p)
		if c.split(p, stopped) {
			t.Logf("partition %v was split before its metadata servers had stopped; the next one", p)
			continue
		}
		still := watchStandstill(t)
		worst := w.write(away)
		t.Logf("partition %v: a row waited for %v at most before, %v while two of three metadata servers were stopped; %d rows", p, before.Round(time.Millisecond), worst.Round(time.Millisecond), len(w.written))
		if worst > max(away/2, 2*before)+still.sum() { // a row that waits for those servers waits until they are back
			t.Errorf("a row waited for %v", worst)
		}
		if status, text := processtest.AskAt(c.doors[0], "cut", "count(m_v)", w.last); status != http.StatusOK {
			t.Errorf("a query while they are stopped: %d %s", status, text)
		}
		if c.stateOf(p) != topology.Splitting {
			t.Fatalf("partition %v is %v while no majority of its metadata servers is there", p, c.stateOf(p))
		}
		for _, s := range stopped {
			c.must(s.Resume())
		}
		c.within(2*processtest.Patience, "the split has ended", func() bool { return c.stateOf(p) == topology.Unload })
		w.write(time.Second)
		c.holdsOnce("cut", w.written)
		return
	}
	t.Fatal("no partition was being split when its metadata servers stopped")
}

// cutWriter writes rows into one partition, one after the other.
type cutWriter struct {
	*crowd
	from    time.Time
	last    time.Time
	written map[string]int64
}

// write writes for a while, and returns the longest wait of a row for its ack.
func (w *cutWriter) write(span time.Duration) (worst time.Duration) {
	w.t.Helper()
	for end := time.Now().Add(span); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		n := len(w.written)
		at := w.from.Add(time.Duration(n%3000) * time.Second)
		series := fmt.Sprint(n)
		began := time.Now()
		for ; ; time.Sleep(5 * time.Millisecond) {
			status, text, err := processtest.PutLine(w.doors[0], "cut", fmt.Sprintf("m,i=%s v=1 %d", series, at.UnixMilli()))
			if err == nil && status == http.StatusNoContent {
				break
			}
			if time.Since(began) > processtest.Patience {
				w.t.Fatalf("no ack for %v: %d %s %v", processtest.Patience, status, text, err)
			}
		}
		worst = max(worst, time.Since(began))
		w.written[series], w.last = at.UnixMilli(), at
	}
	return worst
}

// stopMetadata picks two of the three servers that keep a table's files, neither of which leads the partition.
func (c *crowd) stopMetadata(table string, p lease.Partition) (two []*processes.Process) {
	c.t.Helper()
	row, ok, err := c.view.Coord.Get(c.t.Context(), mapstore.Key(table))
	c.must(err)
	r, err := mapstore.DecodeRow(row)
	if err != nil || !ok || len(r.Servers) != 3 {
		c.t.Fatalf("metadata servers of %q: %v, %v", table, r.Servers, err)
	}
	leader, _ := c.leader(p)
	for _, s := range r.Servers {
		if s != leader && len(two) < 2 {
			two = append(two, c.server(s))
		}
	}
	return two
}

// split begins to split a partition in the middle and stops servers at once. It reports whether the split ended first.
func (c *crowd) split(p lease.Partition, stop []*processes.Process) bool {
	c.t.Helper()
	leader, _ := c.leader(p)
	_, err := c.view.Tables.Change(c.t.Context(), p.Table, func(m *topology.Map) ([]topology.Op, error) {
		at, _ := m.ByID(p.ID)
		if at.State == topology.Splitting {
			return nil, nil
		}
		child := func(id point.PartitionID) topology.Child {
			return topology.Child{ID: id, Placements: []topology.Placement{{ID: point.PlacementID(1000 + id), Server: leader}}}
		}
		return []topology.Op{topology.SplitBegin{Partition: p.ID, Split: topology.Split{At: topology.AtTime(at.TimeLo + (at.TimeHi-at.TimeLo)/2),
			Low: child(m.NextID), High: child(m.NextID + 1)}}}, nil
	})
	c.must(err)
	for _, s := range stop {
		c.must(s.Pause())
	}
	time.Sleep(time.Second) // for requests under way
	if c.stateOf(p) == topology.Splitting {
		return false
	}
	for _, s := range stop {
		c.must(s.Resume())
	}
	return true
}

// stateOf returns a partition's state by the newest map.
func (c *crowd) stateOf(p lease.Partition) topology.State {
	c.t.Helper()
	m, _ := c.view.Tables.Get(p.Table)
	at, ok := m.ByID(p.ID)
	if !ok {
		c.t.Fatalf("%v is not in the map: %v", p, slices.Collect(m.All()))
	}
	return at.State
}
