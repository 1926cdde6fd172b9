package clustertest

import (
	"sync/atomic"
	"testing"
	"time"
)

// standstill measures for how long, in all, a goroutine that wanted to run had to wait for a processor. A bound of an answer's time holds
// beside it: on a machine that stands still nothing answers.
type standstill struct{ waited atomic.Int64 }

const (
	standstillTick = 5 * time.Millisecond
	standstillMin  = 20 * time.Millisecond // of a tick that is late; timers are never exact
)

// watchStandstill measures until the test ends.
func watchStandstill(t testing.TB) *standstill {
	s, quit, ended := &standstill{}, make(chan struct{}), make(chan struct{})
	t.Cleanup(func() { close(quit); <-ended })
	go func() {
		defer close(ended)
		last := time.Now()
		for {
			select {
			case <-quit:
				return
			case <-time.After(standstillTick):
			}
			now := time.Now()
			if late := now.Sub(last) - standstillTick; late > standstillMin {
				s.waited.Add(int64(late))
			}
			last = now
		}
	}()
	return s
}

// sum is how long it was until now.
func (s *standstill) sum() time.Duration { return time.Duration(s.waited.Load()) }

// inTime runs f up to three times, until it reports that all was within its bound, and fails the test if it never was. Where a bound
// is broken it is broken each time; on a busy machine one process, a disk or a whole machine may stand still for seconds now and then.
func inTime(t testing.TB, what string, f func() bool) {
	t.Helper()
	for range 3 {
		if f() {
			return
		}
		t.Logf("%s: not within its bound; once more", what)
	}
	t.Errorf("%s: three times not within its bound", what)
}
