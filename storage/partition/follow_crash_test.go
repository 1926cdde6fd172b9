package partition

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/spillwaydb/spillway/protocols/point"
)

// The disk of a follower stops at every operation of a run with frames, deletions, surplus and segments: the remains open,
// continue from their ends, and end up equal.
func TestAFollowerThatCrashesAnywhereEndsUpEqual(t *testing.T) {
	steps := 0
	for at := 1; ; at++ {
		at = max(at, at+at/20) // thinner towards the end
		image, all := followUntil(t, at, at%2*100)
		if steps = all; image == nil {
			break
		}
	}
	if steps < 50 {
		t.Errorf("only %d operations", steps)
	}
}

// followUntil runs a follower and returns its disk as it is at an operation that changes it; nil: there are fewer.
func followUntil(t *testing.T, at, unsynced int) (image *vfs.MemFS, ops int) {
	t.Helper()
	mem := vfs.NewCrashableMem()
	var n atomic.Int64
	var taken atomic.Pointer[vfs.MemFS]
	fs := errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind.ReadOrWrite() == errorfs.OpIsWrite && n.Add(1) == int64(at) {
			taken.Store(mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: unsynced, RNG: rand.New(rand.NewPCG(1, 1))}))
		}
		return nil
	}))
	old, c := leading(t, vfs.NewMem(), 1)
	defer old.close()
	l := following(t, vfs.NewMem(), 1)
	defer l.close()
	f := following(t, fs, 1)
	c.await = func(point.Serial) error { return errors.Join(f.catchUp(old, 1), l.catchUp(old, 1)) }
	old.must(old.put("a", 1, 1))
	old.must(old.put("b", 1, 1))
	old.must(old.Flush(t.Context(), ByAge))
	f.must(f.fetch(old, 1))
	l.must(l.fetch(old, 1))
	old.must(old.put("c", 2, 2))
	old.must(old.Delete(t.Context(), 1, only("a"), 0, 1))
	f.must(f.fetch(old, 1))
	l.must(l.fetch(old, 1))
	c.await = func(point.Serial) error { return f.catchUp(old, 1) } // l is cut off
	old.must(old.put("surplus", 3, 3))
	l.must(l.LeadChain(2, new(byHand)))
	common := l.Last()
	l.must(l.put("d", 4, 4))
	f.must(f.FollowLeader(2))
	_, err := f.Cut(common)
	f.must(err)
	f.must(f.catchUp(l, 2))
	l.must(l.Flush(t.Context(), ByAge))
	l.must(l.Compact(t.Context(), ByRequest))
	f.must(f.catchUp(l, 2))
	f.must(f.fetch(l, 2))
	l.must(l.put("e", 5, 5))
	f.must(f.catchUp(l, 2))
	same(t, l, f)
	f.close()
	if taken.Load() != nil {
		rejoin(t, taken.Load(), l, common)
	}
	return taken.Load(), int(n.Load())
}

// rejoin makes the remains of a crash follow the leader of epoch 2, which began behind common.
func rejoin(t *testing.T, image *vfs.MemFS, l *bench, common point.Serial) {
	t.Helper()
	f := following(t, image, 2)
	defer f.close()
	if err := f.Damaged(); err != nil {
		t.Fatal(err)
	}
	if last := f.Last(); last.Epoch == 1 && common.Less(last) {
		_, err := f.Cut(common)
		f.must(err)
	}
	f.must(f.fetch(l, 2))
	f.must(f.catchUp(l, 2))
	same(t, l, f)
}

// A new placement gets segments first. Its disk stops at every operation meanwhile: a file that the catalogue does not list yet
// holds frames that no other file here holds, and is no damage.
func TestAJoiningPlacementThatCrashesAnywhereJoinsAgain(t *testing.T) {
	l, _ := leading(t, vfs.NewMem(), 1)
	defer l.close()
	for i := range 3 {
		l.must(l.put(fmt.Sprint(i), 1, 1))
		l.must(l.Flush(t.Context(), ByAge))
	}
	l.must(l.put("tail", 2, 2))
	steps := 0
	for at := 1; ; at++ {
		mem := vfs.NewCrashableMem()
		var n atomic.Int64 // the log and the catalogue write by goroutines of their own
		var taken atomic.Pointer[vfs.MemFS]
		var on atomic.Bool
		fs := errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
			if on.Load() && op.Kind.ReadOrWrite() == errorfs.OpIsWrite && !strings.Contains(op.Path, "incoming") && n.Add(1) == int64(at) {
				taken.Store(mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: at % 2 * 100, RNG: rand.New(rand.NewPCG(1, 1))}))
			}
			return nil
		}))
		f := following(t, fs, 1)
		path := copySegment(t, l, f, l.Segments()[0].ID)
		on.Store(true)
		f.must(f.Adopt(1, l.Segments()[0], path))
		on.Store(false)
		f.close()
		image := taken.Load()
		if image == nil {
			break
		}
		steps++
		f = following(t, image, 1)
		f.must(f.Damaged())
		f.must(f.fetch(l, 1))
		f.must(f.catchUp(l, 1))
		same(t, l, f)
		f.close()
	}
	if steps < 4 {
		t.Errorf("only %d operations", steps)
	}
}
