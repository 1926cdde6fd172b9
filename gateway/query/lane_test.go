package query

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/prometheus/model/labels"

	"github.com/spillwaydb/spillway/protocols/peer"
)

// While rows are written no more than half the processors evaluate, between writes one stays free, and a later query gets its
// turn before the earlier ones are done.
func TestQueriesLeaveHalfTheProcessorsToWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var busy atomic.Bool
		busy.Store(true)
		l := newLane(busy.Load, 4)
		var running, peak, done atomic.Int32
		evaluate := func(pages int) {
			own := &turn{lane: l, of: &laneShare{}}
			for range pages {
				if err := own.next(t.Context()); err != nil {
					t.Error(err)
				}
				peak.Store(max(peak.Load(), running.Add(1)))
				time.Sleep(time.Millisecond)
				running.Add(-1)
			}
			own.end()
			done.Add(1)
		}
		for range 10 {
			go evaluate(1000)
		}
		time.Sleep(100 * time.Millisecond)
		start := time.Now()
		evaluate(1)
		if took := time.Since(start); took > 10*time.Millisecond || done.Load() != 1 {
			t.Errorf("a small query took %s beside large ones, %d are done", took, done.Load())
		}
		if got := peak.Load(); got != 2 {
			t.Errorf("%d evaluated at a time, want 2", got)
		}
		busy.Store(false)
		time.Sleep(restTime / 2)
		if got := peak.Load(); got != 3 {
			t.Errorf("%d evaluated at a time between writes, want 3", got)
		}
		time.Sleep(restTime)
		if got := peak.Load(); got != 6 {
			t.Errorf("%d evaluated at a time when nothing was written, want 6", got)
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if l.mu.taken != 0 || len(l.mu.waiting) != 0 || done.Load() != 11 {
			t.Errorf("%d turns taken, %d wait, %d done", l.mu.taken, len(l.mu.waiting), done.Load())
		}
	})
}

func TestATurnIsNotWaitedForInVain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLane(func() bool { return true }, 1)
		first := &turn{lane: l, of: &laneShare{}}
		if err := first.next(t.Context()); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := (&turn{lane: l, of: &laneShare{}}).next(ctx); err == nil {
			t.Error("there was a turn although another has it")
		}
		first.end()
		first.end()
		if l.mu.taken != 0 || len(l.mu.waiting) != 0 {
			t.Errorf("%d turns taken, %d wait", l.mu.taken, len(l.mu.waiting))
		}
	})
}

// TestASmallQueryDoesNotWaitForAPageOfEachWorkerOfLargeOnes: eight queries of four workers each wait for turns of 10 ms. A query that
// comes then has its second turn within a few of them, and the large ones go on beside a stream of small ones.
func TestASmallQueryDoesNotWaitForAPageOfEachWorkerOfLargeOnes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const page = 10 * time.Millisecond
		l := newLane(func() bool { return true }, 1)
		ctx, stop := context.WithCancel(t.Context())
		var large atomic.Int32
		var workers sync.WaitGroup
		work := func(of *laneShare) bool {
			own := &turn{lane: l, of: of}
			defer own.end()
			if own.next(ctx) != nil {
				return false
			}
			time.Sleep(page)
			return true
		}
		for range 8 {
			of := &laneShare{}
			for range 4 {
				workers.Go(func() {
					for ctx.Err() == nil && work(of) {
						large.Add(1)
					}
				})
			}
		}
		time.Sleep(time.Second)
		before := large.Load()
		for range 50 {
			of, began := &laneShare{}, time.Now()
			if first, second := work(of), work(of); !first || !second {
				t.Fatal("no turn came")
			}
			if took := time.Since(began); took > 6*page {
				t.Fatalf("two turns of %s took %s", page, took)
			}
		}
		if got := large.Load() - before; got < 50 {
			t.Errorf("beside 100 turns of small queries large ones had %d", got)
		}
		stop()
		workers.Wait()
	})
}

// crowded counts its callers that are inside at once.
type crowded struct {
	Source
	inside, peak atomic.Int32
}

func (c *crowded) LabelValues(context.Context, *peer.Select, string, int) ([]string, bool, error) {
	c.work()
	return nil, false, nil
}

func (c *crowded) work() {
	c.peak.Store(max(c.peak.Load(), c.inside.Add(1)))
	defer c.inside.Add(-1)
	time.Sleep(time.Millisecond)
}

func (c *crowded) Select(context.Context, *peer.Select) (peer.SeriesSet, error) {
	c.work()
	return nil, nil
}

// TestWritesKeepHalfTheProcessorsBesideLookups: exports and label look-ups took no turns, so that eight of them kept every place of the
// scheduler and the writes of others waited 50 ms.
func TestWritesKeepHalfTheProcessorsBesideLookups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := &crowded{}
		r, err := New(Deps{Source: source, Processors: 4, Busy: func() bool { return true }}, Settings{})
		if err != nil {
			t.Fatal(err)
		}
		var all sync.WaitGroup
		for i := range 12 {
			all.Go(func() {
				for range 50 {
					ctx, l, err := r.Lookup(t.Context())
					if err != nil {
						t.Error(err)
						return
					}
					table := r.Table("default")
					switch i % 3 {
					case 0:
						_, _, err = table.LabelValues(ctx, 0, 1, "host", nil, 0)
					case 1:
						_, _, err = table.Series(ctx, 0, 1, [][]*labels.Matcher{nil}, 0)
					case 2:
						q, _ := table.Querier(0, 1)
						set := q.Select(ctx, true, nil)
						set.Next()
						err = set.Err()
						q.Close()
					}
					if err != nil {
						t.Error(err)
					}
					l.End()
				}
			})
		}
		all.Wait()
		if got := source.peak.Load(); got != 2 {
			t.Errorf("%d look-ups took a processor at once, want 2", got)
		}
		if lane := r.engine.lane; lane.mu.taken != 0 || len(lane.mu.waiting) != 0 {
			t.Errorf("%d turns taken, %d wait", lane.mu.taken, len(lane.mu.waiting))
		}
	})
}
