package query

import (
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spillwaydb/spillway/protocols/budget"
	"github.com/spillwaydb/spillway/protocols/fault"
)

// A query with unforeseeable memory is ended, and the others stay.
func TestOnlyTheLargestQueryGoesWhenMemoryRunsShort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory := budget.New("queries", 1<<30)
		var used atomic.Int64
		g := newGuard(slog.New(slog.DiscardHandler))
		g.heap = func() heap { return heap{limit: 1000, used: used.Load()} }
		borrow := func(n int64) *budget.Loan {
			l, err := memory.Borrow(t.Context(), 0)
			if err != nil {
				t.Fatal(err)
			}
			if err := l.Take(n); err != nil {
				t.Fatal(err)
			}
			return l
		}
		small, smallWatch := g.watch(t.Context(), borrow(1<<10))
		large, largeWatch := g.watch(t.Context(), borrow(1<<25))
		used.Store(1000)
		time.Sleep(time.Second)
		if small.Err() != nil || large.Err() != nil {
			t.Error("a query was ended although there was memory")
		}
		used.Store(1020)
		time.Sleep(10 * guardPeriod)
		if large.Err() == nil || small.Err() != nil {
			t.Errorf("large %v, small %v", large.Err(), small.Err())
		}
		used.Store(900)
		largeWatch.leave()
		smallWatch.leave()
		other := errors.New("another")
		if err := largeWatch.cause(other); !fault.Is(err, fault.Throttled) {
			t.Error(err)
		}
		if err := smallWatch.cause(other); err != other {
			t.Error(err)
		}
		time.Sleep(10 * guardIdle * guardPeriod) // or else a goroutine is left, which the bubble reports
	})
}

// TestASmallQueryIsNotEndedForWhatOthersTook: ten thousand connections used the rest of the heap, and a query of a few bytes
// was ended with 503, which freed nothing. A query that books little is ended if the heap has grown since it began.
func TestASmallQueryIsNotEndedForWhatOthersTook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory := budget.New("queries", 1<<30)
		var used atomic.Int64
		g := newGuard(slog.New(slog.DiscardHandler))
		g.heap = func() heap { return heap{limit: 1000, used: used.Load()} }
		loan, err := memory.Borrow(t.Context(), 0)
		if err != nil {
			t.Fatal(err)
		}
		used.Store(1020)
		small, w := g.watch(t.Context(), loan)
		time.Sleep(time.Second)
		if small.Err() != nil {
			t.Fatal("it was ended")
		}
		used.Store(1020 + 1000/guardGrowth)
		time.Sleep(10 * guardPeriod)
		if small.Err() == nil {
			t.Error("what it did not book is not noticed")
		}
		w.leave()
		time.Sleep(10 * guardIdle * guardPeriod)
	})
}

// TestASmallQueryIsNotEndedWhileALargeOneEnds: a large query that had been ended did not look at its context for a second,
// and a query of one table's few rows was ended in its place, with 503.
func TestASmallQueryIsNotEndedWhileALargeOneEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory := budget.New("queries", 1<<30)
		var used atomic.Int64
		g := newGuard(slog.New(slog.DiscardHandler))
		g.heap = func() heap { return heap{limit: 1000, used: used.Load()} }
		borrow := func(n int64) *budget.Loan {
			l, err := memory.Borrow(t.Context(), 0)
			if err != nil {
				t.Fatal(err)
			}
			if err := l.Take(n); err != nil {
				t.Fatal(err)
			}
			return l
		}
		small, smallWatch := g.watch(t.Context(), borrow(1<<10))
		large, largeWatch := g.watch(t.Context(), borrow(1<<25))
		used.Store(2000)
		time.Sleep(10 * guardPatience * guardPeriod)
		if large.Err() == nil || small.Err() != nil {
			t.Errorf("large %v, small %v", large.Err(), small.Err())
		}
		largeWatch.leave()
		time.Sleep(10 * guardPeriod)
		if small.Err() == nil {
			t.Error("it is the only one that is left, and memory is short")
		}
		smallWatch.leave()
		time.Sleep(10 * guardIdle * guardPeriod)
	})
}
