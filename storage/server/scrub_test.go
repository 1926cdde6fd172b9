package server

import (
	"testing"
	"time"
)

// TestPacerKeepsTheRate: bytes read are paid for in time, unused time is not saved up, and a busy server pays more.
func TestPacerKeepsTheRate(t *testing.T) {
	p := pacer{rate: 1 << 20}
	now := time.Unix(1000, 0)
	for i, step := range []struct {
		after time.Duration
		bytes int
		busy  bool
		want  time.Duration
	}{
		{0, 1 << 20, false, time.Second},
		{time.Second, 1 << 19, false, time.Second / 2},
		{0, 1 << 19, false, time.Second},
		{time.Hour, 1 << 20, false, time.Second},
		{time.Second, 1 << 20, true, scrubYield * time.Second},
		{scrubYield * time.Second, 0, false, 0},
	} {
		now = now.Add(step.after)
		if got := p.wait(now, step.bytes, step.busy); got != step.want {
			t.Errorf("step %d: %v, want %v", i, got, step.want)
		}
	}
}

// TestPassesBeginAtTheirTime: an unfinished pass continues at once, a new one waits for the period, and a clock that
// was set back does not delay it for ever.
func TestPassesBeginAtTheirTime(t *testing.T) {
	now := time.Unix(1e9, 0)
	for name, c := range map[string]struct {
		state scrubState
		want  time.Duration
	}{
		"never":      {scrubState{}, 0},
		"goes on":    {scrubState{Began: now, At: scrubPlace{Placement: 1}}, 0},
		"just ended": {scrubState{Began: now.Add(-time.Hour)}, 23 * time.Hour},
		"due":        {scrubState{Began: now.Add(-25 * time.Hour)}, -time.Hour},
		"clock back": {scrubState{Began: now.Add(1000 * time.Hour)}, 24 * time.Hour},
	} {
		s := scrubber{s: &Server{settings: Settings{ScrubPeriod: 24 * time.Hour}}, state: c.state}
		if got := s.due(now); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
