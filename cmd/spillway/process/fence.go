package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spillwaydb/spillway/cmd/spillway/terminal"
	"github.com/spillwaydb/spillway/storage/brick"
)

const (
	// fencedEnd is how long a process runs on after its store was fenced: its answers could not be trusted, and another
	// process may be waiting for its place.
	fencedEnd = 2 * time.Second
	// fencedDrain is the part of that in which its requests may get their answers.
	fencedDrain = 500 * time.Millisecond
)

// fence is a store that can be fenced.
type fence struct {
	over <-chan struct{} // closed when it is fenced
	why  func() error    // nil before
}

// live runs a process and closes it. A fence ends the process within fencedEnd whatever else hangs: closing files on a
// device that fails may well block.
func live(run, close func() error, stores ...fence) error {
	return notAgain(liveUntil(func(why error) { os.Exit(terminal.Fail(notAgain(why))) }, run, close, stores...))
}

// notAgain gives an error the exit code at which systemd starts no process again, if the store is gone: the start would make an empty one in its place.
func notAgain(err error) error {
	if errors.Is(err, brick.ErrGone) {
		return terminal.UsageError{Err: err}
	}
	return err
}

// liveUntil is live; exit ends the process.
func liveUntil(exit func(why error), run, close func() error, stores ...fence) error {
	defer endWhenFenced(exit, stores)()
	err := run()
	for _, f := range stores {
		if why := f.why(); why != nil {
			closeFenced(close) // its errors only repeat the fence's
			if errors.Is(err, why) {
				return err
			}
			return errors.Join(err, why)
		}
	}
	return errors.Join(err, close())
}

func endWhenFenced(exit func(why error), stores []fence) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	for _, f := range stores {
		go func() {
			select {
			case <-ctx.Done():
				return
			case <-f.over:
			}
			select {
			case <-ctx.Done():
			case <-time.After(fencedEnd - fencedDrain/2): // the rest is for ending
				exit(f.why())
			}
		}()
	}
	return cancel
}

// fencedBefore says when and why a process before was fenced, for a day; "": none was, or this one is, which is said elsewhere.
func fencedBefore(b *brick.Brick) string {
	f := b.LastFence()
	if f.At.IsZero() || b.Err() != nil {
		return ""
	}
	return fmt.Sprintf("The store was fenced at %s, and the process started anew since: %s.", f.At.UTC().Format(time.RFC3339), f.Why)
}

// untilFenced is an actor that fails when a store is fenced.
func untilFenced(f fence) func(context.Context) error {
	return func(ctx context.Context) error {
		select {
		case <-ctx.Done():
			return nil
		case <-f.over:
			return f.why()
		}
	}
}

// closeFenced closes as much as it can of a process with a fenced store, within a time.
func closeFenced(close func() error) {
	done := make(chan struct{}, 1)
	go func() {
		defer func() { _ = recover() }() // parts of a store that failed may be in any state, and the process is about to end
		_ = close()
		done <- struct{}{}
	}()
	select {
	case <-done:
	case <-time.After(fencedDrain):
	}
}
