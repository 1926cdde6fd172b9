package columns

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// TestShareCallsEachOnce, from no more goroutines than it may, of which the caller is one.
func TestShareCallsEachOnce(t *testing.T) {
	for _, n := range []int{0, 1, 2, 7, 100} {
		for _, goroutines := range []int{1, 2, 5} {
			var mu sync.Mutex
			var called []int
			var running, most atomic.Int64
			err := Share(t.Context(), n, goroutines, nil, func(ctx context.Context, i int) error {
				now := running.Add(1)
				defer running.Add(-1)
				mu.Lock()
				defer mu.Unlock()
				most.Store(max(most.Load(), now))
				called = append(called, i)
				return ctx.Err()
			})
			slices.Sort(called)
			if err != nil || len(called) != n || len(slices.Compact(called)) != n || most.Load() > int64(goroutines) {
				t.Errorf("%d calls from %d goroutines: %v, %d at a time, %v", n, goroutines, called, most.Load(), err)
			}
		}
	}
}

// TestShareEndsAfterAnError: the other calls under way see that their context ended, and the first error is returned.
func TestShareEndsAfterAnError(t *testing.T) {
	broken := errors.New("broken")
	for _, of := range []int{0, 1} {
		var begun sync.WaitGroup
		begun.Add(2)
		err := Share(t.Context(), 50, 2, nil, func(ctx context.Context, i int) error {
			if i > 1 {
				return fmt.Errorf("call %d was made", i)
			}
			begun.Done()
			begun.Wait()
			if i == of {
				return broken
			}
			<-ctx.Done()
			return ctx.Err()
		})
		if !errors.Is(err, broken) {
			t.Errorf("call %d fails: %v", of, err)
		}
	}
	left, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Share(left, 3, 2, nil, func(ctx context.Context, _ int) error { return ctx.Err() }); !errors.Is(err, context.Canceled) {
		t.Errorf("the caller left: %v", err)
	}
}

// TestShareMakesAllCallsAtATime, where there are as many goroutines: each call waits for the others. All but the caller's are given away.
func TestShareMakesAllCallsAtATime(t *testing.T) {
	const n = 8
	var begun sync.WaitGroup
	begun.Add(n)
	given := 0
	beside := func(work func()) { given++; go work() }
	if err := Share(t.Context(), n, n, beside, func(context.Context, int) error { begun.Done(); begun.Wait(); return nil }); err != nil || given != n-1 {
		t.Errorf("%d given away: %v", given, err)
	}
}

// TestShareEndsAfterAPanic: it ended the process, if another goroutine than the caller met it.
func TestShareEndsAfterAPanic(t *testing.T) {
	for at := range 3 {
		err := Share(t.Context(), 3, 3, nil, func(ctx context.Context, i int) error {
			if i == at {
				return []error{nil}[i+1]
			}
			<-ctx.Done()
			return nil
		})
		if !fault.IsPanic(err) || !strings.Contains(err.Error(), "columns/share_test.go:") {
			t.Errorf("call %d: %v", at, err)
		}
	}
}
