package lease

import (
	"errors"
	"time"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// Settings are numbers a user sets. All servers of a cluster must have the same ValidFor and TakeAfter.
type Settings struct {
	// RenewEvery is how often the heartbeat row is renewed, more or less by a tenth (C112). Default 1 s. Smaller: more
	// writes to the store; larger: fewer attempts before the lease is lost.
	RenewEvery time.Duration
	// ValidFor is how long a process may act after it sent a renewal that proved good (C104). Default 3 s. Larger: longer
	// pauses of the store are survived, and TakeAfter must grow.
	ValidFor time.Duration
	// TakeAfter is how long both rows must be seen unchanged before another acquires the lease (C106). Default 4 s.
	// Smaller: faster failover; at the limit that Validate enforces, clocks that differ by a tenth are no longer safe.
	TakeAfter time.Duration
	// TurnStep is how long each candidate waits for the one before it in chain order. Default 250 ms.
	TurnStep time.Duration
	// OverWait is how much longer a server waits that holds its share of partitions already (C108). Default 2 s.
	OverWait time.Duration
	// CoolDown is how long a server that gave a partition up lets others go first (C110). Default 60 s.
	CoolDown time.Duration
	// LowerEvery is how often a server above its share gives one partition up (C108). Default 10 s. Smaller: a server
	// that joins gets its share sooner, with more moves at a time.
	LowerEvery time.Duration
	// ScanEvery is how often all rows are listed although the watch shows changes (C112). Default 10 min. Smaller: omissions
	// of the watch are noticed sooner, and the store reads more.
	ScanEvery time.Duration
	// RetryAfter is the pause after a request that failed. Default 200 ms.
	RetryAfter time.Duration
	// AcquireMax bounds the requests for partitions in flight; further partitions wait their turn. Default 32.
	AcquireMax int
	// LoadMax is the load from which a server acquires only partitions that no other server wants (C111). Default 0.9.
	LoadMax float64
}

// LoadMaxDefault is the default of Settings.LoadMax.
const LoadMaxDefault = 0.9

// TakeAfterDefault is the default of Settings.TakeAfter.
const TakeAfterDefault = 4 * time.Second

func (s *Settings) setDefaults() {
	def(&s.RenewEvery, time.Second)
	def(&s.ValidFor, 3*time.Second)
	def(&s.TakeAfter, TakeAfterDefault)
	def(&s.TurnStep, 250*time.Millisecond)
	def(&s.OverWait, 2*time.Second)
	def(&s.CoolDown, time.Minute)
	def(&s.LowerEvery, 10*time.Second)
	def(&s.ScanEvery, 10*time.Minute)
	def(&s.RetryAfter, 200*time.Millisecond)
	def(&s.AcquireMax, 32)
	def(&s.LoadMax, LoadMaxDefault)
}

func def[T comparable](p *T, v T) {
	var zero T
	if *p == zero {
		*p = v
	}
}

// rateErrorPercent is how far a clock's rate may be from the truth. Crystals are within 0.02 %; a virtual machine that is
// being moved is not a crystal.
const rateErrorPercent = 10

// Validate reports every mistake. Errors are Invalid.
func (s Settings) Validate() error {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fault.Errorf(fault.Invalid, format, args...))
	}
	for _, d := range []struct {
		name  string
		value time.Duration
	}{{"renew every", s.RenewEvery}, {"valid for", s.ValidFor}, {"take after", s.TakeAfter}, {"turn step", s.TurnStep},
		{"over wait", s.OverWait}, {"cool-down", s.CoolDown}, {"lower every", s.LowerEvery}, {"scan every", s.ScanEvery}, {"retry after", s.RetryAfter}} {
		if d.value <= 0 {
			bad("lease: %s must be positive, is %v", d.name, d.value)
		}
	}
	if s.TakeAfter*(100-rateErrorPercent) <= s.ValidFor*(100+rateErrorPercent) {
		bad("lease: take after %v is too soon after valid for %v: clocks that differ by %d %% would let two servers act", s.TakeAfter, s.ValidFor, rateErrorPercent)
	}
	if s.RenewEvery*2 >= s.ValidFor {
		bad("lease: valid for %v leaves no second attempt when renewing every %v", s.ValidFor, s.RenewEvery)
	}
	if s.AcquireMax < 1 {
		bad("lease: at least one request for a partition must be allowed, not %d", s.AcquireMax)
	}
	return errors.Join(errs...)
}
