package main

import (
	"context"
	"errors"
	"os"
	"time"
)

const (
	// fencedEnd is how long a process lives after its store was fenced: nothing it could say would be true, and another may
	// be waiting for its place.
	fencedEnd = 2 * time.Second
	// fencedDrain is how long of that its requests have to get their answers.
	fencedDrain = 500 * time.Millisecond
)

// fence is a store that can lose the right to speak.
type fence struct {
	over <-chan struct{} // closed when it did
	why  func() error    // nil before
}

// live runs a process and closes it. A fence ends it within fencedEnd whatever else hangs: a device that fails may well block
// those who close their files on it.
func live(run, close func() error, stores ...fence) error {
	defer endWhenFenced(stores)()
	err := run()
	for _, f := range stores {
		if why := f.why(); why != nil {
			closeFenced(close) // its errors only say the same again
			if errors.Is(err, why) {
				return err
			}
			return errors.Join(err, why)
		}
	}
	return errors.Join(err, close())
}

func endWhenFenced(stores []fence) (stop func()) {
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
				os.Exit(fail(f.why()))
			}
		}()
	}
	return cancel
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

// closeFenced closes what can be closed of a process whose store is fenced, within a time.
func closeFenced(close func() error) {
	done := make(chan struct{})
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
