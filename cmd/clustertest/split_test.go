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
// being split. Rows for it are still acked and read while those servers are stopped: a row that waits for them would
// wait until they are back, and they resume only after the acks. Then the split ends, and every row is there once.
// CLUSTER_SPLIT_AWAY is how long rows are written at least while they are stopped.
func TestClusterSplitWithoutMetadataServersTakesRows(t *testing.T) {
	needsCluster(t)
	t.Parallel()
	away := processtest.EnvDuration(t, "CLUSTER_SPLIT_AWAY", 8*time.Second)
	c := newCrowd(t, processes.Plan{Etcd: 1, Storage: 4, Gateways: 1, StorageArgs: []string{"--no-master"}})
	from := time.Now().Truncate(time.Hour).Add(-24 * time.Hour)
	c.table("cut", time.Hour, 1)
	p := c.cover("cut", from, time.Hour, 1)[0]
	w := &cutWriter{crowd: c, from: from, written: map[string]int64{}}
	before := w.write(time.Second)
	stopped := c.splitWithoutMetadata(p)
	worst := w.write(away)
	t.Logf("%v: a row waited for %v at most before, %v while two of three metadata servers were stopped; %d rows", p, before.Round(time.Millisecond), worst.Round(time.Millisecond), len(w.written))
	c.answersAt("cut", "count(m_v)", func() time.Time { return w.last })
	if c.stateOf(p) != topology.Splitting {
		t.Fatalf("%v is %v while no majority of its metadata servers is there", p, c.stateOf(p))
	}
	for _, s := range stopped {
		c.must(s.Resume())
	}
	c.within(2*processtest.Patience, "the split has ended", func() bool {
		m, _ := c.view.Tables.Get(p.Table)
		at, there := m.ByID(p.ID) // its few rows may have moved already
		return !there || at.State == topology.Unload
	})
	w.write(time.Second)
	c.holdsOnce("cut", w.written)
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

// splitWithoutMetadata begins to split a partition in the middle, and stops two of the three servers that keep the map
// of its table, neither of which leads the partition. The leader stands still until they are stopped, since it would end
// the split at once.
func (c *crowd) splitWithoutMetadata(p lease.Partition) (stopped []*processes.Process) {
	c.t.Helper()
	leader := c.leaderOfLast([]lease.Partition{p})
	row, ok, err := c.view.Coord.Get(c.t.Context(), mapstore.Key(p.Table))
	c.must(err)
	r, err := mapstore.DecodeRow(row)
	if err != nil || !ok || len(r.Servers) != 3 {
		c.t.Fatalf("metadata servers of %q: %v, %v", p.Table, r.Servers, err)
	}
	for _, s := range r.Servers {
		if s != leader && len(stopped) < 2 {
			stopped = append(stopped, c.server(s))
		}
	}
	c.must(c.server(leader).Pause())
	_, err = c.view.Tables.Change(c.t.Context(), p.Table, func(m *topology.Map) ([]topology.Op, error) {
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
	for _, s := range stopped {
		c.must(s.Pause())
	}
	c.must(c.server(leader).Resume())
	return stopped
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
