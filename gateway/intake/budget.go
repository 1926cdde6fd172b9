package intake

import (
	"sync"
	"sync/atomic"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// budget bounds the bytes that all requests together hold: bodies as they came, bodies unpacked, batches on their way.
// No request waits for memory: one that does not fit is answered at once, so that the sender can go elsewhere (I5).
//
//	0 ────────────────────────────────── max ──── 17/16 max
//	  requests of any table               │ tables that hold less than max/256
//
// So a table that fills it does not cause refusals for others with few rows.
type budget struct {
	max  int64
	used atomic.Int64 // written under mu

	grows atomic.Pointer[func(to int64)] // called as used grows; nil: it is not

	mu     sync.Mutex
	tables map[string]int64 // bytes of those that hold any
}

const (
	smallParts   = 256 // of the budget: a table that holds less than one is small
	reserveParts = 16  // one more is for small tables
)

// take books n bytes for a table. The error is Throttled.
func (b *budget) take(table string, n int64) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	used := b.used.Load()
	most := b.max
	if b.tables[table]+n < b.max/smallParts {
		most += b.max / reserveParts
	}
	if used+n > most {
		return fault.Errorf(fault.Throttled, "%d bytes are in flight already, at most %d are taken; try again later", used, b.max)
	}
	b.addLocked(table, n)
	return nil
}

// add books n bytes whether they fit or not, or releases -n.
func (b *budget) add(table string, n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.addLocked(table, n)
}

func (b *budget) addLocked(table string, n int64) {
	used := b.used.Add(n)
	if f := b.grows.Load(); f != nil && n > 0 {
		(*f)(used)
	}
	if b.tables == nil {
		b.tables = map[string]int64{}
	}
	if now := b.tables[table] + n; now != 0 {
		b.tables[table] = now
	} else {
		delete(b.tables, table)
	}
}

// charge is one request's share. Not for concurrent use.
type charge struct {
	of    *budget
	table string // constant from the first byte on
	held  int64
	rows  int64 // of held, for rows being decoded
}

// take adds n bytes to the share, before the memory is allocated. The error is Throttled.
func (c *charge) take(n int64) error {
	if err := c.of.take(c.table, n); err != nil {
		return err
	}
	c.held += n
	return nil
}

// note adds bytes that are already held: the size of a batch is final only after it is filled. Later requests see them.
func (c *charge) note(n int64) {
	c.of.add(c.table, n)
	c.held += n
}

// Reserve adds n bytes for rows that are being decoded. The error is Throttled; a request that is alone is not refused, or it would be for
// ever, however often it is sent again.
func (c *charge) Reserve(bytes int) error {
	n := int64(bytes)
	if err := c.take(n); err != nil {
		if c.of.used.Load() > c.held {
			return err
		}
		c.note(n)
	}
	c.rows += n
	return nil
}

// noteRows says how many bytes the rows hold that were decoded.
func (c *charge) noteRows(n int64) {
	c.note(n - c.rows)
	c.rows = n
}

// give removes n bytes from the share.
func (c *charge) give(n int64) {
	c.of.add(c.table, -n)
	c.held -= n
}

// release ends the share.
func (c *charge) release() { c.give(c.held) }
