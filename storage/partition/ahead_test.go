package partition

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

// foldedBelow makes a leader with a major and three minors, and a follower on a disk; two of the minors are folded, and what is done meanwhile.
func foldedBelow(t *testing.T, disk vfs.FS, meanwhile func(l, f *bench)) (l, f *bench) {
	t.Helper()
	fs := newFolds(vfs.NewMem())
	l, c := leading(t, fs, 1)
	f = following(t, disk, 1)
	c.await = func(point.Serial) error { return f.catchUp(l, 1) }
	for i := range int64(4) {
		l.must(l.put("a", i, float64(i)))
		l.must(l.put(fmt.Sprint("b", i), 1, 1))
		l.must(l.Flush(t.Context(), ByAge))
		f.must(f.fetch(l, 1))
	}
	fs.steps = append(fs.steps, func() { meanwhile(l, f) })
	l.foldFrom(2)
	return l, f
}

// flushes writes rows that become a minor.
func (b *bench) flushes(at int64) {
	b.must(b.put("a", at, float64(at)))
	b.must(b.put(fmt.Sprint("b", at), 1, 1))
	b.must(b.Flush(b.t.Context(), ByAge))
}

// TestCopiesKeepNoRowsInMemoryWhileTheirLeaderFolds: they had to, and their logs grew, for as long as a compaction of gigabytes lasted.
func TestCopiesKeepNoRowsInMemoryWhileTheirLeaderFolds(t *testing.T) {
	l, f := foldedBelow(t, vfs.NewMem(), func(l, f *bench) {
		for i := range int64(3) {
			l.flushes(4 + i)
			f.must(f.fetch(l, 1))
			held := 0
			f.must(f.EachFrame(point.Serial{}, func(point.Serial, []byte) error { held++; return nil }))
			if n := f.HeadRows(); n > 0 || held > 0 {
				t.Errorf("the copy has %d rows in heads, and %d frames in its log", n, held)
			}
		}
	})
	defer l.close()
	defer f.close()
	f.must(f.fetch(l, 1))
	same(t, l, f)
	if n := len(f.Segments()); n != 4 || len(f.files()) != 4 || len(f.Ahead()) > 0 {
		t.Errorf("%d segments, files %v, ahead %v", n, f.files(), f.Ahead())
	}
}

// TestACopyHidesWhatWasDeletedWhileItsLeaderFolded, where it had the deletion from a minor that was flushed meanwhile, and from its log.
func TestACopyHidesWhatWasDeletedWhileItsLeaderFolded(t *testing.T) {
	for _, flushed := range []bool{true, false} {
		l, f := foldedBelow(t, vfs.NewMem(), func(l, f *bench) {
			l.flushes(4)
			l.must(l.Delete(t.Context(), 1, only("a"), 1, 4))
			if flushed {
				l.must(l.put("a", 4, 44))
				l.flushes(5)
			}
			f.must(f.fetch(l, 1))
		})
		f.must(f.fetch(l, 1))
		f.must(f.catchUp(l, 1))
		want := "a 0:0; b0 1:1; b1 1:1; b2 1:1; b3 1:1; b4 1:1"
		if flushed {
			want = "a 0:0 4:44 5:5; b0 1:1; b1 1:1; b2 1:1; b3 1:1; b4 1:1; b5 1:1"
		}
		l.want(want)
		f.want(want)
		l.must(l.Compact(t.Context(), ByRequest))
		f.must(f.fetch(l, 1))
		l.want(want)
		f.want(want)
		l.close()
		f.close()
	}
}

// TestACopyThatCrashesWhileSegmentsWaitLosesNothing: its disk stops at every operation from the first of two segments on that replace others together.
func TestACopyThatCrashesWhileSegmentsWaitLosesNothing(t *testing.T) {
	steps := 0
	for at := 1; ; at++ {
		mem := vfs.NewCrashableMem()
		var n atomic.Int64
		var on atomic.Bool
		var taken atomic.Pointer[vfs.MemFS]
		disk := errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
			if on.Load() && op.Kind.ReadOrWrite() == errorfs.OpIsWrite && !strings.HasSuffix(op.Path, "incoming") && n.Add(1) == int64(at) {
				taken.Store(mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: at % 2 * 100, RNG: rand.New(rand.NewPCG(1, 1))}))
			}
			return nil
		}))
		l, f := foldedBelow(t, disk, func(l, f *bench) {
			l.flushes(4)
			f.must(f.fetch(l, 1))
		})
		l.must(l.put("c", 1, 1))
		f.must(f.catchUp(l, 1))
		on.Store(true)
		f.must(f.fetch(l, 1))
		on.Store(false)
		same(t, l, f)
		f.close()
		if taken.Load() == nil {
			l.close()
			break
		}
		steps++
		f = following(t, taken.Load(), 1)
		f.must(f.Damaged())
		f.want("a 0:0 1:1 2:2 3:3 4:4; b0 1:1; b1 1:1; b2 1:1; b3 1:1; b4 1:1; c 1:1")
		if len(f.files()) != len(f.Segments()) {
			t.Errorf("files %v of %d segments", f.files(), len(f.Segments()))
		}
		f.must(f.fetch(l, 1))
		same(t, l, f)
		f.close()
		l.close()
	}
	if steps < 6 {
		t.Errorf("only %d operations", steps)
	}
}

// TestADiskThatFailsWhileSegmentsWaitLeavesTheCopyAsItWas: each operation fails once, and the segments come again.
func TestADiskThatFailsWhileSegmentsWaitLeavesTheCopyAsItWas(t *testing.T) {
	failed := 0
	for at := 1; ; at++ {
		var n atomic.Int64
		var on atomic.Bool
		disk := errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
			if on.Load() && op.Kind == errorfs.OpRename && n.Add(1) == int64(at) {
				return errors.New("the disk is ill")
			}
			return nil
		}))
		l, f := foldedBelow(t, disk, func(l, f *bench) {
			l.flushes(4)
			f.must(f.fetch(l, 1))
		})
		on.Store(true)
		err := f.fetch(l, 1)
		on.Store(false)
		if err != nil {
			failed++
		}
		f.want("a 0:0 1:1 2:2 3:3 4:4; b0 1:1; b1 1:1; b2 1:1; b3 1:1; b4 1:1")
		f.must(f.fetch(l, 1))
		same(t, l, f)
		if len(f.files()) != len(f.Segments()) {
			t.Errorf("files %v of %d segments", f.files(), len(f.Segments()))
		}
		f.close()
		l.close()
		if err == nil {
			break
		}
	}
	if failed < 3 {
		t.Errorf("only %d operations", failed)
	}
}

// TestASegmentIsAdoptedWhereTheFileOfAnotherThatWaitedCannotBeRemoved: the leader was told that it was not.
func TestASegmentIsAdoptedWhereTheFileOfAnotherThatWaitedCannotBeRemoved(t *testing.T) {
	disk := errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind == errorfs.OpRemove && strings.HasSuffix(op.Path, aheadSuffix) {
			return errors.New("the disk is ill")
		}
		return nil
	}))
	l, f := foldedBelow(t, disk, func(l, f *bench) {
		l.flushes(4)
		f.must(f.fetch(l, 1))
	})
	defer l.close()
	defer f.close()
	info := l.Segments()[2]
	f.must(f.Adopt(1, info, copySegment(t, l, f, info.ID)))
	l.must(l.Compact(t.Context(), ByRequest))
	f.must(f.fetch(l, 1))
	same(t, l, f)
}

// TestSegmentsThatWaitGoWithTheirLeader: the next one may make others under their ids.
func TestSegmentsThatWaitGoWithTheirLeader(t *testing.T) {
	for _, leads := range []bool{true, false} {
		l, f := foldedBelow(t, vfs.NewMem(), func(l, f *bench) {
			l.flushes(4)
			f.must(f.fetch(l, 1))
		})
		info := l.Segments()[2]
		f.must(f.Adopt(1, info, copySegment(t, l, f, info.ID)))
		if ids := f.Ahead(); len(ids) != 1 || ids[0] != info.ID {
			t.Errorf("ahead are %v", ids)
		}
		f.want("a 0:0 1:1 2:2 3:3 4:4; b0 1:1; b1 1:1; b2 1:1; b3 1:1; b4 1:1")
		if leads {
			f.must(f.LeadChain(2, new(byHand)))
		} else {
			f.must(f.FollowLeader(2))
		}
		if ids := f.Ahead(); len(ids) > 0 {
			t.Errorf("%v of an earlier leader are ahead", ids)
		}
		f.must(f.Maintain(t.Context(), time.Now(), NotDue))
		names, err := f.brick.FS().List(f.brick.SegmentDir(ident.Placement))
		if f.must(err); len(names) != len(f.Segments()) {
			t.Errorf("files %v", names)
		}
		f.close()
		l.close()
	}
}

// TestAFlushThatFailedBeforeAnotherLedIsNoFaultForEver: a leader whose copies were away could not flush, and another one led. The page,
// the metric and the alert named its rows as ones that cannot be written into a segment until the process was started again, with a next
// try that never came. Also where the flush ends only then, and where it leads again and has no rows to flush.
func TestAFlushThatFailedBeforeAnotherLedIsNoFaultForEver(t *testing.T) {
	l, c := leading(t, vfs.NewMem(), 1)
	defer l.close()
	l.must(l.put("a", 1, 1))
	c.await = func(point.Serial) error { return fault.Errorf(fault.Stale, "not led here any more") }
	if err := l.Flush(t.Context(), ByAge); err == nil || l.Unflushed() == nil {
		t.Fatalf("the flush ended with %v, and %v is shown", err, l.Unflushed())
	}
	l.must(l.FollowLeader(2))
	if err := l.Unflushed(); err != nil {
		t.Errorf("another leads, and %v is shown", err)
	}
	l.must(l.LeadChain(3, c))
	if err := l.Unflushed(); err != nil {
		t.Errorf("it leads again, and %v is shown", err)
	}
	if at := l.Shape().RetryAt; !at.IsZero() {
		t.Errorf("it leads again, and flushes nothing before %v", at)
	}
	followed := make(chan error, 1)
	c.await = func(point.Serial) error {
		go func() { followed <- l.FollowLeader(4) }() // which waits for this flush
		for !l.Follows() {
			runtime.Gosched()
		}
		return fault.Errorf(fault.Stale, "not led here any more")
	}
	if err := l.Flush(t.Context(), ByAge); err == nil {
		t.Error("the flush ended well")
	}
	l.must(<-followed)
	if err := l.Unflushed(); err != nil {
		t.Errorf("another led before the flush ended, and %v is shown", err)
	}
}

// TestTwoMinorsOfADeposedLeaderAreReplacedWithoutAMajor: it was cut off once it had flushed two heads, which the next leader flushes, too.
func TestTwoMinorsOfADeposedLeaderAreReplacedWithoutAMajor(t *testing.T) {
	l, c := leading(t, vfs.NewMem(), 1)
	defer l.close()
	f := following(t, vfs.NewMem(), 1)
	defer f.close()
	c.await = func(point.Serial) error { return f.catchUp(l, 1) }
	l.flushes(1)
	f.must(f.fetch(l, 1))
	l.flushes(2)
	l.flushes(3)
	f.must(f.LeadChain(2, new(byHand)))
	l.must(l.FollowLeader(2))
	for range 2 {
		f.must(f.Flush(t.Context(), ByRetry))
	}
	l.must(l.fetch(f, 2))
	same(t, f, l)
	if n := len(l.Segments()); n != 3 || len(l.files()) != 3 {
		t.Errorf("%d segments, files %v", n, l.files())
	}
	l.want("a 1:1 2:2 3:3; b1 1:1; b2 1:1; b3 1:1")
}
