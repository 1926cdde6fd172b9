package partition

import (
	"context"

	"github.com/spillwaydb/spillway/protocols/frame"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/brick"
)

// Followers receive the frames of a leader after its own log: the placements that follow.
type Followers interface {
	// Pass is called with every frame, in the order of the log, under the partition's lock, once the frame is appended to the
	// leader's own log and applied; own is the promise of its fsync there. It copies any part of rec that it keeps, does not
	// block, and does not call the partition.
	Pass(s, prev point.Serial, rec []byte, own brick.Wait)
	// HandOn sends the frames that were passed. It is called soon after Pass, without a lock of the partition, and does not wait.
	HandOn()
	// Await does what HandOn does, and returns nil when every listed placement has fsynced and applied all frames up to s, and an error when this can no
	// longer happen, at the end of the leader's epoch at the latest.
	Await(ctx context.Context, s point.Serial) error
	// AwaitSoon is Await for a writer that can keep its rows elsewhere: it returns an Unavailable, too, while placements that are away hold the frames up.
	AwaitSoon(ctx context.Context, s point.Serial) error
}

// passLocked passes a frame of the log on.
func (p *Partition) passLocked(f *frame.Frame, rec []byte, own brick.Wait) {
	if p.mu.chain != nil {
		p.mu.chain.Pass(f.Serial, f.Prev, rec, own)
	}
}
