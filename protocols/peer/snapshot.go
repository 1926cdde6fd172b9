package peer

import (
	"context"
	"io"

	"github.com/spillwaydb/spillway/protocols/point"
)

// Snapshots is a Storage of which backups are made.
type Snapshots interface {
	// OpenSnapshot flushes a partition that the server leads, and returns its segments as they are then: every row that was acked before the call is in
	// them. The caller closes it; until then no segment of it is deleted. Errors are Stale (another server leads it), Unavailable, Corrupt, Canceled;
	// Invalid from a server of an older build.
	OpenSnapshot(ctx context.Context, table string, id point.PartitionID) (Snapshot, error)

	// StagedFrames passes give all rows of a table that are staged at the server, as encoded frames that define their series. give does not keep them.
	// A row that was staged here before the call, and is not passed, is acked by the leader of its partition. Errors are those of OpenSnapshot, and those of give.
	StagedFrames(ctx context.Context, table string, give func(frame []byte) error) error
}

// Snapshot is a partition at a moment. For one goroutine.
type Snapshot interface {
	// Entry is the catalogue entry of the placement, which lists the segments (storage/partition, State); nil: the partition never had a row.
	Entry() []byte
	// Open reads the file of a segment. The one before must be closed. Errors are NotFound (it is not in the snapshot), Unavailable.
	Open(id point.SegmentID) (io.ReadCloser, error)
	Close() error
}
