package kafka

import (
	"context"
	"time"

	"github.com/spillwaydb/spillway/protocols/budget"
)

// followPeriod is the longest delay after which reading follows the memory of the process: less memory, fewer records.
const followPeriod = 100 * time.Millisecond

// bookQuanta is the number of quanta in InFlightBytesMax: records are booked so much ahead (budget.Ahead).
const bookQuanta = 64

// fetchRounds is how many fetches of one broker the bound of records in flight holds where memory is short.
const fetchRounds = 8

// bounds divides memory between records in flight and records that wait in their topics: each may have the part that the other leaves, at least half of the
// memory, and never more than most. Both are positive, so that without any memory one record after the other is still read: a share is full as soon as it holds
// a record, and empty again when that is written.
func bounds(most, memory, inFlight, waiting int64) (inFlightMax, waitingMax int64) {
	return min(most, max(memory/2, memory-waiting, 1)), min(most, max(memory/2, memory-inFlight, 1))
}

// roomOf returns how much of the memory of the process records may have: the floor of their account, and half of the largest possible amount above it. The
// other half stays free for others, however long records stand still.
func roomOf(memory *budget.Account) int64 {
	floor := memory.Share().Floor
	return floor + (memory.Limit()-floor)/2
}

// newBooking books for an account; nil: records are not counted.
func newBooking(memory *budget.Account, inFlightMax int64) *budget.Ahead {
	if memory == nil {
		return nil
	}
	return budget.NewAhead(memory, inFlightMax/bookQuanta)
}

// followMemory has the bounds follow the memory of the process until ctx ends.
func (c *Consumer) followMemory(ctx context.Context) {
	for {
		c.fit()
		if !sleep(ctx, followPeriod) {
			return
		}
	}
}

// fit books the records that are held, and sets the bounds of the rest.
func (c *Consumer) fit() {
	memory := roomOf(c.deps.Memory)
	c.mu.Lock()
	held := c.heldLocked()
	was := [2]int64{c.shares.max, c.queue.laterMax}
	c.shares.max, c.queue.laterMax = bounds(c.settings.InFlightBytesMax, memory, c.shares.used, c.queue.laterBytes)
	c.inFlightMax.Store(c.shares.max)
	changed := was != [2]int64{c.shares.max, c.queue.laterMax}
	if changed {
		c.wakeLocked() // rows that wait may have to leave
	}
	c.mu.Unlock()
	if held > 0 {
		c.booking.Cover(held)
	}
	c.booking.Trim(held)
	if changed {
		for _, m := range c.members {
			m.adapt()
		}
		c.turn()
	}
}

// heldLocked is the memory of records: in flight, waiting in their topics, fetched by the clients but not polled, and before and behind that.
func (c *Consumer) heldLocked() int64 {
	buffered, unpacked := c.fetchedLocked()
	polled := c.shares.used + c.queue.laterBytes
	c.polled.Store(polled)
	return c.raw() + polled + max(buffered, unpacked)
}

// raw is the memory of answers before they are records, and of what workers make of records.
func (c *Consumer) raw() int64 { return c.answers.held() + c.decoding.Load() }

// cover books so many bytes, which are held already, if that was not done ahead.
func (c *Consumer) cover(held int64) {
	if c.booking != nil {
		c.booking.Cover(held)
	}
}

// adapt has the next fetches ask for as much as batches grow by and memory allows.
func (m *member) adapt() {
	m.c.turning.Lock()
	defer m.c.turning.Unlock()
	m.c.mu.Lock()
	most, client := m.cluster.FetchBytesMax, m.client
	if bound := m.c.shares.max; bound < m.c.settings.InFlightBytesMax {
		most = int32(min(int64(most), max(bound/fetchRounds, fetchBytesMin)))
	}
	m.c.mu.Unlock()
	if client == nil {
		return
	}
	if n, changed := m.fetch.adapt(m.cluster.FetchBytesMax, most); changed {
		client.UpdateFetchMaxBytes(n, min(1<<20, n))
	}
}
