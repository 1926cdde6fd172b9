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
	ctx, end := f.answering(passed, &call{sender: t.Context(), bodyTook: 2 * time.Hour})
	defer end()
	if at, bounded := ctx.Deadline(); ctx.Err() != nil || !bounded || time.Until(at) < time.Hour/2 {
		t.Errorf("after a slow body: %v, until %v", ctx.Err(), at)
	}
	if ctx, end := f.answering(passed, &call{sender: t.Context(), bodyTook: time.Second}); ctx != passed {
		end()
		t.Error("a body that was there at once has the bound of the request")
	}
}
