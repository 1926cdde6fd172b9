package share

import "testing"

// TestATableWithinItsShareIsTakenWhileAnotherFillsTheHeads: one table's backlog answered every table's rows with 503.
func TestATableWithinItsShareIsTakenWhileAnotherFillsTheHeads(t *testing.T) {
	h := New(1 << 30)
	hog, other := h.Member(), h.Member()
	other.Add(10 << 20)
	taken := int64(0)
	for hog.Admits() {
		hog.Add(1 << 20)
		if taken += 1 << 20; taken > h.most {
			break
		}
	}
	if taken < h.most/4*3-16<<20 || taken > h.most/4*3+2<<20 {
		t.Errorf("the greedy table got %d MiB of 1024", taken>>20)
	}
	if hog.Admits() || !other.Admits() {
		t.Errorf("the greedy one is admitted: %v, the one within its share: %v", hog.Admits(), other.Admits())
	}
	for other.Admits() {
		other.Add(1 << 20)
	}
	if used := other.Used(); used < h.most/16 {
		t.Errorf("the second table was stopped at %d MiB, less than an eighth of its half", used>>20)
	}
	if all := h.Used(); all > h.most {
		t.Errorf("together they hold %d bytes of %d", all, h.most)
	}
	hog.Add(-taken)
	if !other.Admits() {
		t.Error("alone again, and not admitted")
	}
}

func TestAdmits(t *testing.T) {
	const most = 1000
	for _, c := range []struct {
		what         string
		all, used, n int64
		want         bool
	}{
		{"alone, it gets all", 999, 999, 1, true},
		{"alone, and at its end", 1000, 1000, 1, false},
		{"nobody is short of anything", 749, 749, 9, true},
		{"greedy, in the last quarter", 800, 700, 2, false},
		{"small, in the last quarter", 800, 100, 2, true},
		{"small, in the last sixteenth", 990, 2, 100, true},
		{"not so small, in the last sixteenth", 990, 5, 2, false},
		{"small, and nothing is left", 1000, 1, 2, false},
		{"at its share of what is left", 830, 100, 4, true},
		{"above it", 830, 101, 4, false},
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
		h := New(1 << 20)
		tables := make([]*Member, n)
		for i := range tables {
			tables[i] = h.Member()
		}
		for round, moved := 0, true; moved; round++ {
			moved = false
			for i, tb := range tables {
				for range 1 + i%7 { // the later write more at a time
					if tb.Admits() {
						tb.Add(100)
						moved = true
					}
				}
			}
		}
		if all := h.Used(); all >= h.most+100 || all < h.most/4*3 {
			t.Errorf("%d tables hold %d of %d", n, all, h.most)
		}
		for i, tb := range tables {
			if used := tb.Used(); used < h.most/int64(8*n) {
				t.Errorf("%d tables: table %d was refused at %d bytes", n, i, used)
			}
		}
	}
}

func TestOneAloneGetsAllUnlessSomeIsReserved(t *testing.T) {
	for _, c := range []struct {
		what        string
		pool        *Pool
		other, want int64
	}{
		{"alone", New(10_000), 0, 10_000},
		{"beside one that holds next to nothing", New(10_000), 1, 7501},
		{"alone, with a reserve", NewReserved(10_000), 0, 7501},
	} {
		c.pool.Member().Add(c.other)
		m := c.pool.Member()
		for m.Admits() {
			m.Add(1)
		}
		if got := m.Used(); got < c.want-2 || got > c.want {
			t.Errorf("%s: %d, want %d", c.what, got, c.want)
		}
		if small := c.pool.Member(); c.want < 10_000 && !small.Admits() {
			t.Errorf("%s: one that comes later gets nothing", c.what)
		}
	}
}
