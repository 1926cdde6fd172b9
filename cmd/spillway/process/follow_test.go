package process

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spillwaydb/spillway/protocols/budget"
	"github.com/spillwaydb/spillway/protocols/share"
)

// TestWhatHeadsHoldIsNotThereForQueries: memory bounded by other parts was booked nowhere, and queries used it a second
// time.
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
		go func() { _ = follow(ctx, ahead(heads, 1, held.Load, func(func(int64)) {})) }()
		most := 2 * heads.Share().Floor / quantumParts // is booked ahead
		for _, step := range []struct{ held, free int64 }{{0, 900}, {600, 400}, {2000, 100}, {50, 900}} {
			held.Store(step.held)
			time.Sleep(2 * followPeriod)
			synctest.Wait()
			if got := queries.Free(); got > step.free || got < max(100, step.free-most) {
				t.Errorf("heads hold %d: %d are free for queries, want %d", step.held, got, step.free)
			}
		}
		stop()
	})
}

// TestHeadsAreBookedBeforeTheyGrow: queries borrowed memory that heads had allocated in the last 100 ms.
func TestHeadsAreBookedBeforeTheyGrow(t *testing.T) {
	a, err := openAccounts(512<<20, nil)
	if err != nil {
		t.Fatal(err)
	}
	pool := share.New(256 << 20)
	m := pool.Member()
	f := ahead(a.heads, 1, pool.Used, pool.OnGrowth)
	for range 100 {
		m.Add(1 << 20)
		if booked := a.heads.Used(); booked < pool.Used()+a.heads.Share().Floor/quantumParts {
			t.Fatalf("%d bytes are booked while %d are held", booked, pool.Used())
		}
	}
	m.Add(-100 << 20)
	f.ahead.Trim(f.held())
	if n := a.heads.Used(); n != 0 {
		t.Errorf("%d bytes are booked for nothing", n)
	}
}
