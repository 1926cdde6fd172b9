package access

import (
	"hash/maphash"
	"sync/atomic"
	"time"
)

// Failures an address may have before its unknown credentials are no longer checked.
const (
	failuresBurst    = 20
	failuresInterval = time.Second // one more each
	failureSlots     = 1 << 12
)

// failures counts failed attempts by address, in a fixed 32 KiB. Addresses that share a slot share a limit; credentials
// that are already verified are always accepted, so that a neighbour's failures do not stop a working sender.
type failures struct {
	seed  maphash.Seed
	slots [failureSlots]atomic.Int64 // when the address would have all attempts back, in unix nanoseconds
}

func newFailures() *failures { return &failures{seed: maphash.MakeSeed()} }

func (f *failures) slot(remote string) *atomic.Int64 {
	return &f.slots[maphash.Comparable(f.seed, addressOf(remote))%failureSlots]
}

// blocked reports whether an address has failed too often.
func (f *failures) blocked(remote string, now time.Time) bool {
	return f.slot(remote).Load()-now.UnixNano() > int64((failuresBurst-1)*failuresInterval)
}

// note counts a failed attempt.
func (f *failures) note(remote string, now time.Time) {
	s := f.slot(remote)
	for {
		old := s.Load()
		next := min(max(old, now.UnixNano())+int64(failuresInterval), now.UnixNano()+int64(2*failuresBurst*failuresInterval))
		if s.CompareAndSwap(old, next) {
			return
		}
	}
}
