package topology

import (
	"math"
	"time"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/smear"
)

// Config holds the user's settings for a table. The cut of the ring into columns is set apart, by SetColumns, because it begins
// at another time.
type Config struct {
	// Retention is how long rows are kept; 0: for ever.
	Retention time.Duration `json:"retention"`
	// PartitionWidth is the time a partition covers, aligned to its multiples since 1970.
	PartitionWidth time.Duration `json:"partition_width"`
	// Replicas is how many live placements a partition should have, 1 to ReplicasMax; 0 means 1. It is the floor that
	// Remove and Unjoin keep (C34). Partitions may be made with fewer, when fewer servers are there.
	Replicas int `json:"replicas,omitempty"`
	// Smear says which rows wait on their way to narrow partitions (C36 to C44). The zero Rule: none. It is not part of version 1.
	Smear smear.Rule `json:"-"`
	// Ring says which labels of a series decide where it lies on the ring (C95). It is set before the first partition, and never changed. It is not part of
	// version 1.
	Ring point.RingRule `json:"-"`
	// InSyncMin is how many placements must keep a row that is acknowledged as kept by all, 1 to Replicas; 0: as many as follow from Replicas. Where
	// it is set, fewer accept no rows; else a cluster that has fewer servers accepts them. It is not part of version 1.
	InSyncMin int `json:"-"`
	// InSyncWas is what InSyncMin and Replicas demanded before. SetConfig keeps or computes it, whatever its own Config has there.
	InSyncWas InSyncWas `json:"-"`
}

// PartitionWidthMin bounds how many partitions a careless setting can make.
const PartitionWidthMin = time.Second

// ReplicasMax is the highest setting of Replicas.
const ReplicasMax = 15

// Validate reports the first mistake. Errors are Invalid.
func (c Config) Validate() error {
	if c.PartitionWidth < PartitionWidthMin {
		return fault.Errorf(fault.Invalid, "partition width %v is under the minimum of %v", c.PartitionWidth, PartitionWidthMin)
	}
	if c.Retention < 0 {
		return fault.Errorf(fault.Invalid, "retention %v is negative", c.Retention)
	}
	if c.Retention > 0 && c.Retention < c.PartitionWidth {
		return fault.Errorf(fault.Invalid, "retention %v is shorter than the partition width %v, and rows go by whole partitions: make the partition width as short, too", c.Retention, c.PartitionWidth)
	}
	if c.Replicas < 0 || c.Replicas > ReplicasMax {
		return fault.Errorf(fault.Invalid, "%d replicas: choose 1 to %d", c.Replicas, ReplicasMax)
	}
	if c.InSyncMin < 0 || c.InSyncMin > max(c.Replicas, 1) {
		return fault.Errorf(fault.Invalid, "%d placements in sync of %d replicas: choose 1 to the number of replicas, or 0 for as many as follow from it", c.InSyncMin, max(c.Replicas, 1))
	}
	return c.Smear.Validate()
}

func (c Config) normal() Config {
	c.Replicas = max(c.Replicas, 1)
	return c
}

// Aligned gives the bounds of the aligned partition that a time belongs to. Times at the very ends of int64 get a
// narrower one rather than an overflow.
func (c Config) Aligned(t point.Nanos) (lo, hi point.Nanos) {
	w := int64(c.PartitionWidth)
	r := mod(t, w)
	if t < math.MinInt64+r {
		return math.MinInt64, t - r + w // the sum wraps twice and comes out right
	}
	lo = t - r
	if lo > math.MaxInt64-w {
		return lo, math.MaxInt64
	}
	return lo, lo + w
}

func mod(t, w int64) int64 {
	r := t % w
	if r < 0 {
		r += w
	}
	return r
}
