package main

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spillwaydb/spillway/protocols/budget"
)

// TestWhatHeadsHoldIsNotThereForQueries: memory that others bound was booked nowhere, and queries took it a second time.
func TestWhatHeadsHoldIsNotThereForQueries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		process := budget.New("process", 1000)
		heads, err := process.Child("heads", budget.Share{Floor: 100})
		if err != nil {
			t.Fatal(err)
		}
		queries, err := process.Child("queries", budget.Share{Floor: 100})
		if err != nil {
			t.Fatal(err)
		}
		var held atomic.Int64
		ctx, stop := context.WithCancel(t.Context())
		go func() { _ = follow(ctx, followed{heads, held.Load}) }()
		for _, step := range []struct{ held, free int64 }{{0, 900}, {600, 400}, {2000, 100}, {50, 900}} {
			held.Store(step.held)
			time.Sleep(2 * followPeriod)
			synctest.Wait()
			if got := queries.Free(); got != step.free {
				t.Errorf("heads hold %d: %d are free for queries, want %d", step.held, got, step.free)
			}
		}
		stop()
	})
}
