package replica

import (
	"slices"
	"time"

	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/protocols/point"
)

// Member is a placement with the store that it lies in: an emptied directory is another member (C72).
type Member = lease.Member

// Time is the reading of the server's own clock; only differences are meaningful.
type Time = time.Duration

// Segment describes a segment in an offer.
type Segment struct {
	ID, Base point.SegmentID
	Major    bool
	Size     uint64           // bytes of the file
	Checksum uint64           // of the whole file
	Ends     []point.EpochEnd // of the chain up to it and with it; in an offer, of the whole chain
}

// Reason is why an offer is declined; the numbers are those of the link's messages.
type Reason uint8

// The reasons of the SEGMENT protocol (C64), and two more.
const (
	Exists     Reason = 1 // the placement holds it
	Overloaded Reason = 2 // no slot is free, or the placement does not follow the sender yet: later
	Invalid    Reason = 3 // the bytes are not those that were offered
	Inflight   Reason = 4 // another server sends it just now
	OutOfOrder Reason = 5 // its base is not here, or it lacks frames that segments here hold
	StaleEpoch Reason = 6 // the sender's epoch was overtaken
	NoSpace    Reason = 7
)

// String returns the reason's name, for logs and scripts.
func (r Reason) String() string {
	return [...]string{"?", "exists", "overloaded", "invalid", "inflight", "out of order", "stale epoch", "no space"}[min(int(r), 7)]
}

// covers reports whether a holds all frames that b holds: ends are per epoch the last frame, and each epoch begins at its first.
func covers(a, b []point.EpochEnd) bool {
	for _, e := range b {
		if !slices.ContainsFunc(a, func(x point.EpochEnd) bool { return x.Epoch == e.Epoch && x.Seq >= e.Seq }) {
			return false
		}
	}
	return true
}
