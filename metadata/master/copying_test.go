package master

import (
	"testing"
	"time"
)

// TestACopyThatDoesNotEndIsNoticed: the time of the last progress stands still while nothing comes to an end, and goes on when one copy is whole.
func TestACopyThatDoesNotEndIsNoticed(t *testing.T) {
	w := newWorld()
	for _, line := range []string{
		"now 2026-11-21T12:00:00Z", "server s1 drained=ann", "server s2", "table cpu width=1h",
		"p1 [2026-11-21T08:00, 2026-11-21T09:00) s1 +s2 | led by s1, in sync s1, 512 MiB to 2026-11-21T08:59",
		"p2 [2026-11-21T09:00, 2026-11-21T10:00) s1 +s2 | led by s1, in sync s1, 256 MiB to 2026-11-21T09:59",
		"p3 [2026-11-21T10:00, 2026-11-21T11:00) s1 +s2 | led by s1, empty",
	} {
		w.line(t, line)
	}
	var c copying
	began := w.Now
	for _, x := range []struct {
		change           string
		placements       int
		mebibytes        int64
		oldest, progress time.Duration // after the beginning
	}{
		{"", 2, 768, 0, 0},
		{"", 2, 768, 0, 0},
		{"p1 | led by s1, in sync s1 s2", 1, 256, 0, 2 * time.Minute},
		{"", 1, 256, 0, 2 * time.Minute},
		{"p2 | led by s1, in sync s1 s2", 0, 0, 4 * time.Minute, 4 * time.Minute},
		{"p1 | led by s1, in sync s1", 1, 512, 5 * time.Minute, 5 * time.Minute},
	} {
		if x.change != "" {
			w.line(t, x.change)
		}
		got := c.look(&w.State, w.set)
		want := underWay{x.placements, x.mebibytes << 20, began + int64(x.oldest), began + int64(x.progress)}
		if got != want {
			t.Errorf("after %v: %+v, want %+v", time.Duration(w.Now-began), got, want)
		}
		w.Now += int64(time.Minute)
	}
}
