package pace_test

import (
	"testing"
	"time"

	"github.com/spillwaydb/spillway/protocols/pace"
)

func TestBucketGivesWhatItHas(t *testing.T) {
	b := pace.New(10, 50)
	at := time.Unix(1000, 0)
	for _, step := range []struct {
		after     time.Duration
		ask, want int
	}{
		{0, 30, 30},
		{0, 30, 20},
		{0, 1, 0},
		{500 * time.Millisecond, 100, 5},
		{-time.Second, 1, 0}, // a clock that goes back fills nothing
		{time.Hour, 100, 50},
		{time.Second, -3, 0},
		{0, 100, 10},
	} {
		at = at.Add(step.after)
		if got := b.Take(at, step.ask); got != step.want {
			t.Errorf("%v later, %d asked for: %d, want %d", step.after, step.ask, got, step.want)
		}
	}
}
