package peer

import (
	"errors"
	"fmt"
	"time"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/protocols/rank"
)

// aheadError is an answer, not a failure: nothing is kept, and whoever sent the insert gives it a new stamp by the
// server's time.
type aheadError struct{ clock point.Nanos }

func (e *aheadError) Error() string {
	return fmt.Sprintf("the stamp of the insert is more than %v ahead of the servers' clocks, by which it is %s", rank.AheadMax, time.Unix(0, e.clock).UTC().Format(time.RFC3339Nano))
}

// NewAhead is what Stream.Insert answers to a stamp too far ahead of the servers' clocks, by which it is clock. The Kind is
// Stale.
func NewAhead(clock point.Nanos) error {
	return fault.Wrap(&aheadError{clock}, fault.Stale, "nothing was kept, it needs a new stamp")
}

// IsAhead reports whether an insert was answered with NewAhead, and gives the servers' time.
func IsAhead(err error) (clock point.Nanos, ok bool) {
	var e *aheadError
	if !errors.As(err, &e) {
		return 0, false
	}
	return e.clock, true
}
