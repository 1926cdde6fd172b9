package presplit

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
)

// onAndOff is a load that comes for a part of each cycle, and is low for the rest. Cycles are so many minutes long, or up to vary longer or shorter; each minute has the noise of Synthetic.
func onAndOff(days, cycle, vary int, part, low float64) *Trace {
	random := rand.New(rand.NewPCG(uint64(cycle), 11))
	t := &Trace{Start: SyntheticStart, Bytes: make([]float64, days*1440)}
	for i := 0; i < len(t.Bytes); {
		length := cycle
		if vary > 0 {
			length += random.IntN(2*vary+1) - vary
		}
		for n := 0; n < length && i < len(t.Bytes); n++ {
			rate := 600e6
			if float64(n) >= part*float64(length) {
				rate *= low
			}
			t.Bytes[i] = max(0, rate*(1+0.05*random.NormFloat64()))
			i++
		}
	}
	return t
}

// TestALoadThatGoesOnAndOffDoesNotCutAllTheTime: its partitions close near their target, if they are as wide as a cycle, and are laid out about as often as those of a steady load.
func TestALoadThatGoesOnAndOffDoesNotCutAllTheTime(t *testing.T) {
	var running sync.WaitGroup
	f := func(target float64, cycle, vary int, part, low float64, cuts int, p50, p95 float64) {
		running.Go(func() {
			const days = 3
			r := Backtest(*onAndOff(days, cycle, vary, part, low), Test{Plan: Plan{Target: target, WidthMin: WidthMin, WidthMax: day}, Horizon: 120 * minute, Learn: day})
			text := fmt.Sprintf("target %.0f GB, on for %.0f %% of %d ± %d min, else %.0f %%: %d partitions, %d cuts a day, median error %.1f %%, 95th percentile %.1f %%",
				target/1e9, 100*part, cycle, vary, 100*low, len(r.Errors), r.Cuts/days, 100*r.Quantile(0.5), 100*r.Quantile(0.95))
			t.Log(text)
			if r.Cuts/days > cuts || r.Quantile(0.5) > p50 || r.Quantile(0.95) > p95 {
				t.Error(text)
			}
		})
	}
	f(10e9, 6, 0, 0.5, 0, 60, 0.1, 0.3)
	f(10e9, 10, 0, 0.5, 0, 60, 0.1, 0.3)
	f(10e9, 20, 0, 0.5, 0.2, 60, 0.2, 0.3)
	f(10e9, 20, 8, 0.5, 0, 120, 0.2, 0.4)
	f(10e9, 30, 0, 0.5, 0.2, 80, 0.2, 0.3)
	f(10e9, 40, 0, 0.5, 0, 80, 0.3, 0.4)
	f(40e9, 60, 0, 0.5, 0, 40, 0.15, 0.3)
	f(40e9, 60, 0, 0.2, 0.1, 40, 0.3, 0.4)
	f(40e9, 30, 10, 0.8, 0, 40, 0.1, 0.3)
	running.Wait()
}

// TestOutagesAreNoCycle, nor is a load that has become steady.
func TestOutagesAreNoCycle(t *testing.T) {
	f := func(name string, want bool, rate func(ago int) float64) {
		t.Helper()
		var rates []float64
		for ago := range fineMax {
			rates = append(rates, rate(ago))
		}
		if c := cyclesOf(rates); (c != nil) != want {
			t.Errorf("%s: turns %v", name, c)
		}
	}
	off := func(when bool) float64 {
		if when {
			return 0
		}
		return 1
	}
	f("steady", false, func(int) float64 { return 1 })
	f("nothing", false, func(int) float64 { return 0 })
	f("a step", false, func(ago int) float64 { return off(ago > 60) })
	f("two outages", false, func(ago int) float64 { return off(ago > 20 && ago < 40 || ago > 80 && ago < 100) })
	f("ten minutes on and off", true, func(ago int) float64 { return off(ago/10%2 == 0) })
	f("which have ended", false, func(ago int) float64 { return off(ago > 35 && ago/10%2 == 0) })
	f("a ripple", false, func(ago int) float64 { return 1 + 0.2*off(ago/10%2 == 0) })
	f("a backup every half hour", true, func(ago int) float64 { return 1 + 9*off(ago%30 > 3) })
}
