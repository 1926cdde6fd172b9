package presplit

import (
	"testing"
	"time"

	"github.com/spillwaydb/spillway/protocols/point"
)

// TestLoadsThatLeapOrEnd: from two hours after a load leapt on a Saturday, partitions close near their target again, also at the same time of the next day, when yesterday's leap is no
// season. A load that ends leaves partitions as wide as they may be.
func TestLoadsThatLeapOrEnd(t *testing.T) {
	const saturday = 5 * 1440 // minute of the change
	f := func(times float64, p95 float64, widest point.Nanos) {
		t.Helper()
		trace := Synthetic("daily", 8, 7)
		for i := saturday; i < len(trace.Bytes); i++ {
			trace.Bytes[i] *= times
		}
		r := Backtest(*trace, Test{Plan: Plan{Target: 200e9, WidthMin: WidthMin, WidthMax: day}, Horizon: 120 * minute, Learn: 2 * day})
		settled := trace.Start + saturday*minute + 120*minute
		var late Report
		wide := point.Nanos(0)
		for i, p := range r.Partitions {
			if p.Lo >= settled {
				wide = max(wide, p.Hi-p.Lo)
				late.Errors = append(late.Errors, r.Errors[i])
			} else if p.Hi > settled {
				wide = max(wide, p.Hi-p.Lo)
			}
		}
		t.Logf("%v times as much: %d partitions, median error %.1f %%, 95th percentile %.1f %%, the widest %v, %d cuts", times, len(late.Errors), 100*late.Quantile(0.5), 100*late.Quantile(0.95), time.Duration(wide), r.Cuts)
		if p95 > 0 && (len(late.Errors) < 50 || late.Quantile(0.5) > 0.1 || late.Quantile(0.95) > p95) {
			t.Errorf("%v times as much: %d partitions, errors %.2f, %.2f", times, len(late.Errors), late.Quantile(0.5), late.Quantile(0.95))
		}
		if widest > 0 && wide != widest {
			t.Errorf("%v times as much: the widest partition covers %v, want %v", times, time.Duration(wide), time.Duration(widest))
		}
	}
	f(100, 0.2, 0)
	f(10, 0.2, 0)
	f(0.01, 0, day)
	f(0, 0, day)
}
