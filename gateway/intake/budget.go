package intake

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// budget bounds the bytes that all requests together hold: bodies as they came, bodies unpacked, batches on their way.
// A request that does not fit is answered at once, so that the sender can go elsewhere (I5), unless it needs so much that it would
// hardly ever fit: such requests wait for a turn (large.go).
//
//	0 ────────────────────────────────── max ──── 17/16 max ──── 5/4 max
//	  requests of any table               │ tables that hold      │ one large request, while others
//	                                      │ less than max/256     │ wait for its turn to end
//
// So a table that fills it does not cause refusals for others with few rows. Together such tables may hold a sixteenth whatever a large request has.
type budget struct {
	max  int64
	used atomic.Int64 // written under mu

	grows atomic.Pointer[func(to int64)] // called as used grows; nil: it is not

	mu     sync.Mutex
	tables map[string]int64 // bytes of those that hold any
	little int64            // bytes of the tables that hold less than max/smallParts
	large  large
	held   int           // requests that wait until open is closed; at most turnsMax
	open   chan struct{} // closed when nothing is held back any more; nil: nothing is
	waking bool          // a timer begins the next turn of a large request
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
	fits := used+n <= b.max
	if reserve := b.max / reserveParts; !fits && b.smallLocked(table, n) {
		fits = used+n <= b.max+reserve || b.little+n <= reserve
	}
	if !fits {
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
	if n < 0 {
		b.serveLocked()
	}
}

// smallLocked reports whether a table holds little with n bytes more.
func (b *budget) smallLocked(table string, n int64) bool { return b.tables[table]+n < b.max/smallParts }

// begin delays a request of a large table before its body is read, while a large request waits for memory. It is never refused here, and waits
// less than holdBackMax.
func (b *budget) begin(ctx context.Context, table string) {
	open, most := b.holdBack(table)
	if open == nil {
		return
	}
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case <-open:
	case <-timer.C:
	case <-ctx.Done():
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.held--
}

func (b *budget) holdBack(table string) (open chan struct{}, most time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.open == nil || b.held >= turnsMax || b.smallLocked(table, 0) {
		return nil, 0
	}
	if most = b.large.holdsBack(time.Now()); most == 0 {
		return nil, 0
	}
	b.held++
	b.large.heldBack = true
	return b.open, most
}

// ask has a request wait for its turn. come is closed when its need is booked; nil: it is already. ok is false if it may not wait.
func (b *budget) ask(r *largeRequest, n int64, rows bool) (come chan struct{}, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	r.need, r.rows = n, rows
	if !b.large.ask(b.max, r) {
		r.need = 0
		return nil, false
	}
	r.come = make(chan struct{})
	come = r.come
	b.serveLocked()
	if r.need == 0 {
		return nil, true
	}
	return come, true
}

// holds notes what the large request that has the turn holds now.
func (b *budget) holds(r *largeRequest, held int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	r.held = held
}

// leave ends the turn of a large request, or its wait for one.
func (b *budget) leave(r *largeRequest) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.large.leave(time.Now(), r)
	b.serveLocked()
}

// serveLocked books for the large request that has the turn, and lets others go on that were held back for it.
func (b *budget) serveLocked() {
	l := &b.large
	if l.holder == nil && len(l.waiting) == 0 && b.open == nil {
		return // nearly always
	}
	now := time.Now()
	if r, n := l.step(now, b.max, b.used.Load()); r != nil {
		b.addLocked(r.table, n)
		close(r.come)
	}
	switch waits := l.holdsBack(now) > 0; {
	case waits && b.open == nil:
		b.open = make(chan struct{})
	case !waits && b.open != nil:
		close(b.open)
		b.open = nil
	}
	if l.holder == nil && len(l.waiting) > 0 && !b.waking {
		b.waking = true // one timer at a time; Shutdown does not wait for it, and it finds nothing to do then
		time.AfterFunc(l.rest.Sub(now), func() {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.waking = false
			b.serveLocked()
		})
	}
}

// waiting is how many requests wait for memory: large ones, and those that are held back for one.
func (b *budget) waiting() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := b.held + len(b.large.waiting)
	if h := b.large.holder; h != nil && h.need > 0 {
		n++
	}
	return n
}

func (b *budget) addLocked(table string, n int64) {
	used := b.used.Add(n)
	if f := b.grows.Load(); f != nil && n > 0 {
		(*f)(used)
	}
	if b.tables == nil {
		b.tables = map[string]int64{}
	}
	was := b.tables[table]
	now := was + n
	b.little += b.littleOf(now) - b.littleOf(was)
	if now != 0 {
		b.tables[table] = now
	} else {
		delete(b.tables, table)
	}
}

// littleOf returns what a table with so many bytes adds to little: the bytes, or nothing if the table is not small.
func (b *budget) littleOf(bytes int64) int64 {
	if bytes < b.max/smallParts {
		return bytes
	}
	return 0
}

// charge is one request's share. Not for concurrent use.
type charge struct {
	of    *budget
	table string // constant from the first byte on
	held  int64
	rows  int64 // of held, for rows being decoded
	// await waits until come is closed; an error ends the waiting. nil: the request does not wait.
	await func(come <-chan struct{}) error
	large *largeRequest // it has a turn
}

// take adds n bytes to the share, before the memory is allocated. A request that needs many waits for them. Errors: Throttled, TooLarge (there
// would never be so much for one request), those of await.
func (c *charge) take(n int64) error { return c.ask(n, false) }

// Reserve adds n bytes for rows that are being decoded. The error is Throttled; a request that is alone is not refused, or it would be for
// ever, however often it is sent again.
func (c *charge) Reserve(bytes int) error {
	n := int64(bytes)
	err := c.ask(n, true)
	if err == nil {
		c.rows += n
	}
	return err
}

func (c *charge) ask(n int64, rows bool) error {
	err := c.of.take(c.table, n)
	if err == nil {
		c.held += n
		if c.large != nil {
			c.of.holds(c.large, c.held)
		}
		return nil
	}
	if !rows && never(c.of.max, c.held, n) {
		return fault.Errorf(fault.TooLarge, "the request needs %d bytes of memory, and at most %d are given to one: send it in smaller pieces",
			c.held+n, most(c.of.max))
	}
	r := c.large
	if r == nil {
		r = &largeRequest{table: c.table, held: c.held}
	}
	come, ok := c.of.ask(r, n, rows)
	if !ok {
		return err
	}
	c.large = r
	if come != nil {
		if c.await == nil || c.await(come) != nil {
			c.settle()
			if r.need == 0 {
				c.held += n // it came meanwhile
			}
			return err
		}
	}
	c.held += n
	return nil
}

// settle ends the turn of a large request: it needs nothing more.
func (c *charge) settle() {
	if c.large != nil {
		c.of.leave(c.large)
		c.large = nil
	}
}

// note books bytes that are already held: the size of a batch is final only after it is filled. Later requests see them.
func (c *charge) note(n int64) {
	c.of.add(c.table, n)
	c.held += n
}

// noteRows books the bytes of the decoded rows.
func (c *charge) noteRows(n int64) {
	c.note(n - c.rows)
	c.rows = n
	c.settle()
}

// give removes n bytes from the share.
func (c *charge) give(n int64) {
	if c.large != nil {
		c.of.holds(c.large, c.held-n)
	}
	c.of.add(c.table, -n)
	c.held -= n
}

// handOver makes n bytes of the share last until the returned function is called, once: those of an answer until it is sent.
func (c *charge) handOver(n int64) (sent func()) {
	of, table := c.of, c.table
	c.held -= n
	return func() { of.add(table, -n) }
}

// release ends the share.
func (c *charge) release() {
	c.settle()
	c.give(c.held)
}
