package clustertest

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/cmd/internal/processes"
	"github.com/spillwaydb/spillway/cmd/internal/processtest"
	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/point"
)

// TestClusterDropsATableUnderItsWriters runs `spillway table drop` while senders write the table through two gateways
// without end, at times that need one partition after another: the command ends, no row acked before it is ever read
// again, senders get nothing worse than 503, and then write on to a table that is made again. CLUSTER_DROPS sets how
// often.
func TestClusterDropsATableUnderItsWriters(t *testing.T) {
	needsCluster(t)
	t.Parallel()
	c := newCrowd(t, processes.Plan{Etcd: 1, Storage: 3, Gateways: 2, Env: []string{"SPILLWAY_TABLES_PARTITION_WIDTH=1h"}})
	c.table("doomed", time.Hour, 2)
	w := c.writeForever("doomed")
	defer w.stop()
	for drop := range processtest.EnvInt(t, "CLUSTER_DROPS", 3) {
		acked, _ := w.count()
		c.within(processtest.Patience, "rows are acked", func() bool { n, _ := w.count(); return n >= acked+200 })
		before, refused := w.count()
		gone := w.until(before)
		old := c.nextID("doomed")
		began := time.Now()
		say := c.command("table", "drop", "doomed", "--confirm=doomed", "--reason=test", "--timeout=2m")
		took := time.Since(began)
		after, now := w.count()
		t.Logf("drop %d: the command ended after %v (%s); %d rows were acked and %d writes refused meanwhile", drop+1, took.Round(time.Millisecond), say, after-before, now-refused)
		c.within(processtest.Patience, "rows are acked again", func() bool { n, _ := w.count(); return n >= after+200 })
		for _, d := range c.doors {
			for name, rows := range d.RowsOf("doomed", "m_v", "2d", time.Now().Add(time.Hour)) {
				for _, r := range rows {
					if gone[int(r.Value)] {
						t.Fatalf("%s has row %d, which was acked before the table was dropped", name, int(r.Value))
					}
				}
			}
		}
		c.within(processtest.Patience, "its old lease rows are gone", func() bool {
			rows, _, err := c.view.Coord.List(t.Context(), lease.Prefix)
			if err != nil { // where the machine stands still
				return false
			}
			for _, r := range rows {
				p, ok := lease.ParseRowKey(r.Key)
				if !ok {
					p, ok = lease.ParseBornKey(r.Key)
				}
				if ok && p.Table == "doomed" && p.ID < old {
					return false
				}
			}
			return true
		})
	}
	w.stop()
	// Rows acked after the last drop are there.
	got := map[int]bool{}
	for _, rows := range c.doors[0].RowsOf("doomed", "m_v", "2d", time.Now().Add(time.Hour)) {
		for _, r := range rows {
			got[int(r.Value)] = true
		}
	}
	for _, v := range w.last(100) {
		if !got[v] {
			t.Errorf("row %d was acked after the last drop and is not there", v)
		}
	}
}

// endless are writers of numbered rows, over a day, through all gateways.
type endless struct {
	t    *testing.T
	quit chan struct{}
	once sync.Once
	wg   sync.WaitGroup

	mu      sync.Mutex
	next    int   // the number of the next row
	acked   []int // in the order of their acks
	refused int
}

func (c *crowd) writeForever(table string) *endless {
	w := &endless{t: c.t, quit: make(chan struct{})}
	from := time.Now().Add(-23 * time.Hour)
	for i := range 4 {
		w.wg.Go(func() {
			for {
				select {
				case <-w.quit:
					return
				default:
				}
				w.mu.Lock()
				w.next++
				n := w.next
				w.mu.Unlock()
				line := fmt.Sprintf("m,i=%d v=%d %d", n%20, n, from.Add(time.Duration(n%24)*time.Hour).UnixMilli()+int64(n/24))
				status, text, err := processtest.PutLine(c.doors[i%len(c.doors)], table, line)
				w.took(n, status, text, err)
			}
		})
	}
	return w
}

func (w *endless) took(n, status int, text []byte, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case err == nil && status == http.StatusNoContent:
		w.acked = append(w.acked, n)
	case err == nil && status == http.StatusServiceUnavailable:
		w.refused++
	default:
		w.t.Errorf("row %d: %d %.300s %v", n, status, text, err)
	}
}

// count returns how many rows were acked, and how many writes refused.
func (w *endless) count() (acked, refused int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.acked), w.refused
}

// until returns the numbers that were acked first.
func (w *endless) until(n int) map[int]bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := map[int]bool{}
	for _, v := range w.acked[:n] {
		out[v] = true
	}
	return out
}

// last returns the numbers acked last.
func (w *endless) last(n int) []int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.acked[max(0, len(w.acked)-n):]
}

func (w *endless) stop() {
	w.once.Do(func() { close(w.quit) })
	w.wg.Wait()
}

// nextID is above all partitions that the table ever had.
func (c *crowd) nextID(table string) point.PartitionID {
	c.t.Helper()
	var m *topology.Map
	c.within(processtest.Patience, "the newest map of "+table+" is here", func() (ok bool) {
		var err error
		m, err = c.view.Tables.Refresh(c.t.Context(), table, 0)
		return err == nil
	})
	return m.NextID
}

// command runs a command for people against the cluster, which must succeed, and returns its output.
func (c *crowd) command(args ...string) string {
	c.t.Helper()
	for end := time.Now().Add(processtest.Patience); ; time.Sleep(100 * time.Millisecond) {
		out, err := c.try(args...)
		if err == nil {
			return out
		}
		if !late(out) || time.Now().After(end) {
			c.t.Fatalf("spillway %s: %v\n%s", strings.Join(args, " "), err, out)
		}
		c.t.Logf("spillway %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// late reports whether a command failed because the coordination store did not answer a request within a second, as where the machine
// stands still: a person runs it again.
func late(out string) bool { return strings.Contains(out, "deadline exceeded") }
