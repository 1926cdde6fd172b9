package process

import (
	"log/slog"
	"os"
	"syscall"
	"testing"
	"time"
)

// TestASignalAsTheProcessBeginsToServeStopsIt: between the opened store and the first actor SIGTERM was caught and seen by nothing that stops, so that the
// process served on and was killed half a minute later.
func TestASignalAsTheProcessBeginsToServeStopsIt(t *testing.T) {
	p := open(t)
	defer p.cfg.catchEnds()()
	defer endsWithin(time.Hour, slog.New(slog.DiscardHandler))()
	if err := syscall.Kill(os.Getpid(), syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- p.run(t.Context()) }()
	select {
	case err := <-done:
		if err != nil {
			t.Errorf("it ended with %v", err)
		}
	case <-time.After(time.Minute):
		t.Fatal("it serves on")
	}
}
