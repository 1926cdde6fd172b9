package head

import (
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// cpu measures the processor time of the benchmark's thread, which a busy machine stretches less than wall time.
type cpu struct{ from, sum time.Duration }

func (c *cpu) start(b *testing.B) {
	runtime.LockOSThread()
	b.Cleanup(runtime.UnlockOSThread)
	c.resume()
}

func (c *cpu) now() time.Duration {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts)
	return time.Duration(ts.Nano())
}

func (c *cpu) resume() { c.from = c.now() }

func (c *cpu) pause() { c.sum += c.now() - c.from }

// report gives the time of a row.
func (c *cpu) report(b *testing.B, rows int) {
	c.pause()
	b.ReportMetric(float64(c.sum)/float64(rows), "cpu-ns/row")
}
