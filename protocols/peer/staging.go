package peer

import (
	"context"
	"fmt"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

// StagingDo is the part of staging that an insert is.
type StagingDo uint8

const (
	// Stage keeps the rows, of any partitions, durably at the server that gets them, although it may lead none of them.
	Stage StagingDo = 1
	// Forward gives rows that were staged to the leader of their partition. They keep their rank.
	Forward StagingDo = 2
	// Forget ends the staging of a frame, which a leader keeps now. The insert has no rows.
	Forget StagingDo = 3
	// Inherit sends rows of a partition that unloads to the leader of its heir. They keep their rank, and those that the partition has already,
	// with that rank or a higher one, are left out.
	Inherit StagingDo = 4
)

// Bounds of the holders of a staged frame.
const (
	HoldersMax     = 8
	HolderBytesMax = 200
)

// Staging marks an insert of rows for a leader that is, or was, away, or of rows that another partition had. The server must know the version of streams that has it; else the insert
// is refused as Unavailable.
type Staging struct {
	Do    StagingDo
	Nonce uint64 // with Insert.Stamp the frame's name, of Stage and Forget
	// Holders are the servers that keep the frame, of Stage, in the order in which they forward it.
	Holders []string
	// Due is when the frame is forwarded, of Stage, of rows that are smeared; 0: as soon as they have a leader.
	Due point.Nanos
	// From is the partition that unloads, of Inherit; nil: the rows are of no slice of one. A server of an older build is not sent it, and accepts every slice.
	From *Slice
	// Unnamed says, of Inherit, that the sender's build does not send From, so that the rows may be of a slice. It does not travel.
	Unnamed bool
}

// Slice names the sender of rows of a partition that unloads, so that its heirs refuse rows of earlier leaders once a later one has ended them (SliceEnder).
type Slice struct {
	Partition point.PartitionID
	Epoch     point.Epoch // under which it is led by the sender; at least 1
	// Under is the epoch of the heir's lease that the sender had read before it found its own lease good. The heir's leader refuses the slice under any other, as Stale. 0:
	// the sender knows of none, and the slice only shows the heir that it is wanted.
	Under point.Epoch
}

// SliceEnder is a Storage that leads partitions into which others unload.
type SliceEnder interface {
	// EndSlices has the server refuse slices of a partition that name an epoch below one, as Stale, as long as its process lives. It returns when none is being inserted any
	// more. Errors are Unavailable and Invalid (an older build): slices may still be accepted; and Canceled.
	EndSlices(ctx context.Context, table string, parent point.PartitionID, below point.Epoch) error
}

// SealedRanker is a Storage that leads partitions which accept no more rows.
type SealedRanker interface {
	// HighestRank returns the highest rank of the rows of a partition that the server leads, that accepts no more rows, and of which none is under way: no row of it will ever be
	// acked with a higher one. Errors are Stale (that does not hold here), Invalid (an older build) and those of calls.
	HighestRank(ctx context.Context, table string, id point.PartitionID) (point.Stamp, error)
}

// String describes it, for logs.
func (s *Staging) String() string {
	if s == nil {
		return "none"
	}
	text := fmt.Sprintf("do %d frame %d holders %v", s.Do, s.Nonce, s.Holders)
	if s.Due != 0 {
		text += fmt.Sprintf(" due %d", s.Due)
	}
	if s.From != nil {
		text += fmt.Sprintf(" from %+v", *s.From)
	}
	return text
}

// Validate checks the bounds. Errors are Invalid.
func (s *Staging) Validate() error {
	if s.Do < Stage || s.Do > Inherit {
		return fault.Errorf(fault.Invalid, "operation %d of a staging insert is not known, 1 to 4 are", s.Do)
	}
	if s.From != nil && (s.Do != Inherit || s.From.Epoch == 0) {
		return fault.Errorf(fault.Invalid, "operation %d of a staging insert is of a slice of epoch %d: only inheriting has one, from epoch 1 on", s.Do, s.From.Epoch)
	}
	if s.Due < 0 || s.Due != 0 && s.Do != Stage {
		return fault.Errorf(fault.Invalid, "operation %d of a staging insert has the due time %d: only staging has one, from 1970 on", s.Do, s.Due)
	}
	if len(s.Holders) > HoldersMax || (s.Do == Stage) != (len(s.Holders) > 0) {
		return fault.Errorf(fault.Invalid, "operation %d of a staging insert has %d holders: staging has 1 to %d, the others none", s.Do, len(s.Holders), HoldersMax)
	}
	for _, h := range s.Holders {
		if h == "" || len(h) > HolderBytesMax {
			return fault.Errorf(fault.Invalid, "the name of a holder has %d bytes, 1 to %d are allowed", len(h), HolderBytesMax)
		}
	}
	return nil
}

// StagedRows asks a server for the rows staged there, of any partition, instead of those of partitions. Servers of older versions refuse it.
// Exemplars are not returned until they are forwarded.
const StagedRows Copies = 3

// StagedDeletes asks for a deletion in the rows staged at a server, of any partition, instead of those of partitions. Servers of older versions refuse it
// as Invalid.
const StagedDeletes Copies = 4

// The requests before and after a deletion in staged rows. Select.Hold names the hold. Servers of older versions refuse these as Invalid.
const (
	// StagedHolds has a server forward none of its staged rows that may match until the hold ends, and returns once none is on its way.
	StagedHolds Copies = 5
	// StagedRenewals has the hold last longer: by itself it ends after some seconds. Where it has ended the answer is Unavailable.
	StagedRenewals Copies = 6
	// StagedReleases ends the hold.
	StagedReleases Copies = 7
)
