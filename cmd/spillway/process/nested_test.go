package process

import (
	"context"
	"errors"
	"testing"

	"github.com/oklog/run"
)

// TestTheLastRequestsHaveTheStoreBehindThem: a stopping gateway stopped following maps and leaders, and a process that is alone its flushes, while requests that
// waited for them had up to 30 seconds left. They were refused.
func TestTheLastRequestsHaveTheStoreBehindThem(t *testing.T) {
	signal := errors.New("a signal")
	behind, stopBehind := context.WithCancel(t.Context())
	stopped, stopDoor := context.WithCancel(t.Context())
	var door, g run.Group
	door.Add(func() error {
		<-stopped.Done()
		if behind.Err() != nil {
			t.Error("what is behind the door ended before its last request")
		}
		return nil
	}, func(error) { stopDoor() })
	g.Add(func() error { return signal }, func(error) {})
	g.Add(nested(&door))
	g.Add(func() error { <-behind.Done(); return nil }, func(error) { stopBehind() })
	if err := g.Run(); !errors.Is(err, signal) {
		t.Error(err)
	}
}

// TestAPartOfTheDoorThatFailsEndsTheProcess with its error.
func TestAPartOfTheDoorThatFailsEndsTheProcess(t *testing.T) {
	broken := errors.New("broken")
	behind, stopBehind := context.WithCancel(t.Context())
	var door, g run.Group
	door.Add(func() error { return broken }, func(error) {})
	g.Add(nested(&door))
	g.Add(func() error { <-behind.Done(); return nil }, func(error) { stopBehind() })
	if err := g.Run(); !errors.Is(err, broken) {
		t.Error(err)
	}
}
