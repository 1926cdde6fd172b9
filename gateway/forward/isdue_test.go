package forward

import "testing"

// TestAClockThatWasAheadMakesNothingWait: after a minute in 2036 no delays of smeared rows were computed, and no dictionaries replaced, for ten years.
func TestAClockThatWasAheadMakesNothingWait(t *testing.T) {
	for _, c := range []struct {
		now, at int64
		due     bool
	}{{99, 100, false}, {100, 100, true}, {101, 100, true}, {90, 100, false}, {89, 100, true}, {5, 100, true}} {
		if isDue(c.now, c.at, 10) != c.due {
			t.Errorf("at %d, for %d: due %t", c.now, c.at, !c.due)
		}
	}
}
