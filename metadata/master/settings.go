package master

import (
	"errors"
	"time"

	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

// Settings are numbers a user sets.
type Settings struct {
	// DeadAfter is how long a server must be silent before the placements that hold rows on it are replaced. Default 10 min.
	// Smaller: replicas are back sooner, and a server that only restarts slowly costs a copy of all it has.
	DeadAfter time.Duration
	// EmptyAfter is the same for partitions never written to: moving them costs nothing. Default 30 s. Smaller:
	// a restart moves partitions to and fro.
	EmptyAfter time.Duration
	// SettleAfter is how long a server must have been live before partitions are moved there for balance. Default 1 min.
	// Larger: a server that comes and goes has less effect.
	SettleAfter time.Duration
	// Ahead is how far before "now" the partitions of tables in use are made. Default 10 min. Larger: the coordination
	// store may be away longer without a write that has no partition; more partitions exist.
	Ahead time.Duration
	// SplitBytes is the size from which a partition is split, and near which those to come should close. Default 1 GiB; negative: neither.
	SplitBytes int64
	// PresplitAhead is how far before "now" partitions are cut by the forecast of their growth. Default 2 h; negative: never. Larger: more partitions exist
	// that no server leads yet.
	PresplitAhead time.Duration
	// ClosedAfter is how long after its end a partition counts as closed: late rows come until then. Default 1 h.
	ClosedAfter time.Duration
	// MergeFrom is from how many partitions of a table on closed neighbours with rows are merged: those narrower than half of the first of MergeInto into one for each stretch of
	// that length, and from five times as many on those of half of the second. Default 200; negative: they stay. Smaller: fewer partitions, and more rows are written again.
	MergeFrom int
	// MergeInto are the lengths. Default an hour and a day.
	MergeInto [2]time.Duration
	// MovesMax bounds how many partitions one round moves. Default 64. Larger: balance comes sooner, with more at a time.
	MovesMax int
	// FillsMax bounds how many partitions with rows are copied to a server at a time. Default 16. Larger: more small ones a round, and more that are half copied if
	// it dies.
	FillsMax int
	// BalanceBytes is by how much the rows on two servers differ, at least, before closed partitions move from the one to the other, besides a fifth of the mean.
	// Default 256 MiB; negative: none moves. Smaller: servers are more even, and more is copied.
	BalanceBytes int64
	// BalanceRows is by how many rows a second, at least, the busier of two servers has less after a lead was handed over from the one to the other, besides a twentieth of
	// the mean; twice all that where a copy has to be moved first. Default 1,000; negative: neither. Smaller: servers are more even, and writers wait for new leaders more often.
	BalanceRows int64
	// RestFor is how long two servers are left alone after a lead went from the one to the other: a new leader knows the load of a partition after two looks
	// (storage/lead/rules), and its heartbeat comes a second later. Default 30 s. HandedFor is how long the partition stays then. Default 10 min, and no longer.
	// Smaller: loads are even sooner, and go to and fro where they change fast.
	RestFor, HandedFor time.Duration
	// MovedFor is how long the copies of a partition stay after one was moved for load. Default 30 min, and no longer than an hour. Smaller: more is copied where loads
	// change.
	MovedFor time.Duration
	// CopyRate is how many bytes a second a server sends to others: a copy is moved for load only where it pays off. Default 64 MiB.
	CopyRate int64
	// CreateMax bounds how many partitions one round makes. Default 256.
	CreateMax int
	// DropMax bounds how many partitions one round drops, in one transaction on each map, and of how many it sweeps the lease
	// rows, some sixty to a transaction of the store. Default 16,384. Larger: a round lasts longer.
	DropMax int
	// RoomFrom is from how many partitions of a table on unused ones are merged beyond its partition width, so that rows of new times
	// find room. Default 4/5 of topology.TablePartitionsMax.
	RoomFrom int
	// RetentionConfirmed is the time up to which the operator confirms the clocks: while they are not later, partitions that retention would
	// hold are dropped (package retention). Default 0: not confirmed.
	RetentionConfirmed point.Nanos
	// ShareHosts lets several placements of a partition lie on one host, for development (C82). Default false.
	ShareHosts bool

	// Every is how often the runner looks, more or less by a quarter. Default 5 s.
	Every time.Duration
	// ActFor is how long a master acts after it sent a renewal that proved good; another becomes master when the row did not change for
	// TakeAfter. Default 3 s and 4 s.
	ActFor, TakeAfter time.Duration
}

const splitBytesDefault = 1 << 30

// SetDefaults sets every unset field to its default.
func (s *Settings) SetDefaults() {
	def(&s.DeadAfter, 10*time.Minute)
	def(&s.EmptyAfter, 30*time.Second)
	def(&s.SettleAfter, time.Minute)
	def(&s.Ahead, 10*time.Minute)
	def(&s.SplitBytes, splitBytesDefault)
	def(&s.PresplitAhead, 2*time.Hour)
	def(&s.ClosedAfter, time.Hour)
	def(&s.MergeFrom, 200)
	def(&s.MergeInto, [2]time.Duration{time.Hour, 24 * time.Hour})
	def(&s.MovesMax, 64)
	def(&s.FillsMax, 16)
	def(&s.BalanceBytes, 256<<20)
	def(&s.BalanceRows, 1000)
	def(&s.RestFor, 30*time.Second)
	def(&s.HandedFor, handedMax)
	def(&s.MovedFor, movedMax/2)
	def(&s.CopyRate, 64<<20)
	def(&s.CreateMax, 256)
	def(&s.DropMax, 16_384)
	def(&s.RoomFrom, topology.TablePartitionsMax/5*4)
	def(&s.Every, 5*time.Second)
	def(&s.ActFor, 3*time.Second)
	def(&s.TakeAfter, 4*time.Second)
}

func def[T comparable](p *T, v T) {
	var zero T
	if *p == zero {
		*p = v
	}
}

// Validate reports every mistake. Errors are Invalid.
func (s Settings) Validate() error {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fault.Errorf(fault.Invalid, "master: "+format, args...))
	}
	for _, d := range []struct {
		name  string
		value time.Duration
	}{{"dead after", s.DeadAfter}, {"empty after", s.EmptyAfter}, {"settle after", s.SettleAfter}, {"ahead", s.Ahead},
		{"closed after", s.ClosedAfter}, {"every", s.Every}, {"act for", s.ActFor}} {
		if d.value <= 0 {
			bad("%s must be positive, is %v", d.name, d.value)
		}
	}
	if s.EmptyAfter > s.DeadAfter {
		bad("empty after %v is later than dead after %v", s.EmptyAfter, s.DeadAfter)
	}
	if s.TakeAfter*9 <= s.ActFor*11 {
		bad("take after %v is too soon after act for %v: clocks that differ by a tenth would let two plan", s.TakeAfter, s.ActFor)
	}
	if s.RestFor < 0 || s.HandedFor < 0 || s.HandedFor > handedMax {
		bad("a lead that was handed over stays for up to %v, not %v, and its servers rest for a time, not %v", handedMax, s.HandedFor, s.RestFor)
	}
	if s.MovedFor < 0 || s.MovedFor > movedMax || s.CopyRate < 1 {
		bad("copies of a partition stay for up to %v after one was moved, not %v, and rows are copied at one byte a second or more, not %d", movedMax, s.MovedFor, s.CopyRate)
	}
	if s.MovesMax < 1 || s.FillsMax < 1 || s.CreateMax < 1 || s.DropMax < 1 {
		bad("moves, fills, creates and drops of a round must be at least one each, are %d, %d, %d and %d", s.MovesMax, s.FillsMax, s.CreateMax, s.DropMax)
	}
	return errors.Join(errs...)
}
