package peer

import "testing"

func TestWaitingFindsWhatTheWriteCarries(t *testing.T) {
	Waiting(t.Context())() // of a write that carries none
	n := 0
	waits := Waiting(WithWaiting(t.Context(), func() { n++ }))
	waits()
	waits()
	if n != 2 {
		t.Errorf("called %d times", n)
	}
}
