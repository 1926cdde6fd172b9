package limits

import (
	"math"
	"time"
)

// bucket is a token bucket that may be overdrawn. The zero bucket is full at its first use.
type bucket struct {
	level float64
	at    time.Time
}

// fill lets tokens in that came since the last time, up to burst.
func (b *bucket) fill(now time.Time, rate, burst float64) {
	switch {
	case b.at.IsZero():
		b.level = burst
	case now.After(b.at):
		b.level += now.Sub(b.at).Seconds() * rate
	}
	b.level = min(b.level, burst) // also where a reload made the burst smaller
	if b.at.IsZero() || now.After(b.at) {
		b.at = now
	}
}

// take removes n tokens, whether they are there or not.
func (b *bucket) take(n float64) { b.level -= n }

// empty reports whether there is not one token, and after how long there will be.
func (b *bucket) empty(rate float64) (time.Duration, bool) {
	if b.level >= 1 {
		return 0, false
	}
	wait := (1 - b.level) / rate
	if wait > math.MaxInt64/float64(time.Second) {
		return math.MaxInt64, true
	}
	return time.Duration(wait * float64(time.Second)), true
}

// burstOf is the burst that goes with a rate.
func burstOf[T ~int64](rate, burst T) float64 {
	if burst > 0 {
		return float64(burst)
	}
	return max(1, float64(rate)*burstDefault.Seconds())
}
