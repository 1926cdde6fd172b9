package coord

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"time"
)

// Follower receives all rows under a prefix: first and after every gap as a list, in between each change in
// order. It is called from one goroutine. After an error Follow starts again with a list.
type Follower interface {
	Listed(rows []Row, rev Revision) error
	Changed(events []Event) error
}

// Follow sends f the rows of a prefix until ctx ends: after a watch that broke, or fell too far behind, it lists
// (C15). It returns nil when ctx ended. rng spreads the pauses, so that the processes of a cluster do not list in step.
func Follow(ctx context.Context, s Store, prefix string, f Follower, log *slog.Logger, rng *rand.Rand) error {
	for atOnce := false; ; {
		err := followOnce(ctx, s, prefix, f)
		if ctx.Err() != nil {
			return nil
		}
		// Where only a list is missing it is read at once, though not twice: a cache for a store that is away returns
		// ErrCompacted as long as that lasts.
		if atOnce = errors.Is(err, ErrCompacted) && !atOnce; atOnce {
			continue
		}
		log.Debug("following rows begins anew", "prefix", prefix, "error", err)
		pause := time.Second/2 + time.Duration(rng.Int64N(int64(time.Second/2)))
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
	}
}

func followOnce(ctx context.Context, s Store, prefix string, f Follower) error {
	rows, rev, err := s.List(ctx, prefix)
	if err != nil {
		return err
	}
	if err := f.Listed(rows, rev); err != nil {
		return err
	}
	return s.Watch(ctx, prefix, rev, f.Changed)
}
