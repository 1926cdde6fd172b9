package intake

import (
	"context"
	"time"

	"github.com/spillwaydb/spillway/gateway/limits"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

// askLimits asks before the body is read whether the store has room, and the limits of the request's table.
func (f *Front) askLimits(ctx context.Context, c *call) (err error) {
	if c.TableErr != nil {
		return nil // a name that cannot be is refused where the table is looked for
	}
	c.heldBy, err = f.brakes.begin(ctx, c.Table)
	if err == nil && f.limits != nil {
		c.ticket, err = f.limits.Begin(c.Table, c.from.declared())
	}
	if err != nil {
		f.drain(c.from)
	}
	return err
}

// drainBytesMax is how much of a body is read only to keep the connection: a sender that is asked to come back soon would
// otherwise make a new one every time.
const drainBytesMax = 1 << 20

func (f *Front) drain(from source) {
	n := from.declared()
	if n < 0 || n > drainBytesMax {
		return
	}
	scratch := take[[drainBytes]byte](&f.drains)
	for body := from.body(); ; {
		if _, err := body.Read(scratch[:]); err != nil { // an error shows at the next request
			break
		}
	}
	f.drains.Put(scratch)
}

// drainBytes are read at a time: io.Discard alone would ask the system for 8 KiB.
const drainBytes = 64 << 10

// limited returns a refusal's retry time, and whether it is remote write's 429.
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
