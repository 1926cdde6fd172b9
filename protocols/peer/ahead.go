package peer

import (
	"errors"
	"fmt"
	"time"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/protocols/rank"
)

// aheadError is an answer, not a failure: nothing is kept, and the sender gives the insert a new stamp.
type aheadError struct {
	clock  point.Nanos // 0: the stamp may have been accepted before, or is late
	newest point.Stamp // if it is late: a stamp that the partition accepted; else 0
}

func (e *aheadError) Error() string {
	if e.newest != 0 {
		return fmt.Sprintf("the stamp of the insert is more than %v behind one that its partition took, of %s", rank.LateMax, time.Unix(0, rank.Time(e.newest)).UTC().Format(time.RFC3339Nano))
	}
	if e.clock == 0 {
		return "an insert with this stamp was taken before, or so many others meanwhile that it may have been"
	}
	return fmt.Sprintf("the stamp of the insert is more than %v ahead of the servers' clocks, by which it is %s", rank.AheadMax, time.Unix(0, e.clock).UTC().Format(time.RFC3339Nano))
}

// NewAhead is Stream.Insert's answer to a stamp too far ahead of the servers' clocks, which show clock. The Kind is Stale.
func NewAhead(clock point.Nanos) error {
	return fault.Wrap(&aheadError{clock: clock}, fault.Stale, "nothing was kept, it needs a new stamp")
}

// NewSeen is Stream.Insert's answer to a stamp that the partition accepted before, or may have accepted: a later
// try of the same insert was faster (rank.Seen). The Kind is Stale.
func NewSeen() error {
	return fault.Wrap(&aheadError{}, fault.Stale, "nothing was kept, it needs a new stamp")
}

// NeedsStamp reports whether an insert needs a new stamp, and returns the servers' time after NewAhead, 0 after NewSeen
// and NewLate.
func NeedsStamp(err error) (clock point.Nanos, ok bool) {
	var e *aheadError
	if !errors.As(err, &e) {
		return 0, false
	}
	return e.clock, true
}

// NewLate is Stream.Insert's answer to a stamp that is too far behind one that the partition accepted (rank.Seen.Late): the gateway may have given the insert up,
// and its rows may be staged, or have come another way. The Kind is Stale.
func NewLate(newest point.Stamp) error {
	return fault.Wrap(&aheadError{newest: newest}, fault.Stale, "nothing was kept, it needs a new stamp")
}

// StampAbove returns the stamp that a new one has to be above, after NewLate.
func StampAbove(err error) (newest point.Stamp, ok bool) {
	var e *aheadError
	if !errors.As(err, &e) || e.newest == 0 {
		return 0, false
	}
	return e.newest, true
}
