package query

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// While rows are written no more than half the processors evaluate, and a query that comes later gets its turn before
// those that came first are done.
func TestQueriesLeaveHalfTheProcessorsToWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var busy atomic.Bool
		busy.Store(true)
		l := newLane(busy.Load, 2)
		var running, peak, done atomic.Int32
		evaluate := func(pages int) {
			own := &turn{lane: l}
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
		time.Sleep(time.Second)
		if got := peak.Load(); got != 10 {
			t.Errorf("%d evaluated at a time when nothing was written, want 10", got)
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
		first := &turn{lane: l}
		if err := first.next(t.Context()); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := (&turn{lane: l}).next(ctx); err == nil {
			t.Error("there was a turn although another has it")
		}
		first.end()
		first.end()
		if l.mu.taken != 0 || len(l.mu.waiting) != 0 {
			t.Errorf("%d turns taken, %d wait", l.mu.taken, len(l.mu.waiting))
		}
	})
}
