package partition

import (
	"fmt"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/series"
)

// TestCoolingWhileSeriesGoQuietFreesNothingTwice: a cooling released the same series that were just being checked for silence, and the process ended.
func TestCoolingWhileSeriesGoQuietFreesNothingTwice(t *testing.T) {
	b := openBenchWith(t, vfs.NewMem(), 1, hushed)
	defer b.close()
	for round := range 30 {
		var r Rows
		for i := range 2000 {
			r.Refs = append(r.Refs, b.index.Intern(labelsOf(fmt.Sprint(i+round*1000))))
			r.Times, r.Values = append(r.Times, point.Nanos(round)), append(r.Values, 1)
		}
		b.stamp += 1 << 20
		r.Stamp = b.stamp
		b.must(b.Append(&r))
		b.index.Release(r.Refs...)
		stop, done := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(done)
			for {
				select {
				case <-stop:
					return
				default:
				}
				if b.Cool(time.Now().Add(time.Hour), 0) {
					b.index.Sweep()
				}
			}
		}()
		b.must(b.Flush(t.Context(), ByAge))
		close(stop)
		<-done
	}
	b.index.Sweep()
	held := map[series.Ref]bool{}
	for i := range 2000 {
		ref := b.index.Intern(labelsOf(fmt.Sprint("new", i)))
		if held[ref] {
			t.Fatalf("series %d is two series", ref)
		}
		held[ref] = true
		defer b.index.Release(ref)
	}
}

// TestNarrowPartitionsCoolEarly: when its time has passed, such a partition is flushed and cools soon, and stays warm for twice as
// long each time that rows come late.
func TestNarrowPartitionsCoolEarly(t *testing.T) {
	b := openBench(t, vfs.NewMem(), 1)
	defer b.close()
	b.ident.TimeHi = b.ident.TimeLo + point.NarrowMax
	idle := b.settings.narrowIdle()
	for round, want := range []time.Duration{idle, 2 * idle, 4 * idle} {
		b.must(b.put("a", point.Nanos(round), 1))
		written := b.Shape().LastWrite
		b.must(b.Maintain(t.Context(), written.Add(idle-1), NotDue))
		if b.HeadRows() != 1 {
			t.Fatalf("round %d: flushed while rows may come", round)
		}
		b.must(b.Maintain(t.Context(), written.Add(idle), NotDue))
		if b.HeadRows() != 0 {
			t.Fatalf("round %d: not flushed", round)
		}
		if b.Cool(written.Add(want-1), 2*time.Hour) || !b.Cool(written.Add(want), 2*time.Hour) {
			t.Fatalf("round %d: did not cool after %v", round, want)
		}
	}
	b.want("a 0:1 1:1 2:1")
}
