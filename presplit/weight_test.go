package presplit

import (
	"math"
	"testing"
)

// TestBytesOfAPartitionAreSeparatedFromThoseOfItsRows: wide partitions of a table whose series need a megabyte, and narrow ones, both off by some per cent.
func TestBytesOfAPartitionAreSeparatedFromThoseOfItsRows(t *testing.T) {
	noise := func(i int) float64 { return 1 + 0.03*math.Sin(float64(i)*2.4) }
	var closed []Weighed
	for i := range 20 {
		rows := 2e6
		if i >= 10 { // older ones are narrow
			rows = 2e5
		}
		closed = append(closed, Weighed{rows, (3*rows + 1e6) * noise(i)})
	}
	closed[3].Bytes *= 4 // compacted late
	w, ok := WeightOf(closed)
	if size := w.Bytes(2e5); !ok || math.Abs(size/1.6e6-1) > 0.1 {
		t.Errorf("%+v (%t): a narrow partition has %.0f bytes, want 1.6 MB", w, ok, size)
	}
	if rows := w.Rows(2e6); math.Abs(w.Bytes(rows)/2e6-1) > 1e-9 {
		t.Errorf("%.0f rows for 2 MB", rows)
	}
	if rows := (Weight{3, 1e6}).Rows(1e6); rows != 5e5/3 {
		t.Errorf("where the series alone fill a partition, it should get %.0f rows", rows)
	}
}

// TestAlikePartitionsPredictNothing: from them bytes per row and bytes per partition cannot be separated; nor from two odd ones, nor where sizes fall with the rows.
func TestAlikePartitionsPredictNothing(t *testing.T) {
	alike := []Weighed{{1000, 3000}, {1050, 3150}, {1100, 3300}}
	odd := append([]Weighed{{5000, 3000}}, alike...)
	var falls []Weighed
	for i := range 10 {
		falls = append(falls, Weighed{1000 * float64(1+i), 1e6 - 1e4*float64(i)})
	}
	for name, closed := range map[string][]Weighed{"alike": alike, "odd": odd, "falls": falls} {
		var rows, bytes float64
		for _, p := range closed[:min(len(closed), 8)] {
			rows, bytes = rows+p.Rows, bytes+p.Bytes
		}
		if w, ok := WeightOf(closed); !ok || w.PerPartition != 0 || math.Abs(w.PerRow-bytes/rows) > 1e-9 {
			t.Errorf("%s: %+v (%t)", name, w, ok)
		}
	}
	if w, ok := WeightOf([]Weighed{{0, 10}, {10, 0}}); ok {
		t.Errorf("partitions without rows or bytes weigh %+v", w)
	}
}

// TestRepeatedDefinitionsCountInSizes replays a load that nearly ceases at night, when a partition is as wide as it may be and has few rows: by the mean of the last partitions, those of the
// morning would close too small. Each partition repeats a fifth of the target.
func TestRepeatedDefinitionsCountInSizes(t *testing.T) {
	trace := *Synthetic("daily", 4, 1)
	for i := range trace.Bytes {
		if hour := i / 60 % 24; hour < 6 {
			trace.Bytes[i] /= 20
		}
	}
	r := Backtest(trace, Test{Plan: Plan{Target: 10e9, WidthMin: 1e9, WidthMax: 60 * minute}, Horizon: 120 * minute, Learn: 2 * day, Repeated: 2e9})
	var morning Report
	for i, p := range r.Partitions {
		if hour := (p.Hi - trace.Start) / (60 * minute) % 24; hour >= 7 && hour < 12 {
			morning.Errors = append(morning.Errors, r.Errors[i])
		}
	}
	t.Logf("%d partitions: median %.3f, 95th percentile %.3f, most %.3f", len(morning.Errors), morning.Quantile(0.5), morning.Quantile(0.95), morning.Quantile(1))
	if len(morning.Errors) < 30 || morning.Quantile(0.5) > 0.05 || morning.Quantile(0.95) > 0.15 {
		t.Errorf("%d partitions are off by %.3f in the median, %.3f at the 95th percentile", len(morning.Errors), morning.Quantile(0.5), morning.Quantile(0.95))
	}
}
