package server

import (
	"math"
	"testing"
	"time"
)

// TestCapacityFollowsFromBusyMinutes: rows ÷ CPU, for the share of the processors that rows may use; copies are half of a row.
func TestCapacityFollowsFromBusyMinutes(t *testing.T) {
	type minute struct {
		n           int
		led, copied float64 // rows a second
		cpu         float64 // processors
	}
	f := func(name string, want float64, minutes int, all ...minute) {
		t.Helper()
		c := capacity{processors: 4}
		now, sum := time.Unix(1e9, 0), taken{}
		c.step(now, sum)
		for _, m := range all {
			for range m.n {
				now = now.Add(time.Minute)
				sum = taken{sum.led + 60*m.led, sum.copied + 60*m.copied, sum.cpu + time.Duration(60e9*m.cpu)}
				c.step(now, sum)
			}
		}
		if got := c.of(); math.Abs(got.RowsPerSecond-want) > 1 || got.Minutes != minutes {
			t.Errorf("%s: %+v, want %.0f rows/s by %d minutes", name, got, want, minutes)
		}
	}
	f("nothing was written", 0, 0, minute{10, 0, 0, 2})
	f("idle", 0, 0, minute{10, 1000, 0, 0.1})
	f("busy for too short", 0, 0, minute{4, 100_000, 0, 1})
	f("a processor takes 100,000", 280_000, 10, minute{10, 100_000, 0, 1})
	f("copies", 210_000, 10, minute{10, 50_000, 50_000, 1})
	f("copies alone", 140_000, 10, minute{10, 0, 100_000, 1})
	f("idle minutes between", 280_000, 10, minute{5, 100_000, 0, 1}, minute{100, 10, 0, 0.05}, minute{5, 100_000, 0, 1})
	f("the last hour counts", 560_000, 60, minute{100, 100_000, 0, 1}, minute{60, 100_000, 0, 0.5})
	f("queries take their part", 140_000, 10, minute{10, 100_000, 0, 2})
}

// TestCapacityOfAMoment: looks that come close behind one another are not minutes.
func TestCapacityOfAMoment(t *testing.T) {
	c := capacity{processors: 1}
	now := time.Unix(1e9, 0)
	for i := range 20 {
		c.step(now.Add(time.Duration(i)*time.Second), taken{led: float64(i) * 1e5, cpu: time.Duration(i) * time.Second})
	}
	if got := c.of(); got.Minutes != 0 {
		t.Errorf("%+v", got)
	}
}
