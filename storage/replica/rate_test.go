package replica

import (
	"testing"
	"time"
)

const (
	rateSetting = 160 << 20
	rateStep    = 250 * time.Millisecond
)

// rateWorld is a server whose fsyncs last longer the more is copied.
type rateWorld struct {
	*Rate
	total Work
	rate  float64
	fsync func(rate float64) time.Duration // how long one lasts
	every time.Duration                    // from one fsync to the next; 0: no rows are written
}

func newRateWorld(setting int64, fsync func(rate float64) time.Duration) *rateWorld {
	w := &rateWorld{Rate: NewRate(setting), fsync: fsync, every: 10 * time.Millisecond}
	w.rate = w.Step(Work{})
	return w
}

// run lets time go by, and returns how many bytes a second were copied.
func (w *rateWorld) run(d time.Duration, copies bool) float64 {
	var bytes float64
	for range d / rateStep {
		rate := 0.0
		if copies {
			rate = w.rate
		}
		bytes += rate * rateStep.Seconds()
		w.total.Copied += uint64(rate * rateStep.Seconds())
		if w.every > 0 {
			n := rateStep / w.every
			w.total.Fsyncs += uint64(n)
			w.total.Fsyncing += n * w.fsync(rate)
		}
		w.rate = w.Step(w.total)
	}
	return bytes / d.Seconds()
}

// A disk that copying does not slow down.
func steady(float64) time.Duration { return time.Millisecond }

// A disk on which an fsync of a millisecond lasts longer by another for each 40 MiB/s that are copied.
func shared(rate float64) time.Duration {
	return time.Millisecond + time.Duration(rate/(40<<20)*float64(time.Millisecond))
}

func TestCopyingBeginsSlowlyAndReachesTheSetting(t *testing.T) {
	w := newRateWorld(rateSetting, steady)
	w.run(10*time.Second, false)
	if w.rate != rateSetting/8 {
		t.Errorf("after a quiet time the rate is %.0f, want an eighth of the setting", w.rate)
	}
	if w.run(time.Second, true); w.rate != rateSetting/4 {
		t.Errorf("after a second it is %.0f, want a quarter", w.rate)
	}
	if w.run(6*time.Second, true); w.rate != rateSetting {
		t.Errorf("after seven seconds it is %.0f, want the setting", w.rate)
	}
	if w.run(rateStep, false); w.rate <= rateSetting/2 {
		t.Errorf("a pause between two segments lowers the rate to %.0f", w.rate)
	}
	if w.run(10*time.Second, false); w.rate != rateSetting/8 {
		t.Errorf("after another quiet time it is %.0f", w.rate)
	}
}

func TestCopyingYieldsToWriters(t *testing.T) {
	w := newRateWorld(rateSetting, shared)
	w.run(10*time.Second, false)
	longest := time.Duration(0)
	var sum float64
	for range 240 {
		sum += w.run(rateStep, true)
		longest = max(longest, shared(w.rate))
	}
	if longest > 2150*time.Microsecond {
		t.Errorf("an fsync lasts %v while segments are copied, 1 ms without", longest)
	}
	if mean := sum / 240; mean < 36<<20 {
		t.Errorf("%.0f MiB/s are copied, although fsyncs last twice as long as without from 40 MiB/s on", mean/(1<<20))
	}
	if w.every = 0; w.run(10*time.Second, true) < rateSetting/2 {
		t.Errorf("no rows are written any more, and the rate is %.0f", w.rate)
	}
}

// TestADiskThatTurnsSlowIsTheBaselineAfterAWhile: else a copy that began on a fast disk would go on at the lowest rate for ever.
func TestADiskThatTurnsSlowIsTheBaselineAfterAWhile(t *testing.T) {
	w := newRateWorld(rateSetting, steady)
	w.run(10*time.Second, false)
	w.run(10*time.Second, true)
	w.fsync = func(float64) time.Duration { return 5 * time.Millisecond }
	if w.run(3*time.Second, true); w.rate != rateSetting/8 {
		t.Errorf("fsyncs last five times as long, and the rate is %.0f", w.rate)
	}
	if w.run(17*time.Second, true); w.rate != rateSetting {
		t.Errorf("they do so for twenty seconds, and the rate is %.0f", w.rate)
	}
}

// TestWritersWaitNoLongerTheLongerACopyLasts: where even the lowest rate makes fsyncs much longer, that becomes the baseline, and what comes of it does not.
func TestWritersWaitNoLongerTheLongerACopyLasts(t *testing.T) {
	slow := func(rate float64) time.Duration { // 1 ms without copying, 11 ms at the lowest rate
		return time.Millisecond + time.Duration(rate/(2<<20)*float64(time.Millisecond))
	}
	w := newRateWorld(rateSetting, slow)
	w.run(10*time.Second, false)
	longest := time.Duration(0)
	for range 4 * 60 * 60 {
		w.run(rateStep, true)
		longest = max(longest, slow(w.rate))
	}
	if lowest := slow(rateSetting / 8); longest > lowest*5/2 {
		t.Errorf("an fsync lasts %v after an hour, and %v at the lowest rate", longest, lowest)
	}
}

// TestAServerThatNeverRestedCopiesSlowlyAtFirst: one that was just added knows no baseline. An fsync that lasts longer than a step counts as well.
func TestAServerThatNeverRestedCopiesSlowlyAtFirst(t *testing.T) {
	w := newRateWorld(rateSetting, steady)
	if w.run((rateStuck+rateKnown-1)*rateStep, true); w.rate != rateSetting/8 {
		t.Errorf("the rate is %.0f before the baseline is known", w.rate)
	}
	if w.run(8*time.Second, true); w.rate != rateSetting {
		t.Errorf("the rate is %.0f", w.rate)
	}
	w.total.Copied += 1 << 20
	w.total.Fsyncing += rateStep // of one that began before
	if rate := w.Step(w.total); rate != rateSetting/2 {
		t.Errorf("an fsync does not end, and the rate is %.0f", rate)
	}
}

func TestALowRateIsConstant(t *testing.T) {
	w := newRateWorld(4096, shared)
	w.fsync = func(float64) time.Duration { return time.Second }
	for _, copies := range []bool{true, false, true} {
		if w.run(5*time.Second, copies); w.rate != 4096 {
			t.Errorf("the rate is %.0f", w.rate)
		}
	}
}
