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
		what            string
		all, used, w, n int64
		want            bool
	}{
		{"alone, it gets all", 999, 999, 1, 1, true},
		{"alone, and at its end", 1000, 1000, 1, 1, false},
		{"alone, and heavy", 999, 999, 9, 9, true},
		{"nobody is short of anything", 749, 749, 1, 9, true},
		{"greedy, in the last quarter", 800, 700, 1, 2, false},
		{"small, in the last quarter", 800, 100, 1, 2, true},
		{"small, in the last sixteenth", 990, 2, 1, 100, true},
		{"not so small, in the last sixteenth", 990, 5, 1, 2, false},
		{"small, and nothing is left", 1000, 1, 1, 2, false},
		{"at its share of what is left", 830, 100, 1, 4, true},
		{"above it", 830, 110, 1, 4, false},
		{"above the share of one, and counted as three", 830, 300, 3, 4, true},
		{"above the share of three", 830, 330, 3, 4, false},
		{"too small to count", 900, 10, 1, 0, true},
	} {
		if got := admits(most, c.all, c.used, max(c.w, 1), c.n); got != c.want {
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

// TestAHeavyTableGetsItsWeight: of two tables that want all they can get, and return a tenth again and again, one of weight
// 4 ends with twice as much as the other: they are equal up to three quarters, and the rest is shared by weight.
func TestAHeavyTableGetsItsWeight(t *testing.T) {
	h := New(1 << 20)
	heavy, light := h.Member(), h.Member()
	heavy.SetWeight(4)
	for range 1000 {
		for moved := true; moved; {
			moved = false
			for _, m := range []*Member{light, heavy} {
				if m.Admits() {
					m.Add(64)
					moved = true
				}
			}
		}
		light.Add(-light.Used() / 10)
		heavy.Add(-heavy.Used() / 10)
	}
	if a, b := heavy.Used(), light.Used(); a < 3*b/2 || heavy.Fair() != h.most*4/5 {
		t.Errorf("of weights 4 and 1 they hold %d and %d, and %d would be fair", a, b, heavy.Fair())
	}
	if n := h.Members(); n != 5 {
		t.Errorf("the weights of all are %d", n)
	}
	heavy.SetWeight(2)
	light.Add(-light.Used())
	if n := h.Members(); n != 2 {
		t.Errorf("the weights of all that hold something are %d", n)
	}
	heavy.Add(-heavy.Used())
	if n := h.Members(); n != 0 || h.Used() != 0 {
		t.Errorf("empty, the weights are %d and %d is used", n, h.Used())
	}
}
