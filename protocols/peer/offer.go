package peer

import (
	"context"
	"errors"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

// Offerer is a Stream whose server may refuse series that are new to it, since their table has its share of those that the server has memory for.
// Gateways offer the series of rows for a leader. They define those of rows that are staged, and servers those of rows that others accepted: an
// acked row is not refused later.
type Offerer interface {
	// Offer is Define, but for the series that it refuses. They stay undefined, and may be offered or defined later.
	Offer(ctx context.Context, defs []Def) (Refused, error)
}

// Refused lists series that a server refused, and says why.
type Refused struct {
	IDs    []point.SeriesID // as often as they were offered
	Reason string           // the same for all
}

// refusedError is Refused on its way between processes: an answer, not a failure.
type refusedError struct{ Refused }

func (e *refusedError) Error() string { return e.Reason }

// AsError makes an error of the Kind Invalid, for RefusedOf; nil where nothing is refused.
func (r Refused) AsError() error {
	if len(r.IDs) == 0 {
		return nil
	}
	return fault.Wrap(&refusedError{r}, fault.Invalid, "%d series are refused", len(r.IDs))
}

// RefusedOf returns the Refused of which AsError made err, or an error that err wraps; false: it made neither.
func RefusedOf(err error) (Refused, bool) {
	var e *refusedError
	if !errors.As(err, &e) {
		return Refused{}, false
	}
	return e.Refused, true
}
