package forward

import (
	"sync"
	"time"
)

// budget bounds retries: at most a tenth of all inserts, and ten a second where there are few. The unused part is kept for
// a bad moment, such as when a server stops and everything under way there moves at once. So retries never multiply the
// load of a cluster in trouble.
type budget struct {
	mu struct {
		sync.Mutex
		tokens float64
		asOf   time.Time
	}
}

const (
	budgetShare     = 0.1  // of a retry, earned by each first attempt
	budgetPerSecond = 10.0 // retries
	budgetMax       = 1000.0
)

// earn counts first attempts.
func (b *budget) earn(attempts int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mu.tokens = min(b.mu.tokens+budgetShare*float64(attempts), budgetMax)
}

// spend uses retries; false: there are not that many, and none is used.
func (b *budget) spend(now time.Time, retries int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.mu.asOf.IsZero() {
		b.mu.tokens = budgetMax
	} else if d := now.Sub(b.mu.asOf); d > 0 {
		b.mu.tokens = min(b.mu.tokens+budgetPerSecond*d.Seconds(), budgetMax)
	}
	b.mu.asOf = now
	if b.mu.tokens < float64(retries) {
		return false
	}
	b.mu.tokens -= float64(retries)
	return true
}
