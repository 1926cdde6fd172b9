package point

import (
	"fmt"
	"math"
	"strconv"
)

// SeriesID is the number a Dict gives a series; dense from 0, meaningful only together with that Dict's generation.
type SeriesID uint32

// DenseID numbers the series of one partition from 0 in the order of their definitions in its log.
type DenseID uint32

// PartitionID names a partition within its table.
type PartitionID uint64

// PlacementID names one assignment of a partition to a server; random, new at every assignment (C30, C72).
type PlacementID uint64

// String prints 16 hexadecimal digits, as in logs and file names.
func (p PlacementID) String() string { return fmt.Sprintf("%016x", uint64(p)) }

// Epoch is the fencing token of a lease.
type Epoch uint64

// Serial is given to each frame by the head of its chain. Seq goes on rising through epochs: it never restarts at 1.
type Serial struct {
	Epoch Epoch
	Seq   uint64
}

// Less orders serials of one log: by epoch, then by seq.
func (s Serial) Less(o Serial) bool {
	return s.Epoch < o.Epoch || s.Epoch == o.Epoch && s.Seq < o.Seq
}

// String prints epoch/seq.
func (s Serial) String() string {
	return strconv.FormatUint(uint64(s.Epoch), 10) + "/" + strconv.FormatUint(s.Seq, 10)
}

// SegmentID names a segment of a partition: unique without agreement, because one epoch has one writer.
type SegmentID struct {
	Epoch Epoch
	Seq   uint64
}

// IsZero reports whether the id names nothing, as the base of the first segment does (C49).
func (s SegmentID) IsZero() bool { return s == SegmentID{} }

// String prints epoch-seq, as in file names.
func (s SegmentID) String() string {
	return strconv.FormatUint(uint64(s.Epoch), 10) + "-" + strconv.FormatUint(s.Seq, 10)
}

// EpochEnd means that of this epoch the frames up to and including Seq are contained.
type EpochEnd struct {
	Epoch Epoch  `json:"epoch"`
	Seq   uint64 `json:"seq"`
}

// Stamp is the rank of a row: a hybrid logical clock, unix nanoseconds with the low 10 bits replaced by a gateway's number
// (protocols/rank). A gateway gives it, the leader of the partition raises it. Between two values at one timestamp the
// higher one wins; rows of one frame share one and the later row wins.
type Stamp uint64

// Nanos is a unix time in nanoseconds.
type Nanos = int64

// ClockFirst, 2026-01-01T00:00:00Z, is before the first build that ran anywhere. A clock with an earlier reading was never set, as at the boot of a
// machine without a battery, until NTP sets it.
const ClockFirst Nanos = 1_767_225_600_000_000_000

// MillisOf gives the millisecond a nanosecond lies in: floor, also for negative times.
func MillisOf(ns Nanos) int64 {
	ms := ns / 1e6
	if ns%1e6 < 0 {
		ms--
	}
	return ms
}

// NanosOf gives the first nanosecond of a millisecond, saturating at the ends of int64: Prometheus' default bounds
// overflow in nanoseconds.
func NanosOf(ms int64) Nanos {
	const perMilli = 1_000_000
	switch {
	case ms > math.MaxInt64/perMilli:
		return math.MaxInt64
	case ms < math.MinInt64/perMilli:
		return math.MinInt64
	}
	return ms * perMilli
}

// LastNanosOf gives the last nanosecond of a millisecond, saturating.
func LastNanosOf(ms int64) Nanos {
	if ms >= math.MaxInt64/1_000_000 {
		return math.MaxInt64
	}
	return max(NanosOf(ms+1), math.MinInt64+1) - 1
}

// Level is the promise of an ack (I1). The zero Level is the default, All.
type Level uint8

const (
	// All: fsynced by every placement of the chain.
	All Level = iota
	// One: fsynced in one brick.
	One
	// Received: in memory.
	Received
)

// String gives the level's name in headers and settings.
func (l Level) String() string {
	switch l {
	case All:
		return "all"
	case One:
		return "one"
	case Received:
		return "received"
	}
	return "level(" + strconv.Itoa(int(l)) + ")"
}

// StaleNaN is the bit pattern of Prometheus' stale marker. It is a value like any other and its bits are kept.
const StaleNaN uint64 = 0x7ff0000000000002

// IsStale reports whether v is the stale marker, by its bits.
func IsStale(v float64) bool { return math.Float64bits(v) == StaleNaN }
