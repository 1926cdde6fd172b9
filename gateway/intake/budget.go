package intake

import (
	"sync/atomic"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// budget bounds the bytes that all requests together hold: bodies as they came, bodies unpacked, batches on their way.
// Nobody waits for it: a request that does not fit is answered at once, so that the sender can go elsewhere (I5).
type budget struct {
	max  int64
	used atomic.Int64
}

// charge is one request's share. Not for concurrent use.
type charge struct {
	of   *budget
	held int64
}

// take adds n bytes to the share, before the memory is taken. The error is Throttled.
func (c *charge) take(n int64) error {
	if c.of.used.Add(n) > c.of.max {
		c.of.used.Add(-n)
		return fault.Errorf(fault.Throttled, "%d bytes are in flight already, at most %d are taken; try again later", c.of.used.Load(), c.of.max)
	}
	c.held += n
	return nil
}

// note adds bytes that are held already: a batch's size is known only when it is filled. Later requests see them.
func (c *charge) note(n int64) {
	c.of.used.Add(n)
	c.held += n
}

// give takes n bytes off the share again.
func (c *charge) give(n int64) {
	c.of.used.Add(-n)
	c.held -= n
}

// release ends the share.
func (c *charge) release() { c.give(c.held) }
