package partition

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/series"
)

// asked is a context that is cancelled after a number of calls.
type asked struct {
	context.Context
	left atomic.Int64
}

func (a *asked) Err() error {
	if a.left.Add(-1) < 0 {
		return context.Canceled
	}
	return nil
}

// TestAFlushThatIsGivenUpLosesNothing: a stopping process waited for the end of a flush of millions of series.
func TestAFlushThatIsGivenUpLosesNothing(t *testing.T) {
	const n = 5000
	fs := vfs.NewMem()
	b := openBench(t, fs, 1)
	r := &Rows{Stamp: 1024}
	want := 0
	for i := range n {
		ref := b.index.Intern(labelsOf(fmt.Sprint(i)))
		defer b.index.Release(ref)
		r.Refs, r.Times, r.Values = append(r.Refs, ref), append(r.Times, point.Nanos(i%100)), append(r.Values, float64(i))
		want++
	}
	b.must(b.Append(r))
	count := func() (got int) {
		v, err := b.View()
		b.must(err)
		defer v.Close()
		ss, err := v.Match(nil)
		b.must(err)
		return len(ss)
	}
	for left := range int64(12) {
		ctx := &asked{Context: context.Background()}
		ctx.left.Store(left)
		err := b.Flush(ctx, ByAge)
		if err == nil {
			if left < 6 {
				t.Errorf("after %d questions the flush had ended", left)
			}
			break
		}
		if !fault.Is(err, fault.Canceled) || b.Unflushed() != nil {
			t.Fatalf("%v, and %v counts as failed", err, b.Unflushed())
		}
		if got := count(); got != want {
			t.Fatalf("%d of %d series are read", got, want)
		}
		if left == 3 {
			ref := b.index.Intern(labelsOf("late"))
			b.must(b.Append(&Rows{Stamp: 2048, Refs: []series.Ref{ref}, Times: []point.Nanos{7}, Values: []float64{7}}))
			b.index.Release(ref)
			want++
		}
	}
	b.must(b.Flush(t.Context(), ByAge))
	b.must(b.Flush(t.Context(), ByAge)) // the head before, and the one since
	if got := count(); got != want {
		t.Fatalf("%d of %d series are read", got, want)
	}
	if f := b.files(); len(f) != 2 {
		t.Errorf("files %v", f)
	}
	b.close()
	b = openBench(t, fs, 2)
	defer b.close()
	if got := count(); got != want {
		t.Errorf("%d of %d series are read after a restart", got, want)
	}
}
