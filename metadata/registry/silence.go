package registry

import (
	"context"
	"errors"
	"time"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/protocols/fault"
)

// ErrRuns is in the error of AwaitSilence if another process runs as the server.
var ErrRuns = errors.New("two processes must not have one name, nor copies of one store directory")

const silenceLook = 250 * time.Millisecond

// AwaitSilence waits until the heartbeat row of a server was not renewed for as long as takers wait for it. A process that acquires the leases of its
// predecessor at once must not have one that still lives. Two renewals show a process that lives: one can come after its end. Errors are
// Unavailable with ErrRuns (one lives), the context's, or the store's.
func AwaitSilence(ctx context.Context, store coord.Store, s Server, silence time.Duration) error {
	var last coord.Revision
	began, renewals := time.Now(), -1
	for {
		asked := time.Now() // a pause of this process is no silence of the other
		row, there, err := store.Get(ctx, lease.BeatKey(s.ID))
		if err != nil {
			return fault.Annotate(err, "look whether server %q runs", s.ID)
		}
		if !there {
			return nil
		}
		if b, err := lease.DecodeBeat(row.Value); err == nil && b.Missing {
			return nil
		}
		if row.Revision != last {
			began, last = time.Now(), row.Revision
			if renewals++; renewals > 1 {
				return fault.Wrap(ErrRuns, fault.Unavailable, "server %q runs already, at %s, and renews its heartbeat; stop it, or start this one with another --id and an empty directory", s.ID, s.Addr)
			}
		}
		if asked.Sub(began) >= silence {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(silenceLook):
		}
	}
}
