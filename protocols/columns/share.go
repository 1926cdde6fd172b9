package columns

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// Share calls f for each number below n, from so many goroutines at most, and returns when all calls have. The caller is one of the goroutines, and each
// makes one call after the other: a goroutine for each call grows its stack each time, which costs a small chain a tenth of its processor time. beside
// runs the other goroutines' work; nil: on new ones. With n goroutines all calls are under way at the same time. After an error, which is returned, the
// context of the other calls ends; calls that have not begun are made or left out. A panic of f is an error.
func Share(ctx context.Context, n, goroutines int, beside func(work func()), f func(ctx context.Context, i int) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var next atomic.Int64
	var failed sync.Once
	var err error
	work := func() {
		for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
			if e := call(ctx, i, f); e != nil {
				failed.Do(func() {
					err = e
					cancel()
				})
				return
			}
		}
	}
	if beside == nil {
		beside = func(work func()) { go work() }
	}
	var others sync.WaitGroup
	for range min(n, goroutines) - 1 {
		others.Add(1)
		beside(func() {
			defer others.Done()
			work()
		})
	}
	work()
	others.Wait()
	return err
}

func call(ctx context.Context, i int, f func(ctx context.Context, i int) error) (err error) {
	defer fault.Caught(&err)
	return f(ctx, i)
}
