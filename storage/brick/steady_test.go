package brick

import (
	"testing"
	"time"
)

// TestAClockThatJumpsEmptiesNoLostFound: a process that was up for a day believed its clock, and one that was set a month ahead removed what a person had not looked at yet.
func TestAClockThatJumpsEmptiesNoLostFound(t *testing.T) {
	began := time.Now()
	s := newSteady(began)
	looks := func(from, to int, off time.Duration) (believed int) {
		for h := from; h < to; h++ {
			now := began.Add(time.Duration(h) * time.Hour)
			if s.look(now, now.Round(0).Add(off)) {
				believed++
			}
		}
		return believed
	}
	for _, c := range []struct {
		why      string
		from, to int
		off      time.Duration
		believed int
	}{
		{"it has just started", 1, 25, 0, 0},
		{"a day later", 25, 40, 0, 15},
		{"NTP corrects it by seconds", 40, 45, 5 * time.Second, 5},
		{"it was set a month ahead", 45, 69, 30 * 24 * time.Hour, 0},
		{"and stays there for a day", 70, 72, 30 * 24 * time.Hour, 2},
		{"it was set right", 72, 90, 0, 0},
	} {
		if n := looks(c.from, c.to, c.off); n != c.believed {
			t.Errorf("%s: believed at %d of %d looks, want %d", c.why, n, c.to-c.from, c.believed)
		}
	}
}
