package budget_test

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/spillwaydb/spillway/protocols/budget"
)

// TestWhatGrowsIsBookedBeforeItIsTaken: the process lent to queries memory that heads had already allocated up to 100 ms
// before.
func TestWhatGrowsIsBookedBeforeItIsTaken(t *testing.T) {
	const quantum = 1000
	process := budget.New("process", 1<<20)
	heads, err := process.Child("heads", budget.Share{})
	if err != nil {
		t.Fatal(err)
	}
	a := budget.NewAhead(heads, quantum)
	held := int64(0)
	for range 5000 {
		step := rand.Int64N(quantum)
		if held > 0 && heads.Used() < held+step {
			t.Fatalf("%d bytes are booked while %d grow by %d", heads.Used(), held, step)
		}
		held += step
		a.Cover(held)
		if n := heads.Used(); n > held+2*quantum {
			t.Fatalf("%d bytes are booked for %d", n, held)
		}
	}
	if err := process.Reserve(process.Free() + 1); err == nil {
		t.Error("others get what is booked")
	}
	a.Trim(held / 2)
	if n := heads.Used(); n != held/2+2*quantum {
		t.Errorf("%d bytes are booked for %d", n, held/2)
	}
	a.Trim(0)
	if n := heads.Used(); n != 0 {
		t.Errorf("%d bytes are booked for nothing", n)
	}
}

// TestCoverAndTrimAtOnceKeepTheAccountWhole has many grow and shrink while another trims.
func TestCoverAndTrimAtOnceKeepTheAccountWhole(t *testing.T) {
	process := budget.New("process", 1<<30)
	a := budget.NewAhead(process, 64)
	var held atomic.Int64
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 2000 {
				a.Cover(held.Add(50))
				held.Add(-50)
			}
		})
	}
	for range 200 {
		a.Trim(held.Load())
	}
	wg.Wait()
	a.Trim(0)
	if n := process.Used(); n != 0 {
		t.Errorf("%d bytes are left", n)
	}
}
