package staging

import (
	"testing"
	"time"
)

// TestAFrameIsNotNewerThanNow: a clock that was set back makes no frame wait for the turn of a holder that is not the first for longer.
func TestAFrameIsNotNewerThanNow(t *testing.T) {
	now := time.Unix(1700000000, 0)
	for _, since := range []time.Time{now.Add(-time.Hour), now, now.Add(time.Hour), now.Add(9000 * time.Hour)} {
		f := Frame{Since: since, Due: since.Add(20 * time.Second)}
		if f.Bound(now); f.Since.After(now) || f.Due.After(now.Add(WaitMax)) {
			t.Errorf("accepted at %v, due at %v, where it is %v", f.Since, f.Due, now)
		}
		if since.Before(now) && !f.Since.Equal(since) {
			t.Errorf("accepted at %v, not at %v", f.Since, since)
		}
	}
	// The wall clock decides nothing once a frame is held: whether it is due follows from the other clock.
	now = time.Now()
	f := Frame{Since: now, Due: time.Unix(0, now.Add(time.Second).UnixNano())}
	if f.Bound(now); f.Due == f.Due.Round(0) || f.Due.Sub(now) != time.Second {
		t.Errorf("due at %v, by the wall clock alone", f.Due)
	}
}
