package forward_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spillwaydb/spillway/gateway/forward"
	"github.com/spillwaydb/spillway/gateway/query/querytest"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/smear"
)

// holders chooses the first servers, or none.
type holders struct {
	all   []topology.ServerID
	full  bool
	rooms int64 // so often it chooses some; 0: always
	asked int64 // atomic
}

// Holders implements forward.Staging, as do the others.
func (h *holders) Holders(n int, _ uint64, avoid []topology.ServerID) ([]topology.ServerID, error) {
	free := slices.DeleteFunc(slices.Clone(h.all), func(s topology.ServerID) bool { return slices.Contains(avoid, s) })
	asked := atomic.AddInt64(&h.asked, 1)
	if h.full || h.rooms > 0 && asked > h.rooms || len(free) < n {
		return nil, fault.Errorf(fault.Unavailable, "no room")
	}
	return free[:n], nil
}

// Takers counts the servers.
func (h *holders) Takers() int { return len(h.all) }

// Note does nothing.
func (h *holders) Note(time.Time, string, []topology.ServerID) {}

const smearSeries = 200

// smeared is a cluster with a table of partitions of ten seconds and three replicas, so that two servers hold a staged frame.
func smeared(t *testing.T, rule smear.Rule, h *holders) *cluster {
	t.Helper()
	return smearedWith(t, rule, h, forward.Settings{Smear: true})
}

func smearedWith(t *testing.T, rule smear.Rule, h *holders, set forward.Settings) *cluster {
	t.Helper()
	h.all = []topology.ServerID{"n1", "n2", "n3"}
	c := newClusterWith(t, func(d *forward.Deps) { d.Staging = h }, set, h.all...)
	if _, err := c.forward.Table(t.Context(), "t"); err != nil {
		t.Fatal(err)
	}
	if _, err := c.tables.SetConfig(t.Context(), "t", topology.Config{PartitionWidth: 10 * time.Second, Replicas: 3, Smear: rule}); err != nil {
		t.Fatal(err)
	}
	return c
}

// put writes a row of each series at a time. It returns the numbers of the series that went to leaders at once.
func (c *cluster) put(at time.Time, change func(*point.Batch)) (direct int, ids []point.SeriesID, err error) {
	c.t.Helper()
	table, err := c.forward.Table(c.t.Context(), "t")
	if err != nil {
		c.t.Fatal(err)
	}
	b := point.GetBatch(table.Dict())
	for i := range smearSeries {
		b.Append(querytest.Intern(b.Dict, point.MakeLabels(point.MetricName, "m", "i", fmt.Sprint(i))), at.UnixNano(), float64(i))
	}
	ids = slices.Clone(b.IDs)
	change(b)
	c.mu.Lock()
	clear(c.inserts)
	c.staged, c.together = nil, 0
	c.mu.Unlock()
	err = table.Write(c.t.Context(), b, point.All)
	b.Put()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, n := range c.inserts {
		direct += n
	}
	return direct, ids, err
}

// TestRowsWaitByTheirSeries writes rows of now: those of each delay are staged together, on as many servers as an ack of all needs, and those without a delay
// go to their leader. The same series waits as long the next time.
func TestRowsWaitByTheirSeries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const window = 160 * time.Second
		c := smeared(t, smear.Rule{Mode: smear.Fixed, Window: point.Nanos(window)}, &holders{})
		delays := map[point.SeriesID]point.Nanos{}
		for range 2 {
			now := time.Now()
			direct, ids, err := c.put(now, func(*point.Batch) {})
			if err != nil {
				t.Fatal(err)
			}
			frames, seen := map[uint64]int{}, map[point.SeriesID]bool{}
			for _, s := range c.staged {
				if frames[s.nonce]++; frames[s.nonce] > 1 {
					continue // at its other holder
				}
				for _, id := range s.ids {
					if seen[id] {
						t.Errorf("series %d is staged twice", id)
					}
					seen[id] = true
					delay := s.due - now.UnixNano()
					if was, ok := delays[id]; ok && was != delay {
						t.Errorf("series %d waits %v, and waited %v", id, time.Duration(delay), time.Duration(was))
					}
					if delays[id] = delay; delay <= 0 || delay >= point.Nanos(window) {
						t.Errorf("series %d waits %v", id, time.Duration(delay))
					}
				}
			}
			if c.together != 2 {
				t.Errorf("the frames of a request came in %d calls to two holders", c.together)
			}
			for nonce, n := range frames {
				if n != 2 {
					t.Errorf("frame %d is staged on %d servers", nonce, n)
				}
			}
			if len(frames) != smear.LanesMax-1 || direct+len(seen) != len(ids) || direct == 0 {
				t.Errorf("%d frames, %d rows staged and %d not, of %d", len(frames), len(seen), direct, len(ids))
			}
			time.Sleep(10 * time.Second)
		}
		if got := c.counted("spillway_forward_smeared_rows_total", ""); int(got) != 2*len(delays) {
			t.Errorf("%v rows are counted, want %d", got, 2*len(delays))
		}
	})
}

// TestRequestsLargerThanAnInsertWaitToo: their frames go to the holders in several calls, each no larger than an insert may be.
func TestRequestsLargerThanAnInsertWaitToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const rowsMax = 25
		c := smearedWith(t, smear.Rule{Mode: smear.Fixed, Window: point.Nanos(30 * time.Second)}, &holders{}, forward.Settings{Smear: true, InsertRowsMax: rowsMax})
		direct, ids, err := c.put(time.Now(), func(*point.Batch) {})
		if err != nil {
			t.Fatal(err)
		}
		seen := map[point.SeriesID]int{}
		for _, s := range c.staged {
			if len(s.ids) > rowsMax {
				t.Errorf("a frame of %d rows", len(s.ids))
			}
			for _, id := range s.ids {
				seen[id]++
			}
		}
		for id, n := range seen {
			if n != 2 {
				t.Errorf("series %d is staged %d times, for two holders", id, n)
			}
		}
		if direct+len(seen) != len(ids) || len(seen) < smearSeries/2 {
			t.Errorf("%d rows are staged and %d not, of %d", len(seen), direct, len(ids))
		}
	})
}

// TestRowsOfLaterCallsGoToTheirLeadersIfTheRoomEnds: rows that the first calls staged are not written again.
func TestRowsOfLaterCallsGoToTheirLeadersIfTheRoomEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &holders{rooms: 2}
		c := smearedWith(t, smear.Rule{Mode: smear.Fixed, Window: point.Nanos(160 * time.Second)}, h, forward.Settings{Smear: true, InsertRowsMax: 30})
		direct, ids, err := c.put(time.Now(), func(*point.Batch) {})
		if err != nil {
			t.Fatal(err)
		}
		staged := map[point.SeriesID]bool{}
		for _, s := range c.staged {
			for _, id := range s.ids {
				staged[id] = true
			}
		}
		if len(staged) == 0 || len(staged) > 60 {
			t.Errorf("%d rows are staged in two calls of at most 30", len(staged))
		}
		if both := direct + len(staged) - len(ids); both < 0 || both > 30 {
			t.Errorf("of %d rows %d are staged, %d are not", len(ids), len(staged), direct)
		}
	})
}

// TestRowsThatDoNotWait: opting out always wins, opting in never overrules, and backfill, wide partitions, atomic writes and full servers are no reason to lose a row.
func TestRowsThatDoNotWait(t *testing.T) {
	auto := smear.Rule{Mode: smear.Auto}
	f := func(name string, rule smear.Rule, h holders, ago time.Duration, reason string, change func(*point.Batch)) {
		t.Helper()
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := smeared(t, rule, &h)
				direct, _, err := c.put(time.Now().Add(-ago), change)
				if err != nil || direct != smearSeries || len(c.staged) > 0 {
					t.Errorf("%d rows at once, %d frames staged, %v", direct, len(c.staged), err)
				}
				if got := c.counted("spillway_forward_smear_direct_rows_total", reason); reason != "" && got == 0 {
					t.Errorf("none is counted as %s", reason)
				}
			})
		})
	}
	nothing := func(*point.Batch) {}
	f("the table is off, and the insert opts in", smear.Rule{}, holders{}, 0, "", func(b *point.Batch) { b.Smear = point.SmearOn })
	f("the insert opts out", auto, holders{}, 0, "opted_out", func(b *point.Batch) { b.Smear = point.SmearOff })
	f("backfill", auto, holders{}, time.Hour, "far", nothing)
	f("partitions are wide", smear.Rule{Mode: smear.Auto, Threshold: 10e9}, holders{}, 0, "", nothing)
	f("no server has room", auto, holders{full: true}, 0, "full", nothing)
	f("the write is atomic", auto, holders{}, 0, "", func(b *point.Batch) { b.Atomic = true })
}

// TestASlowHolderStaysReadable: a server needs longer than a second to stage rows. Another one has them then, and nothing says that the slow one does not
// answer: a deadline would, and its partitions would not be read for a moment (gateway/peers).
func TestASlowHolderStaysReadable(t *testing.T) {
	h := &holders{}
	c := smeared(t, smear.Rule{Mode: smear.Fixed, Window: point.Nanos(20 * time.Second)}, h)
	mute := make(chan struct{})
	c.change(func() { c.servers["n1"].mute = mute })
	if _, _, err := c.put(time.Now(), func(b *point.Batch) {}); err != nil {
		t.Fatal(err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	close(mute)
	slow := c.servers["n1"]
	if len(slow.gaveUp) == 0 || slices.ContainsFunc(slow.gaveUp, func(err error) bool { return !errors.Is(err, context.Canceled) }) {
		t.Errorf("callers gave up by %v", slow.gaveUp)
	}
	if !slices.ContainsFunc(c.staged, func(s staged) bool { return s.at == "n3" }) {
		t.Errorf("staged are %v", c.staged)
	}
}

// TestRowsOfKafkaWaitAsLongAsStagedOnes: where the table lets rows of Kafka wait in their topic, each waits as long as it would in staging, and is forwarded at once then. Rows that
// may not wait jump. By other protocols rows are staged as ever.
func TestRowsOfKafkaWaitAsLongAsStagedOnes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const window = 160 * time.Second
		c := smeared(t, smear.Rule{Mode: smear.Fixed, Window: point.Nanos(window), Kafka: smear.KafkaWait}, &holders{})
		now := time.Now()
		direct, ids, err := c.put(now, func(*point.Batch) {})
		if err != nil || direct == 0 || len(c.staged) == 0 {
			t.Fatalf("%d rows went to leaders, %d frames were staged, %v", direct, len(c.staged), err)
		}
		due := map[point.SeriesID]point.Nanos{}
		for _, s := range c.staged {
			for _, id := range s.ids {
				due[id] = s.due
			}
		}
		table, err := c.forward.Table(t.Context(), "t")
		if err != nil {
			t.Fatal(err)
		}
		b := &point.Batch{Dict: table.Dict()}
		for _, id := range ids {
			b.Append(id, now.UnixNano(), 1)
		}
		delays, wait := table.Delays(now, b, nil)
		if !wait || len(delays) != len(ids) {
			t.Fatalf("%d delays of %d rows, %v", len(delays), len(ids), wait)
		}
		for i, id := range ids {
			if at := (now.UnixNano() + delays[i]) / smear.Tick * smear.Tick; due[id] != 0 && at != due[id] || due[id] == 0 && at > now.UnixNano() {
				t.Errorf("series %d waits until %d, and in staging until %d", id, at, due[id])
			}
		}
		b.Smear = point.SmearOff
		jumps, wait := table.Delays(now, b, nil)
		for i := range ids {
			if want := delays[i]; !wait || want > 0 && jumps[i] != smear.Jumps || want == 0 && jumps[i] != 0 {
				t.Errorf("a row that opts out waits %d, else %d", jumps[i], want)
			}
		}
		if direct, _, err := c.put(now, func(b *point.Batch) { b.Smear = point.SmearWaited }); err != nil || direct != len(ids) || len(c.staged) > 0 {
			t.Errorf("of rows that waited %d went to leaders, and %d frames were staged, %v", direct, len(c.staged), err)
		}
		if _, err := c.tables.SetConfig(t.Context(), "t", topology.Config{PartitionWidth: 10 * time.Second, Replicas: 3, Smear: smear.Rule{Mode: smear.Fixed, Window: point.Nanos(window)}}); err != nil {
			t.Fatal(err)
		}
		if _, wait := table.Delays(now, b, nil); wait {
			t.Error("they wait where they are to be staged")
		}
	})
}

// TestNoRowOfKafkaIsDueBeforeAnEarlierOne while delays become shorter: the later of two values at one time would be written first, and lost.
func TestNoRowOfKafkaIsDueBeforeAnEarlierOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rule := smear.Rule{Mode: smear.Fixed, Window: point.Nanos(160 * time.Second), Kafka: smear.KafkaWait}
		c := smeared(t, rule, &holders{})
		table, err := c.forward.Table(t.Context(), "t")
		if err != nil {
			t.Fatal(err)
		}
		b := &point.Batch{Dict: table.Dict()}
		for i := range smearSeries {
			b.Append(querytest.Intern(b.Dict, point.MakeLabels(point.MetricName, "m", "i", fmt.Sprint(i))), time.Now().UnixNano(), 1)
		}
		last := make([]time.Duration, smearSeries)
		base, fell := time.Now(), 0
		for i := range 600 {
			if i == 300 {
				rule.Window /= 4
				if _, err := c.tables.SetConfig(t.Context(), "t", topology.Config{PartitionWidth: 10 * time.Second, Replicas: 3, Smear: rule}); err != nil {
					t.Fatal(err)
				}
			}
			now := time.Now()
			delays, _ := table.Delays(now, b, nil)
			for k, d := range delays {
				due := now.Sub(base) + time.Duration(d)
				if due < last[k] {
					t.Fatalf("series %d: a row of %v is due at %v, one before at %v", k, now.Sub(base), due, last[k])
				}
				if due < last[k]+10*time.Millisecond {
					fell++
				}
				last[k] = due
			}
			time.Sleep(10 * time.Millisecond)
		}
		if fell == 0 {
			t.Error("no delay became shorter")
		}
	})
}
