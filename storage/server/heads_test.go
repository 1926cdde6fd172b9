package server

import (
	"slices"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// TestATableWithinItsShareIsTakenWhileAnotherFillsTheHeads: one table's backlog answered every table's rows with 503.
func TestATableWithinItsShareIsTakenWhileAnotherFillsTheHeads(t *testing.T) {
	h := &heads{max: 1 << 30}
	hog, other := &tableHeads{of: h}, &tableHeads{of: h}
	other.Add(10 << 20)
	taken := int64(0)
	for hog.admit() == nil {
		hog.Add(1 << 20)
		if taken += 1 << 20; taken > h.max {
			break
		}
	}
	if taken < h.max/4*3-16<<20 || taken > h.max/4*3+2<<20 {
		t.Errorf("the greedy table got %d MiB of 1024", taken>>20)
	}
	if err := hog.admit(); !fault.Is(err, fault.Throttled) {
		t.Errorf("greedy: %v", err)
	}
	if err := other.admit(); err != nil {
		t.Errorf("within its share: %v", err)
	}
	for other.admit() == nil {
		other.Add(1 << 20)
	}
	if used := other.used.Load(); used < h.max/10 {
		t.Errorf("the second table was stopped at %d MiB, less than a fifth of its half", used>>20)
	}
	if all := h.all.Load(); all > h.max {
		t.Errorf("together they hold %d bytes of %d", all, h.max)
	}
	hog.Add(-taken)
	if err := other.admit(); err != nil {
		t.Errorf("alone again: %v", err)
	}
}

func TestHeadShares(t *testing.T) {
	const most = 1000
	for _, c := range []struct {
		what         string
		all, used, n int64
		want         bool
	}{
		{"alone, it gets all", 1000, 1000, 1, true},
		{"alone, and over", 1001, 1001, 1, false},
		{"nobody is short of anything", 750, 750, 9, true},
		{"greedy, in the last quarter", 800, 700, 2, false},
		{"small, in the last quarter", 800, 100, 2, true},
		{"small, and nothing is left", 1001, 1, 2, false},
		{"at its share of what is left", 900, 100, 4, true},
		{"above it", 900, 101, 4, false},
		{"too small to count", 900, 10, 0, true},
	} {
		if got := admits(most, c.all, c.used, c.n); got != c.want {
			t.Errorf("%s: %v", c.what, got)
		}
	}
}

// TestTablesFillTheHeadsAndNoMore lets tables of any number and greed write as long as they are admitted.
func TestTablesFillTheHeadsAndNoMore(t *testing.T) {
	for _, n := range []int{1, 2, 3, 10, 100} {
		h := &heads{max: 1 << 20}
		tables := make([]*tableHeads, n)
		for i := range tables {
			tables[i] = &tableHeads{of: h}
		}
		for round, moved := 0, true; moved; round++ {
			moved = false
			for i, tb := range tables {
				for range 1 + i%7 { // the later write more at a time
					if tb.admit() == nil {
						tb.Add(100)
						moved = true
					}
				}
			}
		}
		if all := h.all.Load(); all > h.max+100 || all < h.max/4*3 {
			t.Errorf("%d tables hold %d of %d", n, all, h.max)
		}
		for i, tb := range tables {
			if used := tb.used.Load(); used < h.max/int64(5*n) {
				t.Errorf("%d tables: table %d was refused at %d bytes", n, i, used)
			}
		}
	}
}

func TestVictims(t *testing.T) {
	const hot, cold = time.Second, time.Minute
	head := func(bytes, table int64, idle time.Duration) heldHead {
		return heldHead{bytes: bytes, table: table, idle: idle}
	}
	for _, c := range []struct {
		what   string
		held   []heldHead
		excess int64
		want   []int64
	}{
		{"the largest first", []heldHead{head(10, 60, hot), head(30, 60, hot), head(20, 60, hot)}, 45, []int64{30, 20}},
		{"a cold one before one three times as large", []heldHead{head(30, 60, hot), head(10, 60, cold)}, 5, []int64{10}},
		{"one of the greedy table before others", []heldHead{head(30, 40, hot), head(10, 200, hot)}, 5, []int64{10}},
		{"many small cold ones", []heldHead{head(1, 3, cold), head(1, 3, cold), head(1, 3, cold)}, 3, []int64{1, 1, 1}},
		{"nothing is needed", []heldHead{head(30, 40, hot)}, 0, nil},
	} {
		var got []int64
		for _, h := range victims(c.held, c.excess, 100) {
			got = append(got, h.bytes)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", c.what, got, c.want)
		}
	}
}
