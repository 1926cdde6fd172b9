package partition

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/segment"
	"github.com/spillwaydb/spillway/storage/series"
)

func TestAFlushWaitsForAllAndALateOneCommitsNothing(t *testing.T) {
	l, c := leading(t, vfs.NewMem(), 1)
	defer l.close()
	l.must(l.put("a", 1, 1))
	away := fault.Errorf(fault.Unavailable, "a follower is away")
	c.await = func(point.Serial) error { return away }
	if err := l.Flush(t.Context(), ByAge); !errors.Is(err, away) || len(l.Segments()) > 0 {
		t.Errorf("flushed what a follower may not have: %v", err)
	}
	ref := l.index.Intern(labelsOf("a"))
	defer l.index.Release(ref)
	for level, want := range map[point.Level]error{point.All: away, point.One: nil, point.Received: nil} {
		l.stamp += 1024
		if err := l.Append(&Rows{Stamp: l.stamp, Level: level, Refs: []series.Ref{ref}, Times: []point.Nanos{5}, Values: []float64{1}}); !errors.Is(err, want) {
			t.Errorf("an insert at level %v: %v, want %v", level, err, want)
		}
	}
	// Another placement leads while the flush waits.
	c.await = func(point.Serial) error { return l.FollowLeaderInBackground(2) }
	if err := l.Flush(t.Context(), ByAge); !fault.Is(err, fault.Stale) || len(l.Segments()) > 0 || len(l.files()) > 0 {
		t.Errorf("a flush of a placement that follows by now: %v, %v", err, l.files())
	}
	l.want("a 1:1 5:1")
}

// FollowLeaderInBackground is FollowLeader for a caller that the flush waits for.
func (b *bench) FollowLeaderInBackground(epoch point.Epoch) error {
	_, err := b.beginToFollow(epoch)
	return err
}

// A minor that reached no other placement, and one that the next leader made of the same frames: the first is removed, nothing is lost.
func TestAMinorOfADeposedLeaderGivesWayToTheNewOnes(t *testing.T) {
	old, c := leading(t, vfs.NewMem(), 1)
	defer old.close()
	next := following(t, vfs.NewMem(), 1)
	defer next.close()
	c.await = func(point.Serial) error { return next.catchUp(old, 1) }
	old.must(old.put("a", 1, 1))
	old.must(old.Flush(t.Context(), ByAge))
	old.must(next.fetch(old, 1))
	old.must(old.put("b", 2, 2))
	old.must(old.Flush(t.Context(), ByAge)) // it is cut off before the segment is sent
	lost := old.Segments()[1].ID

	c2 := new(byHand)
	next.must(next.LeadChain(2, c2))
	old.must(old.FollowLeader(2))
	c2.await = func(point.Serial) error { return old.catchUp(next, 2) }
	next.must(next.put("c", 3, 3))
	next.must(next.Flush(t.Context(), ByRetry))
	next.must(next.Flush(t.Context(), ByAge))
	old.must(old.fetch(next, 2))
	if slices.ContainsFunc(old.Segments(), func(i segment.Info) bool { return i.ID == lost }) {
		t.Errorf("%v is still there: %v", lost, old.Segments())
	}
	old.want("a 1:1; b 2:2; c 3:3")
	same(t, old, next)

	// A minor on the same base that holds less removes nothing.
	other, _ := leading(t, vfs.NewMem(), 1)
	defer other.close()
	f := following(t, vfs.NewMem(), 1)
	defer f.close()
	for i := range 3 {
		other.must(other.put(fmt.Sprint(i), 1, 1))
		other.must(other.Flush(t.Context(), ByAge))
	}
	other.must(f.fetch(other, 1))
	g := other.Segments()[1]
	if err := f.Adopt(1, g, copySegment(t, other, f, g.ID)); !fault.Is(err, fault.Stale) {
		t.Errorf("an older minor on the same base: %v, want stale", err)
	}
	same(t, other, f)
}

// TestAColdCopyAdoptsASegmentThatEndsWithinItsDeletions: a leader that was cold ordered two deletions, of which its only follower got the first. That one led alone, so its
// segment ends without a FREEZE: within the head of the former leader, which knows no series.
func TestAColdCopyAdoptsASegmentThatEndsWithinItsDeletions(t *testing.T) {
	old, c := leading(t, vfs.NewMem(), 1)
	defer old.close()
	next := following(t, vfs.NewMem(), 1)
	defer next.close()
	c.await = func(point.Serial) error { return next.catchUp(old, 1) }
	for _, name := range []string{"a", "b", "c"} {
		old.must(old.put(name, 1, 1))
	}
	old.must(old.Flush(t.Context(), ByAge))
	old.must(next.fetch(old, 1))
	if !old.Cool(time.Now().Add(time.Hour), 0) {
		t.Fatal("it is not cold")
	}
	old.must(old.Delete(t.Context(), 1, only("a"), 0, 9))
	c.await = nil
	old.must(old.Delete(t.Context(), 1, only("b"), 0, 9))

	next.must(next.Lead(2))
	next.must(next.Flush(t.Context(), ByAge))
	next.must(next.LeadChain(3, new(byHand)))
	next.must(next.put("d", 1, 1))
	old.must(old.FollowLeader(3))
	old.must(old.fetch(next, 3))
	if _, err := old.Cut(common(old.Ends(), next.Ends())); err != nil {
		t.Fatal(err)
	}
	old.must(old.catchUp(next, 3))
	old.want("b 1:1; c 1:1; d 1:1")
	same(t, next, old)
}

func TestAdoptRefusesWhatDoesNotFit(t *testing.T) {
	l, _ := leading(t, vfs.NewMem(), 1)
	defer l.close()
	f := following(t, vfs.NewMem(), 1)
	defer f.close()
	for i := range 3 {
		l.must(l.put(fmt.Sprint(i), 1, 1))
		l.must(l.Flush(t.Context(), ByAge))
	}
	g := l.Segments()
	adopt := func(epoch point.Epoch, i int) error {
		return f.Adopt(epoch, g[i], copySegment(t, l, f, g[i].ID))
	}
	if err := adopt(1, 1); !fault.Is(err, fault.Stale) {
		t.Errorf("a minor without its base: %v, want stale", err)
	}
	if err := adopt(2, 0); !fault.Is(err, fault.Stale) {
		t.Errorf("of another epoch: %v, want stale", err)
	}
	if err := f.Adopt(1, g[0], copySegment(t, l, f, g[1].ID)); !fault.Is(err, fault.Corrupt) {
		t.Errorf("another file: %v, want corrupt", err)
	}
	f.must(adopt(1, 0))
	f.must(adopt(1, 1))
	if err := adopt(1, 0); !fault.Is(err, fault.Stale) {
		t.Errorf("a major that holds less: %v, want stale", err)
	}
	f.must(f.catchUp(l, 1)) // behind the frames in segments; the third is not there yet
	f.must(adopt(1, 2))
	if err := adopt(1, 2); !fault.Is(err, fault.Stale) {
		t.Errorf("one that is here: %v, want stale", err)
	}
	same(t, l, f)
	if _, err := f.deps.Brick.FS().Stat(f.deps.Brick.SegmentPath(f.ident.Placement, g[2].ID)); err != nil {
		t.Error(err)
	}
}

// reads counts the reads of segment files.
type reads struct{ n atomic.Int32 }

func (r *reads) MaybeError(op errorfs.Op) error {
	if op.Kind == errorfs.OpFileReadAt && strings.HasSuffix(op.Path, ".seg") {
		r.n.Add(1)
	}
	return nil
}

func (r *reads) String() string { return "reads" }

// TestFramesWaitForNoSecondCheckOfASegment: a copy had checked a segment when it came, and read definitions and postings once more with the leader's frames locked out. Of a
// million series that is a good part of a second, in which no insert of the partition is acked by all copies.
func TestFramesWaitForNoSecondCheckOfASegment(t *testing.T) {
	l, c := leading(t, vfs.NewMem(), 1)
	defer l.close()
	count := new(reads)
	f := following(t, errorfs.Wrap(vfs.NewMem(), count), 1)
	defer f.close()
	c.await = func(point.Serial) error { return f.catchUp(l, 1) }
	rng := rand.New(rand.NewPCG(1, 2))
	for range 3000 { // blocks of names that do not compress
		l.must(l.put(fmt.Sprintf("%x%x", rng.Uint64(), rng.Uint64()), 1, 1))
	}
	l.must(l.Flush(t.Context(), ByAge))
	info, err := f.Verified(l.Segments()[0], copySegment(t, l, f, l.Segments()[0].ID))
	f.must(err)
	count.n.Store(0)
	f.must(f.AdoptVerified(1, info, "incoming"))
	if n := count.n.Load(); n == 0 || n > 8 {
		t.Errorf("%d reads with the frames locked out, want those of opening the file", n)
	}
	same(t, l, f)
}

// Adopt verifies a file and adopts it.
func (p *Partition) Adopt(sender point.Epoch, info segment.Info, path string) error {
	info, err := p.Verified(info, path)
	if err != nil {
		return err
	}
	return p.AdoptVerified(sender, info, path)
}
