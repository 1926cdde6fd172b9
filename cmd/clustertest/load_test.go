package clustertest

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/cmd/internal/processes"
	"github.com/spillwaydb/spillway/cmd/internal/processtest"
	"github.com/spillwaydb/spillway/metadata/topology"
)

// stoodStill is for how long, within a write, this machine stands still where no server promises to accept it.
const stoodStill = 500 * time.Millisecond

// TestClusterOneServerDoesNotDoAllTheWork has three servers lead three partitions each, and writes to those of one server alone: after a while each of them leads one, no
// write failed meanwhile, and every acked row is there.
func TestClusterOneServerDoesNotDoAllTheWork(t *testing.T) {
	needsCluster(t)
	t.Parallel()
	c := newCrowd(t, processes.Plan{Etcd: 1, Storage: 3, Gateways: 1, Env: []string{unmerged, "SPILLWAY_TABLES_BALANCE_ROWS=100"}})
	c.table("skewed", time.Hour, 3)
	began := time.Now().Truncate(time.Hour).Add(-10 * time.Hour)
	ps := c.cover("skewed", began, time.Hour, 9)
	for i := range ps {
		c.acks("skewed", fmt.Sprintf("hot,p=%d v=1 %d", i, began.Add(time.Duration(i)*time.Hour).UnixMilli()))
	}
	const patience = 10 * time.Minute // a new master waits for a minute, each hand-over for one more at most
	busy, by := []int(nil), topology.ServerID("")
	c.within(patience, "a server leads three partitions, which all have", func() bool {
		for _, s := range c.Storage {
			if by = topology.ServerID(s.Name); len(c.led(ps, by)) == 3 {
				break
			}
		}
		busy = nil
		for i, p := range ps {
			if s, _ := c.leader(p); s == by && len(c.inSync(p)) == 3 {
				busy = append(busy, i)
			}
		}
		return len(busy) == 3
	})
	still := watchStandstill(t)
	var stop atomic.Bool
	var wg sync.WaitGroup
	acked, failed := make([]atomic.Int64, len(ps)), make([]atomic.Pointer[string], len(ps))
	for _, i := range busy {
		acked[i].Add(1) // the row from before
		wg.Go(func() {
			for !stop.Load() {
				var lines strings.Builder
				for k := range 200 {
					fmt.Fprintf(&lines, "hot,p=%d v=1 %d\n", i, began.Add(time.Duration(i)*time.Hour).UnixMilli()+acked[i].Load()+int64(k))
				}
				before := still.sum()
				if status, text, err := processtest.PutLine(c.doors[0], "skewed", lines.String()); err != nil || status != http.StatusNoContent {
					if status == http.StatusServiceUnavailable && still.sum()-before >= stoodStill {
						t.Logf("this machine stood still for %v, and a write was refused: %.300s", still.sum()-before, text)
						continue
					}
					why := fmt.Sprintf("after %d rows: %d %.300s %v", acked[i].Load(), status, text, err)
					failed[i].Store(&why)
					return
				}
				acked[i].Add(200)
				time.Sleep(100 * time.Millisecond)
			}
		})
	}
	leaders := func() string {
		var all []string
		for _, i := range busy {
			s, _ := c.leader(ps[i])
			all = append(all, string(s))
		}
		return strings.Join(all, " ")
	}
	since, last := time.Now(), ""
	spread := func() bool {
		if now := leaders(); now != last {
			last = now
			t.Logf("%v: led by %s", time.Since(since).Round(time.Second), now)
		}
		seen := map[string]bool{}
		for _, s := range strings.Fields(last) {
			seen[s] = true
		}
		return len(seen) == 3
	}
	c.within(patience, "each server leads one of the busy partitions", spread)
	before := make([]int64, len(ps))
	for _, i := range busy {
		before[i] = acked[i].Load()
	}
	c.within(patience, "as many rows again are acked", func() bool { // three plans and more: by load or by count they would be handed back
		spread() // each change is logged
		return !slices.ContainsFunc(busy, func(i int) bool { return failed[i].Load() == nil && acked[i].Load() < 2*before[i] })
	})
	c.within(patience, "each server still leads one of them", spread)
	stop.Store(true)
	wg.Wait()
	for _, i := range busy {
		if why := failed[i].Load(); why != nil {
			t.Errorf("a write to partition %d failed %s", i, *why)
		}
		query, want := fmt.Sprintf("count_over_time(hot_v{p=\"%d\"}[2h])", i), fmt.Sprintf("\"%d\"", acked[i].Load())
		if status, text := processtest.Ask(c.doors[0], "skewed", query, began.Add(time.Duration(i)*time.Hour+90*time.Minute)); status != http.StatusOK || !strings.Contains(text, want) {
			t.Errorf("%d rows of partition %d were acked: %d %.300s", acked[i].Load(), i, status, text)
		}
		t.Logf("partition %d: %d rows acked in %v", i, acked[i].Load(), time.Since(since).Round(time.Second))
	}
	if said := c.server(by).Said(); !strings.Contains(said, "handed to ") {
		t.Errorf("%s does not say why it gave leads away", by)
	}
}
