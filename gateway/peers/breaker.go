package peers

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// Bounds of how long a server that does not answer gets no calls.
const (
	failuresMax = 3 // in a row, each of a call that began after the one before had failed
	pauseMin    = 100 * time.Millisecond
	pauseMax    = 2 * time.Second
)

// breaker stops calls to a server that does not answer.
//
//	closed ──3 failures in a row──▶ open (100 ms … 2 s, twice as long each time) ──▶ one call ──answer──▶ closed
//	                                  ▲                                                 │
//	                                  └──────────────────failure────────────────────────┘
type breaker struct {
	troubled atomic.Bool // the rest is valid; while it is false no goroutine acquires the lock

	mu struct {
		sync.Mutex
		failures int
		pause    time.Duration // of the last opening; 0: closed
		until    time.Time     // open until then
		probing  bool
		last     string    // the last failure
		lastAt   time.Time // when it was counted
	}
}

// enter reports whether a call may be made now; if not, the error says why. After nil, leave must be called.
func (b *breaker) enter(now time.Time) error {
	if !b.troubled.Load() {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.mu.pause == 0:
		return nil
	case now.Before(b.mu.until):
		return fault.Errorf(fault.Unavailable, "it did not answer and is asked again in %v (%s)", b.mu.until.Sub(now).Round(10*time.Millisecond), b.mu.last)
	case b.mu.probing:
		return fault.Errorf(fault.Unavailable, "it did not answer and is just being asked again (%s)", b.mu.last)
	}
	b.mu.probing = true
	return nil
}

// leave records the end of a call that began at some time. random is in [0, 1). Calls that fail together count once: the inserts of one request end at its deadline
// at one moment, which shows a slow server as well as one that is away.
func (b *breaker) leave(began, now time.Time, err error, random float64) {
	failed := fault.Is(err, fault.Unavailable) || errors.Is(err, context.DeadlineExceeded)
	if !failed && !b.troubled.Load() {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mu.probing = false
	switch {
	case fault.Is(err, fault.Canceled) && !failed: // the caller went away: this shows nothing about the server
	case !failed:
		b.mu.failures, b.mu.pause, b.mu.last = 0, 0, ""
		b.troubled.Store(false)
	case b.mu.failures > 0 && began.Before(b.mu.lastAt):
		b.mu.last = err.Error()
	default:
		b.troubled.Store(true)
		b.mu.failures++
		b.mu.last, b.mu.lastAt = err.Error(), now
		if b.mu.failures >= failuresMax {
			b.mu.pause = min(max(2*b.mu.pause, pauseMin), pauseMax)
			b.mu.until = now.Add(time.Duration((0.5 + random/2) * float64(b.mu.pause)))
		}
	}
}

// open reports whether calls fail at once.
func (b *breaker) open(now time.Time) bool {
	if !b.troubled.Load() {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.mu.pause > 0 && now.Before(b.mu.until)
}
