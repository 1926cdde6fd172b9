package partition

import (
	"context"
	"runtime"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

// delete_series reaches the log of the followers before any segment: history 6, and 10 where it is surplus.
func TestADeletionIsKnownToFollowersBeforeItsSegment(t *testing.T) {
	fs := vfs.NewMem()
	l, c := leading(t, vfs.NewMem(), 1)
	defer l.close()
	f := following(t, fs, 1)
	c.await = func(point.Serial) error { return f.catchUp(l, 1) }
	for i := range 3 {
		l.must(l.put("a", point.Nanos(i), 1))
	}
	l.must(l.put("b", 1, 1))
	l.must(l.Delete(t.Context(), 1, only("a"), 0, 1))
	l.must(l.put("a", 1, 7)) // is not hidden
	f.must(f.catchUp(l, 1))
	l.want("a 1:7 2:1; b 1:1")
	f.want("a 1:7 2:1; b 1:1")
	f.close()
	f = following(t, fs, 1)
	f.want("a 1:7 2:1; b 1:1")
	f.must(f.fetch(l, 1))
	same(t, l, f)
	// A deletion that only the follower has is undone with its frame.
	l.must(l.Delete(t.Context(), 1, only("b"), 0, 9))
	f.must(f.fetch(l, 1))
	f.want("a 1:7 2:1")
	if _, err := f.Cut(f.Flushed()); err != nil {
		t.Fatal(err)
	}
	f.want("a 1:7 2:1; b 1:1")
	f.close()
	f = following(t, fs, 1)
	defer f.close()
	f.want("a 1:7 2:1; b 1:1")
}

// TestDeletedRowsAreNotReadFromACopyThatCouldNotDeleteThem stops the catalogue of a copy between the log's append of a deletion and its
// entry in the catalogue.
func TestDeletedRowsAreNotReadFromACopyThatCouldNotDeleteThem(t *testing.T) {
	fs := vfs.NewMem()
	l, c := leading(t, vfs.NewMem(), 1)
	defer l.close()
	f := following(t, fs, 1)
	c.await = func(point.Serial) error { return f.catchUp(l, 1) }
	l.must(l.put("a", 1, 1))
	l.must(l.put("b", 1, 1))
	l.must(l.Flush(t.Context(), ByAge))
	f.must(f.fetch(l, 1))
	c.await = nil
	l.must(l.Delete(t.Context(), 1, only("a"), 0, 9))

	f.must(f.warm())
	f.flushMu.Lock() // the deletion comes as far as the log
	before, followed := f.Last(), make(chan error)
	go func() { followed <- f.catchUp(l, 1) }()
	for f.Last() == before {
		runtime.Gosched()
	}
	f.deps.Brick.Freeze("no room")
	f.flushMu.Unlock()
	f.must(<-followed)
	if v, err := f.View(); !fault.Is(err, fault.Unavailable) {
		t.Fatalf("a view %v of a copy that shows deleted rows, error %v", v, err)
	}
	if f.Unflushed() == nil {
		t.Error("nothing is shown of a copy that cannot carry out a deletion")
	}
	f.must(f.FollowLeader(1))
	f.must(f.Flush(t.Context(), ByStop))
	if f.Unflushed() == nil {
		t.Error("nothing is shown any more of a copy that cannot carry out a deletion")
	}
	f.must(f.Maintain(t.Context(), time.Now(), NotDue)) // too early
	if err := f.Maintain(t.Context(), time.Now().Add(time.Hour), NotDue); !fault.Is(err, fault.Unavailable) {
		t.Errorf("the deletion was carried out without a catalogue: %v", err)
	}
	f.close()
	f = following(t, fs, 1)
	defer f.close()
	f.want("b 1:1")

	// The same, where the catalogue is well again soon.
	f.flushMu.Lock()
	f.must(f.undelete(point.Serial{}))
	f.owe(errorfs.ErrInjected)
	f.flushMu.Unlock()
	if _, err := f.View(); !fault.Is(err, fault.Unavailable) {
		t.Errorf("read while a deletion is owed: %v", err)
	}
	f.must(f.Maintain(t.Context(), time.Now().Add(time.Hour), NotDue))
	f.want("b 1:1")
}

// TestADeletionThatOnlyTheLogHasSurvivesTheNextFlush: the flush releases the frame, so that no start would find it again.
func TestADeletionThatOnlyTheLogHasSurvivesTheNextFlush(t *testing.T) {
	fs := vfs.NewMem()
	l := openBench(t, fs, 1)
	l.must(l.put("a", 1, 1))
	l.must(l.put("b", 1, 1))
	l.must(l.Delete(t.Context(), 1, only("a"), 0, 9))
	l.flushMu.Lock()
	l.must(l.undelete(point.Serial{})) // as if its commit had failed
	l.flushMu.Unlock()
	l.want("a 1:1; b 1:1")
	l.must(l.put("b", 2, 2))
	l.must(l.Flush(t.Context(), ByAge))
	l.want("b 1:1 2:2")
	l.close()
	l = openBench(t, fs, 2)
	defer l.close()
	l.want("b 1:1 2:2")
}

// A partition that was led without followers gets them by a new epoch. A deletion that was ordered a moment before belongs to none of these frames: its caller
// would take its own disk for all copies, and the rows would be back at the next leader.
func TestADeletionThatANewEpochOvertookIsOrderedAgain(t *testing.T) {
	l := openBench(t, vfs.NewMem(), 0)
	defer l.close()
	l.must(l.Lead(1))
	l.must(l.put("a", 1, 10))
	l.must(l.Flush(t.Context(), ByAge))
	c := new(byHand)
	l.must(l.LeadChain(2, c))

	deletion := Tombstone{Matchers: only("a"), Lo: 0, Hi: 100}
	if at, _, _, _, err := l.enqueueDeletion(1, deletion); !fault.Is(err, fault.Stale) || len(c.passed) != 0 {
		t.Errorf("it is frame %v of another epoch, of %d that the followers have: %v", at, len(c.passed), err)
	}
	at, _, _, followers, err := l.enqueueDeletion(2, deletion)
	if err != nil || followers != Followers(c) || len(c.passed) != 1 {
		t.Errorf("frame %v waits for followers %v, which have %d frames: %v", at, followers, len(c.passed), err)
	}
}

// TestWritesAndFlushesGoOnWhileADeletionWaitsForACopy: the lock of flushes was held meanwhile, for ten seconds if a copy was away. A write to the cold partition that waits for no
// copy needs it, and so do the deletions behind.
func TestWritesAndFlushesGoOnWhileADeletionWaitsForACopy(t *testing.T) {
	fs := vfs.NewMem()
	l, c := leading(t, fs, 1)
	l.must(l.put("a", 1, 1))
	l.must(l.put("b", 1, 1))
	l.must(l.Flush(t.Context(), ByAge))
	if !l.Cool(time.Now().Add(time.Hour), 0) {
		t.Fatal("it is not cold")
	}
	waits := 0
	c.await = func(point.Serial) error {
		if waits++; waits > 1 {
			return nil // the copy is back
		}
		if !l.flushMu.TryLock() {
			t.Error("a deletion that waits for a copy holds up flushes, writes to a cold partition and other deletions")
			return nil
		}
		l.flushMu.Unlock()
		l.must(l.put("a", 1, 7))
		l.must(l.Delete(t.Context(), 1, only("b"), 0, 9))
		l.must(l.put("b", 2, 8))
		l.must(l.Flush(t.Context(), ByAge))
		return nil
	}
	l.must(l.Delete(t.Context(), 1, only("a"), 0, 9))
	l.want("a 1:7; b 2:8")
	l.close()
	l = openBench(t, fs, 2)
	defer l.close()
	l.want("a 1:7; b 2:8")
}

// TestADeletionThatItsCallerGaveUpWhileItWaitedIsNotOrdered: each of them would wait for the copy that is away, one after the other.
func TestADeletionThatItsCallerGaveUpWhileItWaitedIsNotOrdered(t *testing.T) {
	l, c := leading(t, vfs.NewMem(), 1)
	defer l.close()
	l.must(l.put("a", 1, 1))
	l.must(l.Flush(t.Context(), ByAge))
	before := len(c.passed)
	left, leave := context.WithCancel(t.Context())
	leave()
	if err := l.Delete(left, 1, only("a"), 0, 9); err == nil || len(c.passed) != before {
		t.Errorf("%d frames were ordered: %v", len(c.passed)-before, err)
	}
	l.want("a 1:1")
}
