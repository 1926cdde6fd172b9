package intake

import (
	"io"
	"time"

	"github.com/spillwaydb/spillway/gateway/limits"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

// askLimits asks before the body is read whether the store has room, and the limits of the request's table.
func (f *Front) askLimits(c *call) (err error) {
	if c.TableErr != nil {
		return nil // a name that cannot be is refused where the table is looked for
	}
	c.heldBy, err = f.brakes.begin(c.Table)
	if err == nil && f.limits != nil {
		c.ticket, err = f.limits.Begin(c.Table, c.from.declared())
	}
	if err != nil {
		drain(c.from)
	}
	return err
}

// drainBytesMax is how much of a body is read only to keep the connection: a sender that is told to come back soon would
// otherwise make a new one every time.
const drainBytesMax = 1 << 20

func drain(from source) {
	if n := from.declared(); n >= 0 && n <= drainBytesMax {
		_, _ = io.Copy(io.Discard, from.body()) // what goes wrong shows at the next request
	}
}

// limited is what a refusal says of when to come back, and whether it is remote write's 429.
func (f *Front) limited(c *call, err error, refused []point.Refusal) (retryAfter time.Duration, tooMany bool) {
	retryAfter = limits.RetryAfter(err, f.settings.RetryAfter)
	if limits.Limited(err) {
		return retryAfter, true
	}
	if t := c.ticket.Table(); t != nil && t.Values().NewSeriesPerSecond > 0 {
		for i := range refused {
			if refused[i].Kind == fault.Throttled {
				return retryAfter, true
			}
		}
	}
	return retryAfter, false
}
