package clustertest

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/cmd/internal/processes"
	"github.com/spillwaydb/spillway/cmd/internal/processtest"
	"github.com/spillwaydb/spillway/metadata/topology"
)

// TestClusterReadsWhatWasAckedThroughAnyGateway starts etcd, three storage servers and two gateways, with certificates,
// writes through one gateway, and reads through the other at once after the ack.
func TestClusterReadsWhatWasAckedThroughAnyGateway(t *testing.T) {
	c := newCrowd(t, processes.Plan{Etcd: 1, Storage: 3, Gateways: 2, Certs: true, Env: []string{"SPILLWAY_TABLES_PARTITION_WIDTH=1h"}})

	t.Run("all protocols", func(t *testing.T) {
		s := c.sender(1, 1)
		for i := range 30 {
			s.p = c.doors[i%2]
			rows := s.batch()
			c.within(processtest.Patience, "a write is acked", func() bool { return s.write(rows) || t.Failed() })
			s.ack(rows)
			s.p = c.doors[1-i%2]
			if s.check(); t.Failed() {
				t.Fatalf("after %d writes, read at once through the other gateway", i+1)
			}
		}
		for _, s.p = range c.doors {
			s.check()
		}
	})

	t.Run("concurrent creators of one table", func(t *testing.T) {
		const writers = 24
		at := time.Now().UnixMilli()
		var wg sync.WaitGroup
		for i := range writers {
			wg.Go(func() {
				line := fmt.Sprintf("m,i=%d v=%d %d", i, i, at)
				status, text, err := processtest.PutLine(c.doors[i%2], "contested", line)
				// A server that has just begun may not have seen the heartbeats of enough others; senders come again.
				for began := time.Now(); err == nil && status == http.StatusServiceUnavailable && time.Since(began) < processtest.Patience; {
					time.Sleep(100 * time.Millisecond)
					status, text, err = processtest.PutLine(c.doors[i%2], "contested", line)
				}
				if err != nil || status != http.StatusNoContent {
					t.Errorf("writer %d: %d %s %v", i, status, text, err)
				}
			})
		}
		wg.Wait()
		for _, d := range c.doors {
			got := d.RowsOf("contested", "m_v", "1h", time.Now().Add(time.Minute))
			for i := range writers {
				if rows := got[fmt.Sprintf("m_v/%d", i)]; len(rows) != 1 || rows[0] != (processtest.Sample{Ms: at, Value: float64(i)}) {
					t.Errorf("through the gateway at %s series %d has %v", d.Addr, i, rows)
				}
			}
		}
		m, _ := c.view.Tables.Get("contested")
		if ps := m.Overlapping(time.UnixMilli(at).UnixNano(), time.UnixMilli(at).UnixNano()+1); len(ps) != 1 {
			t.Errorf("one hour has %d partitions", len(ps))
		}
	})

	t.Run("a ring of several columns", func(t *testing.T) {
		c.table("ring", time.Hour, 1)
		c.columns("ring", 4)
		at := time.Now().UnixMilli()
		lines := ""
		for i := range 200 {
			lines += fmt.Sprintf("m,i=%d v=%d %d\n", i, i, at)
		}
		c.acked(c.doors[0], "ring", lines)
		got := c.doors[1].RowsOf("ring", "m_v", "1h", time.Now().Add(time.Minute))
		for i := range 200 {
			if rows := got[fmt.Sprintf("m_v/%d", i)]; len(rows) != 1 || rows[0] != (processtest.Sample{Ms: at, Value: float64(i)}) {
				t.Errorf("series %d has %v", i, rows)
			}
		}
		servers := map[topology.ServerID]bool{}
		for _, p := range c.partitions("ring") {
			s, _ := c.waitLeader(p)
			servers[s] = true
		}
		if len(servers) < 2 {
			t.Errorf("four columns lie on %v alone", servers)
		}
	})
}

// columns cuts a table's ring into parts of the same size, for all times.
func (c *crowd) columns(table string, n int) {
	c.t.Helper()
	weights := make([]uint32, n)
	for i := range weights {
		weights[i] = 1
	}
	ranges, err := topology.Spread(nil, weights)
	c.must(err)
	_, err = c.view.Tables.Change(c.t.Context(), table, func(*topology.Map) ([]topology.Op, error) {
		return []topology.Op{topology.SetColumns{Layout: topology.Layout{From: math.MinInt64, Weights: weights, Ranges: ranges}}}, nil
	})
	c.must(err)
}

// sender writes its own series through all gateways.
func (c *crowd) sender(i int, seed uint64) *sender {
	now := time.Now()
	s := newSender(c.doors[0], i, 0, now, rand.New(rand.NewPCG(seed, uint64(i))))
	s.doors, s.codes, s.last = c.doors, map[int]int{}, now
	return s
}
