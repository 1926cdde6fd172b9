package server

import (
	"cmp"
	"slices"
	"sync/atomic"
	"time"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/storage/partition"
)

// heads shares the memory of head rows among tables. One table that writes faster than its rows can be flushed, or into
// thousands of partitions, must not keep the rows of others out.
//
//	0 ──────────────────── ¾ max ─────────── max
//	  whoever comes, as he   │ tables within   │ nobody
//	  comes                  │ their share     │
//
// Up to three quarters everybody is taken: what nobody else needs is there to be used. In the last quarter a table is taken
// only while it holds less than its share of what is left (pure: admits). So the whole never exceeds max by more than what is
// on its way, and a table that holds less than max/5n is never refused because of the n-1 others. A table that is alone gets
// all of it.
type heads struct {
	max    int64 // constant after Open
	all    atomic.Int64
	tables atomic.Int64 // that hold more than max/tableWorth
}

// tableWorth is the part of max below which a table does not count as one that shares: thousands of tables of a few rows each
// take nothing from the share of others.
const tableWorth = 1024

// tableHeads is what the heads of one table take; it implements partition.HeadBytes.
type tableHeads struct {
	of   *heads
	used atomic.Int64
}

// Add counts n more bytes, or fewer.
func (t *tableHeads) Add(n int64) {
	t.of.all.Add(n)
	worth := t.of.max / tableWorth
	now := t.used.Add(n)
	switch was := now - n; {
	case was <= worth && now > worth:
		t.of.tables.Add(1)
	case was > worth && now <= worth:
		t.of.tables.Add(-1)
	}
}

// admit says whether the table may add rows. The error is Throttled.
func (t *tableHeads) admit() error {
	all := t.of.all.Load()
	if all <= t.of.max/4*3 { // mostly
		return nil
	}
	used, n := t.used.Load(), t.of.tables.Load()
	if admits(t.of.max, all, used, n) {
		return nil
	}
	return fault.Errorf(fault.Throttled, "head rows take %d bytes of %d, those of this table %d, more than its share among %d tables: flushing has to catch up; try again later",
		all, t.of.max, used, max(n, 1))
}

// admits is the rule: all bytes are taken of most, used of them by the table that asks, which is one of n.
func admits(most, all, used, n int64) bool {
	switch {
	case all > most:
		return false
	case n <= 1 || all <= most/4*3:
		return true
	}
	return used <= min(most, 4*(most-all))/n
}

// heldHead is what a flush of one partition would give back.
type heldHead struct {
	p     *partition.Partition
	bytes int64
	table int64         // bytes of all heads of its table
	idle  time.Duration // since its last row
}

const (
	coldAfter     = 10 * time.Second // without rows: nothing of it would be in memory again soon
	coldWeight    = 4
	greedWeight   = 4
	roundHeadsMax = 256 // flushed before it is looked again which are worth it
)

// victims picks the heads to flush until excess bytes are given back, the worthiest first: what they give back counts four
// times where nothing was written for a while, since it does not come again, and four times where the table holds more than
// its share.
func victims(held []heldHead, excess, share int64) []heldHead {
	worth := func(h *heldHead) int64 {
		w := h.bytes
		if h.idle >= coldAfter {
			w *= coldWeight
		}
		if h.table > share {
			w *= greedWeight
		}
		return w
	}
	slices.SortStableFunc(held, func(a, b heldHead) int { return cmp.Compare(worth(&b), worth(&a)) })
	n := 0
	for ; n < len(held) && n < roundHeadsMax && excess > 0; n++ {
		excess -= held[n].bytes
	}
	return held[:n]
}
