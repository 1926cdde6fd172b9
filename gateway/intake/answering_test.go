package intake

import (
	"context"
	"testing"
	"time"
)

// TestASlowBodyHasTheWholeTimeOfAnAnswer: a body that came over a slow link for longer than an answer may last was refused with 503 when it was read, whatever the store did, and
// its sender sent it again for ever.
func TestASlowBodyHasTheWholeTimeOfAnAnswer(t *testing.T) {
	f := &Front{settings: Settings{AnswerTimeMax: time.Hour}}
	passed, cancel := context.WithCancel(t.Context())
	cancel()
	c := &call{sender: t.Context()}
	now := time.Now()
	f.arrived(c, now.Add(-time.Second), now)
	ctx, end := c.answering(passed)
	end()
	if ctx != passed {
		t.Error("a body that was there at once has another bound than the request")
	}
	f.arrived(c, now.Add(-2*time.Hour), now)
	ctx, end = c.answering(passed)
	defer end()
	if at, bounded := ctx.Deadline(); ctx.Err() != nil || !bounded || !at.Equal(now.Add(time.Hour)) {
		t.Errorf("after a slow body: %v, until %v", ctx.Err(), at)
	}
}
