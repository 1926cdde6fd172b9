package server

import (
	"cmp"
	"slices"
	"time"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/share"
	"github.com/spillwaydb/spillway/storage/partition"
)

// tableHeads counts the memory of one table's heads within that of all heads. A table that writes faster than its rows
// can be flushed, or into thousands of partitions, must not keep out the rows of other tables (package share). It
// implements partition.HeadBytes.
type tableHeads struct {
	*share.Member
	of     *share.Pool
	weight func() int64 // of the table; nil: 1
}

func newTableHeads(of *share.Pool, weight func() int64) tableHeads {
	return tableHeads{of.Member(), of, weight}
}

// admit decides whether the table may add rows. The error is Throttled.
func (t *tableHeads) admit() error {
	if t.weight != nil {
		t.SetWeight(t.weight())
	}
	if t.Admits() {
		return nil
	}
	return fault.Errorf(fault.Throttled, "head rows take %d bytes of %d, those of this table %d, more than its share among tables of weight %d together: flushing has to catch up; try again later",
		t.of.Used(), t.of.Most(), t.Used(), max(t.of.Members(), 1))
}

// heldHead is a partition's head and the memory that its flush would free.
type heldHead struct {
	p     *partition.Partition
	bytes int64
	greed bool          // its table holds more than its share
	idle  time.Duration // since its last row
}

const (
	coldAfter   = 10 * time.Second // without rows: its memory would not fill again soon
	coldWeight  = 4
	greedWeight = 4
	// A round may last seconds; rows come meanwhile, and the worthiest heads are others then.
	roundHeadsMax = 256 // flushed before the next choice
)

// victims picks the heads to flush until excess bytes are freed, the worthiest first: freed bytes count four times
// where a head was idle for a while, since it does not fill again, and four times where its table holds more than its
// share.
// Example: with 30 MiB to free, a head of 8 MiB that is idle (worth 32) goes before a busy one of 20 MiB, and both
// before one of 4 MiB.
func victims(held []heldHead, excess int64) []heldHead {
	worth := func(h *heldHead) int64 {
		w := h.bytes
		if h.idle >= coldAfter {
			w *= coldWeight
		}
		if h.greed {
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
