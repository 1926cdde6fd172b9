package lane

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// While rows are written no more than half the processors evaluate, between writes one stays free, and a later query gets its
// turn before the earlier ones are done.
func TestQueriesLeaveHalfTheProcessorsToWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var busy atomic.Bool
		busy.Store(true)
		l := New(busy.Load, 4)
		var running, peak, done atomic.Int32
		evaluate := func(pages int) {
			own := l.Turn(&Share{})
			for range pages {
				if err := own.Next(t.Context()); err != nil {
					t.Error(err)
				}
				peak.Store(max(peak.Load(), running.Add(1)))
				time.Sleep(time.Millisecond)
				running.Add(-1)
			}
			own.End()
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
		if taken, waiting := l.InUse(); taken != 0 || waiting != 0 || done.Load() != 11 {
			t.Errorf("%d turns taken, %d wait, %d done", taken, waiting, done.Load())
		}
	})
}

func TestATurnIsNotWaitedForInVain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New(func() bool { return true }, 1)
		first := l.Turn(&Share{})
		if err := first.Next(t.Context()); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), overdueAfter/2)
		defer cancel()
		if err := l.Turn(&Share{}).Next(ctx); err == nil {
			t.Error("there was a turn although another has it")
		}
		first.End()
		first.End()
		if taken, waiting := l.InUse(); taken != 0 || waiting != 0 {
			t.Errorf("%d turns taken, %d wait", taken, waiting)
		}
	})
}

// TestASmallQueryDoesNotWaitForAPageOfEachWorkerOfLargeOnes: eight queries of four workers each wait for turns of 10 ms. A query that
// comes then has its second turn within a few of them, and the large ones go on beside a stream of small ones.
func TestASmallQueryDoesNotWaitForAPageOfEachWorkerOfLargeOnes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const page = 10 * time.Millisecond
		l := New(func() bool { return true }, 1)
		ctx, stop := context.WithCancel(t.Context())
		var large atomic.Int32
		var workers sync.WaitGroup
		work := func(of *Share) bool {
			own := l.Turn(of)
			defer own.End()
			if own.Next(ctx) != nil {
				return false
			}
			time.Sleep(page)
			return true
		}
		for range 8 {
			of := &Share{}
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
			of, began := &Share{}, time.Now()
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

// TestWritesKeepHalfBesideQueriesAndACompaction: a compaction used no turns, so that beside heavy queries it and they had all of two processors,
// and rows came in at a quarter of their rate.
func TestWritesKeepHalfBesideQueriesAndACompaction(t *testing.T) {
	for _, processors := range []int{1, 2, 4, 8} {
		synctest.Test(t, func(t *testing.T) {
			l := New(func() bool { return true }, processors)
			ctx, stop := context.WithTimeout(t.Context(), 10*time.Second)
			defer stop()
			var inside, peak atomic.Int32
			var queries, compaction atomic.Int64
			work := func(took time.Duration, by *atomic.Int64) {
				peak.Store(max(peak.Load(), inside.Add(1)))
				time.Sleep(took)
				inside.Add(-1)
				by.Add(int64(took))
			}
			var all sync.WaitGroup
			for range 8 {
				of := &Share{}
				for range 4 {
					all.Go(func() {
						own := l.Turn(of)
						defer own.End()
						for own.Next(ctx) == nil && ctx.Err() == nil {
							work(7*time.Millisecond, &queries)
						}
					})
				}
			}
			all.Go(func() {
				own := l.Turn(Background())
				defer own.End()
				for own.Yield(ctx) == nil && ctx.Err() == nil {
					work(100*time.Microsecond, &compaction)
				}
			})
			all.Wait()
			if got, most := int(peak.Load()), max(1, processors/2); got != most {
				t.Errorf("of %d processors %d were taken from writes, want %d", processors, got, most)
			}
			// The compaction is one goroutine: it has half of one turn, and of more turns nearly one.
			least := 10 * time.Second / 5 * 2
			if got := time.Duration(compaction.Load()); got < least {
				t.Errorf("of 10 s beside queries on %d processors a compaction had %s, want %s", processors, got, least)
			}
			if got := time.Duration(queries.Load()); got < least {
				t.Errorf("of 10 s beside a compaction on %d processors queries had %s, want %s", processors, got, least)
			}
		})
	}
}

// TestACompactionLeavesItsShareToQueriesWhenItIsOver: one that returns does not make up for the time in which it had nothing to do, and what
// one side leaves is the other's.
func TestACompactionLeavesItsShareToQueriesWhenItIsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New(func() bool { return true }, 2)
		run := func(of *Share, last time.Duration) (had time.Duration) {
			ctx, stop := context.WithTimeout(t.Context(), last)
			defer stop()
			own := l.Turn(of)
			defer own.End()
			for own.Next(ctx) == nil && ctx.Err() == nil {
				time.Sleep(time.Millisecond)
				had += time.Millisecond
			}
			return had
		}
		if had := run(&Share{}, 10*time.Second); had < 9*time.Second {
			t.Errorf("queries alone had %s of 10 s", had)
		}
		var queries, compaction time.Duration
		var both sync.WaitGroup
		both.Go(func() { queries = run(&Share{}, time.Second) })
		both.Go(func() { compaction = run(Background(), time.Second) })
		both.Wait()
		if queries < 400*time.Millisecond || compaction < 400*time.Millisecond {
			t.Errorf("of a second queries had %s, a compaction that had not run before %s", queries, compaction)
		}
	})
}

// TestOneEvaluationDoesNotKeepAllOthersWaiting: Prometheus' engine computes for 20 s without a pause, a replacement of labels by a costly pattern, and
// on two processors it had the only turn: queries of all others waited as long. However many such queries there are, writes keep some processors.
func TestOneEvaluationDoesNotKeepAllOthersWaiting(t *testing.T) {
	for _, processors := range []int{2, 4, 8} {
		synctest.Test(t, func(t *testing.T) {
			l := New(func() bool { return true }, processors)
			ctx, stop := context.WithCancel(t.Context())
			var all sync.WaitGroup
			var running, peak atomic.Int32
			compute := func(of *Share, took time.Duration) {
				own := l.Turn(of)
				defer own.End()
				if own.Next(ctx) == nil {
					peak.Store(max(peak.Load(), running.Add(1)))
					time.Sleep(took)
					running.Add(-1)
				}
			}
			for range max(1, processors/4) {
				all.Go(func() { compute(&Share{}, 20*time.Second) })
			}
			time.Sleep(time.Millisecond)
			for range 3 {
				began := time.Now()
				compute(&Share{}, time.Millisecond)
				if took := time.Since(began); took > 2*overdueAfter {
					t.Errorf("on %d processors a small query waits %s", processors, took)
				}
			}
			for range 50 {
				all.Go(func() { compute(&Share{}, 20*time.Second) })
			}
			time.Sleep(10 * time.Second)
			if got, most := int(peak.Load()), processors/2+max(1, processors/4); got > most {
				t.Errorf("on %d processors %d such queries run at once, want %d", processors, got, most)
			}
			stop()
			all.Wait()
			if taken, waiting := l.InUse(); taken != 0 || waiting != 0 || len(l.mu.held) != 0 {
				t.Errorf("%d turns taken, %d wait, %d are known", taken, waiting, len(l.mu.held))
			}
			time.Sleep(overdueAfter) // the timer has no waiting worker
		})
	}
}
