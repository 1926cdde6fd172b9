// Package pace says how many of the requested items may go now: a bucket of tokens that gives as many as it has instead
// of all or nothing, so that a caller that asks for too much makes some progress every time.
package pace

import (
	"sync"
	"time"
)

// Bucket gives out tokens at a rate. Its methods may be called from many goroutines.
type Bucket struct {
	// Constant after New.
	perSecond float64
	most      float64

	mu struct {
		sync.Mutex
		tokens float64
		asOf   time.Time
	}
}

// New makes a full bucket of most tokens, filled at so many a second.
func New(perSecond float64, most int) *Bucket {
	b := &Bucket{perSecond: perSecond, most: float64(most)}
	b.mu.tokens = b.most
	return b
}

// Take gives as many of n tokens as there are.
func (b *Bucket) Take(now time.Time, n int) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	if d := now.Sub(b.mu.asOf); d > 0 {
		if !b.mu.asOf.IsZero() {
			b.mu.tokens = min(b.mu.tokens+b.perSecond*d.Seconds(), b.most)
		}
		b.mu.asOf = now
	}
	n = max(0, min(n, int(b.mu.tokens)))
	b.mu.tokens -= float64(n)
	return n
}
