package partition

import (
	"fmt"
	"math"
	"reflect"
	"runtime"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/protocols/rank"
	"github.com/spillwaydb/spillway/storage/rows"
)

// midFrame calls during once, when the rows of a frame are in the head and the frame is not accepted yet.
type midFrame struct {
	HeadBytes
	during func()
}

func (a *midFrame) Add(n int64) {
	a.HeadBytes.Add(n)
	if f := a.during; f != nil && n > 0 {
		a.during = nil
		f()
	}
}

// duringTheNext calls f while the rows of the next frame are added.
func (b *bench) duringTheNext(f func()) { b.deps.HeadBytes = &midFrame{b.deps.HeadBytes, f} }

// many are rows of one time, one more than are applied in one hold of the lock.
func (b *bench) many(stamp point.Stamp, at point.Nanos) *Rows {
	r := &Rows{Stamp: stamp}
	for i := range heldRowsMax + 1 {
		r.Refs = append(r.Refs, b.index.Intern(labelsOf(fmt.Sprint(i))))
		r.Times, r.Values = append(r.Times, at), append(r.Values, float64(at))
	}
	return r
}

// rowsSeen counts the rows that a new view sees.
func (b *bench) rowsSeen() (n int) {
	v, err := b.View()
	b.must(err)
	defer v.Close()
	ss, err := v.Match(nil)
	b.must(err)
	b.must(v.Read(ss, math.MinInt64, math.MaxInt64, func(_ int, r rows.Run) error { n += r.Len(); return nil }))
	return n
}

// TestNobodyWaitsForALargeFrame: while the rows of one are added, the lock of the partition is free, and all calls see the frames before.
func TestNobodyWaitsForALargeFrame(t *testing.T) {
	b := openBench(t, vfs.NewMem(), 1)
	defer b.close()
	const n = heldRowsMax + 1
	b.must(b.Append(b.many(rank.At(noon), 1)))
	before, ends := b.Last(), fmt.Sprint(b.Ends())
	digest := func() Digest {
		d, err := b.Digest(point.Serial{}, b.EachFrameUpTo)
		b.must(err)
		return d
	}
	first, middle := digest(), Digest{}
	b.duringTheNext(func() {
		if !b.mu.TryLock() {
			t.Fatal("the lock is held while the rows of a large frame are added")
		}
		b.mu.Unlock()
		if got := b.rowsSeen(); got != n {
			t.Errorf("%d rows are seen in the middle of a frame, %d were there before it", got, n)
		}
		middle = digest()
		if b.Last() != before || fmt.Sprint(b.Ends()) != ends || b.Shape().Frames != 1 {
			t.Errorf("in the middle of a frame the last one is %v of %v with %d in the head", b.Last(), b.Ends(), b.Shape().Frames)
		}
	})
	b.must(b.Append(b.many(rank.At(noon+second), 2)))
	if !reflect.DeepEqual(middle, first) { // a copy that is compared with would seem to differ
		t.Errorf("the digest is %+v in the middle of a frame, and was %+v before it", middle, first)
	}
	if got := b.rowsSeen(); got != 2*n || b.Last() == before {
		t.Errorf("%d rows are seen after the frame %v, want %d", got, b.Last(), 2*n)
	}
}

// TestAViewWaitsForRowsThatItCouldNotDistinguish: those of another server that rank below some that are here.
func TestAViewWaitsForRowsThatItCouldNotDistinguish(t *testing.T) {
	b := openBench(t, vfs.NewMem(), 1)
	defer b.close()
	const n = heldRowsMax + 1
	b.must(b.Append(b.many(rank.At(noon), 1)))
	before := b.Last()
	seen := make(chan int, 1)
	b.duringTheNext(func() {
		if !b.mu.TryLock() {
			t.Fatal("the lock is held while the rows of a large frame are added")
		}
		b.mu.Unlock()
		go func() {
			got := b.rowsSeen()
			if b.Last() == before {
				t.Error("a view was made in the middle of the frame")
			}
			seen <- got
		}()
		for range 1000 { // a view that does not wait is made here
			runtime.Gosched()
		}
	})
	late := b.many(rank.At(noon-second), 2)
	late.Foreign = true
	b.must(b.Append(late))
	if got := <-seen; got != 2*n {
		t.Errorf("%d rows are seen, want %d", got, 2*n)
	}
}

// TestAHeadIsFrozenBetweenFrames: a flush, and a call that closes a partition without rows, wait for the frame that is being added.
func TestAHeadIsFrozenBetweenFrames(t *testing.T) {
	b := openBench(t, vfs.NewMem(), 1)
	defer b.close()
	done := make(chan error, 1)
	b.duringTheNext(func() {
		go func() {
			if b.CloseEmpty() {
				t.Error("a partition was closed as empty while it accepted its first rows")
			}
			done <- b.Flush(t.Context(), ByRequest)
		}()
		for range 1000 {
			runtime.Gosched()
		}
	})
	b.must(b.Append(b.many(rank.At(noon), 1)))
	b.must(<-done)
	if got := b.Segments(); len(got) != 1 || got[0].Rows != heldRowsMax+1 {
		t.Errorf("the segments are %+v, want one of %d rows", got, heldRowsMax+1)
	}
}
