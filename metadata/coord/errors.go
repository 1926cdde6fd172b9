package coord

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// ErrCompacted means that the changes asked for are no longer kept (C15).
var ErrCompacted = errors.New("the changes since that revision are no longer kept: list the rows, then watch from there")

// ErrSetBack means that the store has an older state than it had before, that of a backup. Nothing that was read before need be true any more, and
// revisions are given out a second time: a process that goes on would lead, and watch, by rows that never were.
var ErrSetBack = errors.New("the coordination store was set back to an older state, as after a restore from a backup; a process that ran before has to be started anew, then `spillway doctor` lists the tables that need a repair")

// SetBack makes the error of a store that was set back, by what shows it. It is Unavailable, and ErrSetBack.
func SetBack(shown string) error {
	return fault.Wrap(fmt.Errorf("%w (%s)", ErrSetBack, shown), fault.Unavailable, "coordination store")
}

// probeEvery is how often Probe asks.
const probeEvery = 2 * time.Second

// Probe asks the store every two seconds, until ctx ends or the store has been set back. A process that only watches would not notice: the store waits
// in silence for the revision that the watch asked for.
func Probe(ctx context.Context, s Store) error {
	tick := time.NewTicker(probeEvery)
	defer tick.Stop()
	for {
		if _, _, err := s.Get(ctx, "probe"); errors.Is(err, ErrSetBack) {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}
