package forward_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spillwaydb/spillway/gateway/forward"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

const minute = point.Nanos(time.Minute)

// waits runs f while a write is under way, once all have come to rest, and returns the write's outcome.
func (c *cluster) waits(f func(), times ...point.Nanos) error {
	c.t.Helper()
	done := make(chan error)
	go func() { done <- c.write(times...) }()
	time.Sleep(100 * time.Millisecond) // in a bubble, whose clock jumps
	synctest.Wait()
	c.change(f)
	return <-done
}

func TestAWriteOutlastsALeaseThatMoves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, forward.Settings{}, "n1", "n2")
		c.must(c.write(0)) // partition 1 is led by n2
		if got := c.rows(); got != "n2: 0" {
			t.Fatalf("rows %q", got)
		}
		// n2 lets go; for a while no server leads; n1 leads.
		c.change(func() { c.leads[1], c.offline = "n1", "nobody leads it" })
		start := time.Now()
		err := c.waits(func() { c.offline = "" }, minute)
		c.must(err)
		if got := c.rows(); got != "n1: 1 n2: 0" {
			t.Errorf("rows %q", got)
		}
		if took := time.Since(start); took > 200*time.Millisecond {
			t.Errorf("the write took %v: it did not notice that there is a leader again", took)
		}
		if n, again := c.counted("spillway_forward_leaderless_shares_total", ""), c.counted("spillway_forward_retries_total", ""); n != 1 || again != 0 {
			t.Errorf("%v shares waited for a leader, want 1; %v were sent in vain", n, again)
		}
		// A gateway that does not know yet that the lease moved: the old leader says Stale.
		c.mu.Lock()
		c.leads[1] = "n2"
		c.mu.Unlock()
		c.servers["n1"].err, c.servers["n2"].err = nil, fault.Errorf(fault.Stale, "n2 has not heard of it yet")
		c.must(c.waits(func() { c.servers["n2"].err = nil }, 2*minute))
		if got := c.rows(); got != "n1: 1 n2: 0 2" {
			t.Errorf("rows %q", got)
		}
		if n := c.counted("spillway_forward_retries_total", "stale"); n == 0 {
			t.Error("no stale answer was counted")
		}
	})
}

func (c *cluster) must(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
}

func TestOnlyWhatWasNotAckedIsSentAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, forward.Settings{InsertRowsMax: 2}, "n1", "n2", "n3")
		times := []point.Nanos{0, 60 * minute, 120 * minute, 1, 61 * minute, 121 * minute, 2, 62 * minute, 122 * minute}
		c.must(c.write(times...))
		before := fmt.Sprint(c.inserts)
		c.servers["n2"].err = fault.Errorf(fault.Unavailable, "its disk is slow today")
		c.must(c.waits(func() { c.servers["n2"].err = nil }, times...))
		if before != "map[1:3 2:3 3:3]" || fmt.Sprint(c.inserts) != "map[1:6 2:6 3:6]" {
			t.Errorf("rows by partition %s, then %v", before, c.inserts)
		}
	})
}

func TestAWriteWithoutALeaderIsUnavailableInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, forward.Settings{Timeout: 3 * time.Second}, "n1")
		c.must(c.write(0))
		f := func(want string, do func()) {
			t.Helper()
			c.change(do)
			start := time.Now()
			err := c.write(0)
			if !fault.Is(err, fault.Unavailable) || !strings.Contains(err.Error(), want) {
				t.Errorf("%v (%v), want an Unavailable that says %q", err, fault.KindOf(err), want)
			}
			if took := time.Since(start); took < 2*time.Second || took > 4*time.Second {
				t.Errorf("%s: took %v, want about 3 s", want, took)
			}
		}
		f("partition t/1: taken offline", func() { c.offline = "taken offline" })
		f("connection refused", func() { c.offline, c.servers["n1"].err = "", fault.Errorf(fault.Unavailable, "connection refused") })
		f("no answer in time", func() { c.servers["n1"].err, c.servers["n1"].mute = nil, make(chan struct{}) })

		// A caller that goes away gets its error at once.
		ctx, stop := context.WithTimeout(t.Context(), time.Second)
		defer stop()
		table, err := c.forward.Table(ctx, "t")
		c.must(err)
		b := point.GetBatch(table.Dict())
		b.Metadata = nil
		b.Append(0, 0, 1)
		if err := table.Write(ctx, b, point.All); !fault.Is(err, fault.Canceled) {
			t.Errorf("%v, want canceled", err)
		}
		close(c.servers["n1"].mute)
	})
}

// TestAWriteToAFullLeaderWaitsForNothing: the sender learns at once that a disk is full, not after the time-out; what others lead is kept.
func TestAWriteToAFullLeaderWaitsForNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		full := ""
		c := newClusterWith(t, func(d *forward.Deps) {
			d.ReadOnly = func(s topology.ServerID) string { return map[topology.ServerID]string{"n2": full}[s] }
		}, forward.Settings{}, "n1", "n2")
		c.must(c.write(0))
		c.must(c.write(60 * minute))
		c.change(func() { c.leads[1], c.leads[2] = "n2", "n1" })
		c.servers["n2"].err = fault.Errorf(fault.Unavailable, "the store is read-only: 3 MiB are free")
		full = "3 MiB are free"
		start := time.Now()
		if err := c.write(minute, 61*minute); !fault.Is(err, fault.Unavailable) || !strings.Contains(err.Error(), "the store is read-only: 3 MiB are free") {
			t.Errorf("%v, want an Unavailable that says why", err)
		}
		if took := time.Since(start); took > 0 { // the clock of the bubble moves only while all wait
			t.Errorf("the sender waited %v for its answer", took)
		}
		if n := c.counted("spillway_forward_retries_total", ""); n != 0 {
			t.Errorf("a full server was asked again %v times", n)
		}
		if got := c.rows(); got != "n1: 60 61 n2: 0" {
			t.Errorf("rows %q", got)
		}

		// Another leads by now, and the heartbeat of a server with room may be old.
		c.change(func() { c.leads[1] = "n1" })
		c.must(c.write(2 * minute))
		c.change(func() { c.leads[1], c.servers["n2"].err = "n2", nil })
		c.must(c.write(3 * minute))
		if got := c.rows(); got != "n1: 2 60 61 n2: 0 3" {
			t.Errorf("rows %q", got)
		}

		// It is away, and not known to be full: it may come back in time.
		c.servers["n2"].err, full = fault.Errorf(fault.Unavailable, "connection refused"), ""
		c.must(c.waits(func() { c.servers["n2"].err = nil }, 4*minute))
	})
}

// TestALeaderThatSaysNothingIsLeftWhenAnotherLeads: it hangs, or the network between is cut without a word.
func TestALeaderThatSaysNothingIsLeftWhenAnotherLeads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, forward.Settings{}, "n1", "n2")
		c.must(c.write(0))
		c.servers["n2"].mute = make(chan struct{})
		start := time.Now()
		c.must(c.waits(func() { c.leads[1] = "n1" }, minute))
		if took := time.Since(start); took > time.Second {
			t.Errorf("took %v", took)
		}
		if got := c.rows(); got != "n1: 1 n2: 0" {
			t.Errorf("rows %q", got)
		}
		if n := c.counted("spillway_forward_retries_total", "moved"); n != 1 {
			t.Errorf("%v moves counted", n)
		}
		close(c.servers["n2"].mute)
	})
}

func TestAStreamThatBreaksIsOpenedAndSentEverythingAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, forward.Settings{}, "n1")
		c.must(c.write(0, 0, 0))
		for round := range 3 {
			c.change(func() { c.servers["n1"].boots++ }) // it restarts, between two writes
			c.must(c.write(minute, minute, minute))
			if n := c.counted("spillway_forward_streams_total", "reopened"); n != float64(round+1) {
				t.Errorf("%v streams reopened after %d restarts", n, round+1)
			}
		}
		if got := c.rows(); got != "n1: 0 0 0 1 1 1" {
			t.Errorf("rows %q", got)
		}
	})
}

// TestManyWritersSurviveRestarts: streams break under many writers at a time; every write is acked and every row there.
func TestManyWritersSurviveRestarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, forward.Settings{}, "n1", "n2")
		var wg sync.WaitGroup
		for w := range 8 {
			wg.Go(func() {
				for i := range 50 {
					if err := c.write(minute*point.Nanos(w*50+i), minute*point.Nanos(w*50+i)); err != nil {
						t.Error(err)
					}
					time.Sleep(time.Millisecond)
				}
			})
		}
		for i := range 20 {
			time.Sleep(3 * time.Millisecond)
			c.change(func() {
				c.servers["n1"].boots++
				if i%3 == 0 {
					c.servers["n2"].boots++
				}
			})
		}
		wg.Wait()
		sum := 0
		for _, n := range c.inserts {
			sum += n
		}
		if sum < 800 {
			t.Errorf("%d rows arrived, want 800", sum)
		}
	})
}

// TestRetriesDoNotMultiplyTheLoad: a server that refuses everything is asked little more than once a write.
func TestRetriesDoNotMultiplyTheLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, forward.Settings{}, "n1")
		c.must(c.write(0))
		c.servers["n1"].err = fault.Errorf(fault.Unavailable, "overwhelmed")
		const writes = 4000
		var wg sync.WaitGroup
		for range 100 {
			wg.Go(func() {
				for range writes / 100 {
					if err := c.write(0); !fault.Is(err, fault.Unavailable) {
						t.Errorf("%v", err)
					}
				}
			})
		}
		wg.Wait()
		sent, start := c.counted("spillway_forward_shares_total", "unavailable"), 1000.0
		if again := sent - writes; again > writes/10+start+10*600 || again < start/2 {
			t.Errorf("%v of %d writes were sent again", again, writes)
		}
		if c.counted("spillway_forward_retries_refused_total", "") == 0 {
			t.Error("nothing was refused")
		}
	})
}

func TestMetadataGoesToAFewServersAndSurvivesOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, forward.Settings{}, "n1", "n2", "n3", "n4", "n5")
		c.must(c.write(0))
		put := func() (kept int, err error) {
			table, err := c.forward.Table(t.Context(), "t")
			c.must(err)
			b := point.GetBatch(table.Dict())
			b.Metadata = append(b.Metadata, point.MetadataRow{Metric: fmt.Sprint("m", time.Now().UnixNano()), Type: "gauge"})
			want := b.Metadata[0].Metric
			err = table.Write(t.Context(), b, point.All)
			for _, s := range c.servers {
				rows, gerr := s.store.GetMetadata(t.Context(), "t", want)
				if gerr == nil {
					kept += len(rows)
				}
			}
			return kept, err
		}
		// The stores of a test keep metadata of tables that were written to.
		for _, s := range c.servers {
			st, err := s.store.OpenStream(t.Context(), "t")
			c.must(err)
			c.must(st.Close())
		}
		if n, err := put(); n != forward.FamilyCopies || err != nil {
			t.Errorf("%d servers keep it; %v", n, err)
		}
		for i, id := range []topology.ServerID{"n1", "n2", "n3", "n4"} {
			c.servers[id].err = fault.Errorf(fault.Unavailable, "away")
			n, err := put()
			if (n == 0) != (err != nil) || err != nil && !fault.Is(err, fault.Unavailable) {
				t.Errorf("%d servers away: %d keep it; %v", i+1, n, err)
			}
		}
		c.servers["n5"].err = c.servers["n1"].err
		if _, err := put(); !fault.Is(err, fault.Unavailable) {
			t.Errorf("nobody there: %v", err)
		}
	})
}

// TestAWriteOfAStoppingProcessIsRefused: it looked for a dictionary that would be followed by none, and used a processor until the process was killed.
func TestAWriteOfAStoppingProcessIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, forward.Settings{}, "n1")
		c.must(c.write(0))
		c.must(c.forward.Close())
		if err := c.write(0); !fault.Is(err, fault.Unavailable) {
			t.Errorf("%v, want unavailable", err)
		}
	})
}

// TestLookingForADroppedTableDoesNotMakeItAgain, though it was written to before; a write does.
func TestLookingForADroppedTableDoesNotMakeItAgain(t *testing.T) {
	c := newCluster(t, forward.Settings{}, "n1")
	if _, err := c.forward.Existing("t"); !fault.Is(err, fault.NotFound) {
		t.Errorf("before it was made: %v", err)
	}
	if _, err := c.forward.Table(t.Context(), "t"); err != nil {
		t.Fatal(err)
	}
	if _, err := c.forward.Existing("t"); err != nil {
		t.Errorf("while it is there: %v", err)
	}
	if err := c.tables.DropTable(t.Context(), "t"); err != nil {
		t.Fatal(err)
	}
	if _, err := c.forward.Existing("t"); !fault.Is(err, fault.NotFound) {
		t.Errorf("after it was dropped: %v", err)
	}
	if names := c.tables.Names(); len(names) != 0 {
		t.Errorf("tables %v", names)
	}
}
