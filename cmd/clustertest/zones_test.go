package clustertest

import (
	"slices"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/cmd/internal/processtest"
	"github.com/spillwaydb/spillway/metadata/topology"
)

// TestClusterCopiesLeaveAZoneThatTheyShare has three copies of each partition on three servers, two of which are in one zone, and a server of a third zone comes while rows are written: of the
// copies that share a zone one moves there. At every moment each gateway finds every row once, with the value acked last.
func TestClusterCopiesLeaveAZoneThatTheyShare(t *testing.T) {
	needsCluster(t)
	t.Parallel()
	plan := movesPlan("SPILLWAY_TABLES_DEAD_AFTER=30s")
	zones := map[string]string{"s1": "a", "s2": "a", "s3": "b", "s4": "c"}
	plan.EnvOf = func(name string) []string {
		if zone := zones[name]; zone != "" {
			return []string{"SPILLWAY_SERVER_ZONE=" + zone}
		}
		return nil
	}
	c, later := newCrowdOf(t, plan, 3)
	c.table("shared", time.Hour, 3)
	from := time.Now().Truncate(time.Hour).Add(-5 * time.Hour)
	ps := c.cover("shared", from, time.Hour, 6)                                 // the last one is that of now
	r := c.race("shared", from, 8, max(300, int(time.Since(from)/time.Minute))) // none of the future
	c.within(processtest.Patience, "rows of all minutes are acked, in three copies", func() bool { return c.moved(ps, 3)() && !slices.Contains(r.values(r.acked), 0) })
	c.Storage = append(c.Storage, later...)
	c.start(later...)
	began := time.Now()
	c.within(2*processtest.Patience, "no two copies are in one zone", func() bool {
		r.check("on the way")
		m, _ := c.view.Tables.Get("shared")
		for _, p := range ps {
			in := map[string]bool{}
			at, _ := m.ByID(p.ID)
			if len(at.Placements) != 3 {
				t.Fatalf("%d copies: %v", len(at.Placements), at)
			}
			for _, pl := range at.Placements {
				in[zones[string(pl.Server)]] = true
			}
			if len(in) < 3 {
				return false
			}
		}
		return c.moved(ps, 3)()
	})
	t.Logf("no two copies are in one zone %v after the server came; %d of %d partitions are on it", time.Since(began).Round(time.Millisecond), len(c.placedOn(ps, topology.ServerID("s4"))), len(ps))
	r.end()
	r.check("after all")
	t.Logf("%d requests acked, the slowest after %v", r.acks, r.slowest.Round(time.Millisecond))
}
