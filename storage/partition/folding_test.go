package partition

import (
	"context"
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
	"github.com/spillwaydb/spillway/protocols/rank"
)

// foldFrom folds the segments from one on, as the policy may want it.
func (b *bench) foldFrom(first int) {
	b.t.Helper()
	b.must(b.compact(b.t.Context(), ByCount, b.Segments()[first].ID))
}

// folds is a file system that runs a step each time that a segment is begun.
type folds struct {
	vfs.FS
	when  errorfs.OpKind // OpCreate: begun; OpRename: all rows were read
	steps []func()
	busy  bool // a step is running: it may write segments, too
}

func newFolds(fs vfs.FS) *folds {
	f := &folds{when: errorfs.OpCreate}
	f.FS = errorfs.Wrap(fs, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if strings.Contains(op.Path, ".seg") && op.Kind == f.when && !f.busy && len(f.steps) > 0 {
			next := f.steps[0]
			f.steps = f.steps[1:]
			f.busy = true
			next()
			f.busy = false
		}
		return nil
	}))
	return f
}

// TestCompactionsCommitBelowWhatWasFlushedMeanwhile covers minors and deletions that come while segments are written: of all into a major, and of the newest into a minor.
func TestCompactionsCommitBelowWhatWasFlushedMeanwhile(t *testing.T) {
	for _, c := range []struct {
		first    int      // segment that is folded
		during   []string // the first fold, and those after it
		segments int      // then
	}{
		{0, nil, 1},
		{0, []string{"flush"}, 2},
		{0, []string{"flush flush", "flush"}, 3},
		{0, []string{"delete"}, 1},
		{0, []string{"delete flush", "flush"}, 3},
		{0, []string{"flush", "delete"}, 2},
		{0, []string{"flush delete flush"}, 3},
		{0, []string{"flush delete flush flush"}, 3},
		{1, nil, 2},
		{1, []string{"flush"}, 3},
		{1, []string{"flush flush", "flush"}, 4},
		{1, []string{"delete"}, 2},
		{1, []string{"flush", "delete"}, 3},
		{1, []string{"flush delete flush", "delete"}, 4},
		{2, []string{"flush"}, 4},
		{3, nil, 4}, // one alone stays as it is
	} {
		t.Run(fmt.Sprint(c.first, c.during), func(t *testing.T) {
			mem := vfs.NewMem()
			fs := newFolds(mem)
			b := openBench(t, fs, 1)
			for i := range 4 {
				b.must(b.put("a", int64(i), float64(i)))
				b.must(b.put(fmt.Sprint("b", i), 1, 1))
				b.must(b.put(fmt.Sprint("b", i/2), 2, float64(i)))
				b.must(b.Flush(t.Context(), ByAge))
			}
			want := map[string]string{"a": "0:0 1:1 2:2 3:3", "b0": "1:1 2:1", "b1": "1:1 2:3", "b2": "1:1", "b3": "1:1"}
			at := 10
			for _, commands := range c.during {
				fs.steps = append(fs.steps, func() {
					if !b.flushMu.TryLock() {
						t.Fatal("a flush waits for the fold")
					}
					b.flushMu.Unlock()
					for _, x := range strings.Fields(commands) {
						if x == "delete" {
							b.must(b.Delete(t.Context(), 0, only("a"), 1, 1))
							want["a"] = strings.Replace(want["a"], "1:1 ", "", 1)
							continue
						}
						b.must(b.put("a", int64(at), 1))
						b.must(b.put("c", int64(at), 1))
						b.must(b.Flush(t.Context(), ByAge))
						want["a"] += fmt.Sprintf(" %d:1", at)
						want["c"] = strings.TrimSpace(fmt.Sprintf("%s %d:1", want["c"], at))
						at++
					}
					if b.Offered() != b.State() {
						t.Error("followers are not offered what was flushed meanwhile")
					}
				})
			}
			b.foldFrom(c.first)
			if len(fs.steps) > 0 {
				t.Errorf("%d folds did not happen", len(fs.steps))
			}
			var all []string
			for _, name := range []string{"a", "b0", "b1", "b2", "b3", "c"} {
				if want[name] != "" {
					all = append(all, name+" "+want[name])
				}
			}
			check := func() {
				t.Helper()
				b.want(strings.Join(all, "; "))
				if n := len(b.Segments()); n != c.segments || len(b.files()) != n {
					t.Errorf("%d segments, want %d; files %v", n, c.segments, b.files())
				}
				b.must(b.State().check())
			}
			check()
			if b.Offered() != b.State() {
				t.Error("followers are not offered the result")
			}
			b.close()
			b = openBench(t, mem, 2)
			b.must(b.Tidy(true))
			check()
			b.must(b.put("d", 1, 1))
			all = append(all, "d 1:1")
			b.must(b.Flush(t.Context(), ByAge))
			b.must(b.Compact(t.Context(), ByRequest))
			b.want(strings.Join(all, "; "))
			if g := b.State().Segments; len(g) != 1 || len(g[0].Tombstones) > 0 {
				t.Errorf("the next compaction leaves %+v", g)
			}
			b.close()
		})
	}
}

// TestAMajorThatWasAskedForDuringAFoldIsMadeAfterIt: the repair of a copy that differs asked for one while the newest minors were folded, and it was not made.
func TestAMajorThatWasAskedForDuringAFoldIsMadeAfterIt(t *testing.T) {
	fs := newFolds(vfs.NewMem())
	b := openBench(t, fs, 1)
	defer b.close()
	for i := range 4 {
		b.must(b.put("a", int64(i), float64(i)))
		b.must(b.Flush(t.Context(), ByAge))
	}
	fs.steps = append(fs.steps, func() { b.must(b.Compact(t.Context(), ByRequest)) })
	b.foldFrom(2)
	if n := len(b.Segments()); n != 3 {
		t.Fatalf("%d segments", n)
	}
	b.must(b.CompactIfDue(t.Context(), time.Now()))
	b.want("a 0:0 1:1 2:2 3:3")
	made := b.Segments()
	if len(made) != 1 {
		t.Fatalf("%d segments: no major was made", len(made))
	}
	b.must(b.put("a", 4, 4))
	b.must(b.Flush(t.Context(), ByAge))
	b.must(b.CompactIfDue(t.Context(), time.Now()))
	if now := b.Segments(); len(now) != 2 || now[0].ID != made[0].ID {
		t.Errorf("one more was made: %v", now)
	}
}

// TestAMajorThatIsAskedForAgainWhileItIsMadeIsMadeOnce: a leader asks again and again until a copy has it, and all was written and sent twice.
func TestAMajorThatIsAskedForAgainWhileItIsMadeIsMadeOnce(t *testing.T) {
	fs := newFolds(vfs.NewMem())
	b := openBench(t, fs, 1)
	defer b.close()
	for i := range 4 {
		b.must(b.put("a", int64(i), float64(i)))
		b.must(b.Flush(t.Context(), ByAge))
	}
	ask := func() { b.must(b.Compact(t.Context(), ByRequest)) }
	fs.steps = append(fs.steps, ask)
	b.foldFrom(2)
	fs.steps = append(fs.steps, func() {
		b.must(b.put("a", 4, 4))
		b.must(b.Flush(t.Context(), ByAge))
		ask()
	})
	b.must(b.CompactIfDue(t.Context(), time.Now()))
	made := b.Segments()
	if len(made) != 2 || !made[0].Major {
		t.Fatalf("segments are %v", made)
	}
	b.must(b.CompactIfDue(t.Context(), time.Now()))
	if now := b.Segments(); len(now) != 2 || now[0].ID != made[0].ID {
		t.Errorf("one more was made: %v", now)
	}
}

// TestAMajorThatCouldNotBeMadeIsMadeLater: one that was asked for, too.
func TestAMajorThatCouldNotBeMadeIsMadeLater(t *testing.T) {
	fs := newFolds(vfs.NewMem())
	b := openBench(t, fs, 1)
	defer b.close()
	for i := range 4 {
		b.must(b.put("a", int64(i), float64(i)))
		b.must(b.Flush(t.Context(), ByAge))
	}
	fs.steps = append(fs.steps, func() { b.must(b.Compact(t.Context(), ByRequest)) })
	b.foldFrom(2)
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if err := b.CompactIfDue(ctx, time.Now()); !errors.Is(err, context.Canceled) {
		t.Errorf("a compaction that is stopped ends with %v", err)
	}
	b.must(b.CompactIfDue(t.Context(), time.Now()))
	if n := len(b.Segments()); n != 1 {
		t.Errorf("%d segments: no major was made", n)
	}
}

// TestDeletionsThatComeFasterThanAFoldHoldUpNoFlush: each of them made the compaction begin again, three times, the last time while no row could be flushed.
func TestDeletionsThatComeFasterThanAFoldHoldUpNoFlush(t *testing.T) {
	fs := newFolds(vfs.NewMem())
	b := openBench(t, fs, 1)
	defer b.close()
	for i := range 4 {
		b.must(b.put("a", int64(i), float64(i)))
		b.must(b.put("b", int64(i), float64(i)))
		b.must(b.Flush(t.Context(), ByAge))
	}
	began := 0
	for i := range 9 {
		fs.steps = append(fs.steps, func() {
			began++
			if b.flushMu.TryLock() {
				b.flushMu.Unlock()
				b.must(b.Delete(t.Context(), 0, only("a"), int64(i), int64(i)))
			} else if i == 0 {
				t.Error("no row can be flushed while all is folded")
			}
		})
	}
	b.CleanTombstones()
	b.must(b.Compact(t.Context(), ByDeletions))
	if began != 1 || len(b.Segments()) != 1 {
		t.Errorf("%d segments were written, %d are left", began, len(b.Segments()))
	}
	b.want("a 1:1 2:2 3:3; b 0:0 1:1 2:2 3:3")
	if b.must(b.CompactIfDue(t.Context(), time.Now())); began != 1 {
		t.Error("a deletion that came during the compaction asks for another one at once")
	}
}

// TestAFoldThatCrashesAnywhereLosesNothing: the disk of a leader stops at every operation of a compaction of its newest segments, with a flush meanwhile.
func TestAFoldThatCrashesAnywhereLosesNothing(t *testing.T) {
	steps := 0
	for at := 1; ; at++ {
		mem := vfs.NewCrashableMem()
		var n atomic.Int64
		var on atomic.Bool
		var taken atomic.Pointer[vfs.MemFS]
		fs := newFolds(errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
			if on.Load() && op.Kind.ReadOrWrite() == errorfs.OpIsWrite && n.Add(1) == int64(at) {
				taken.Store(mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: at % 2 * 100, RNG: rand.New(rand.NewPCG(1, 1))}))
			}
			return nil
		})))
		b := openBench(t, fs, 1)
		put := func(i int64) {
			b.must(b.put("a", i, float64(i)))
			b.must(b.put(fmt.Sprint("b", i), 1, 1))
			b.must(b.Flush(t.Context(), ByAge))
		}
		for i := range int64(4) {
			put(i)
		}
		had := "a 0:0 1:1 2:2 3:3; b0 1:1; b1 1:1; b2 1:1; b3 1:1"
		on.Store(true)
		fs.steps = append(fs.steps, func() {
			on.Store(false)
			if taken.Load() == nil {
				had = "a 0:0 1:1 2:2 3:3 4:4; b0 1:1; b1 1:1; b2 1:1; b3 1:1; b4 1:1"
			}
			put(4)
			on.Store(true)
		})
		b.foldFrom(2)
		on.Store(false)
		if n := len(b.Segments()); n != 4 {
			t.Fatalf("%d segments", n)
		}
		b.close()
		image := taken.Load()
		if image == nil {
			break
		}
		steps++
		b = openBench(t, image, 2)
		b.must(b.Tidy(true))
		b.must(b.Damaged())
		b.want(had)
		if len(b.files()) != len(b.Segments()) {
			t.Errorf("files %v of %d segments", b.files(), len(b.Segments()))
		}
		b.foldFrom(1)
		b.want(had)
		b.close()
	}
	if steps < 10 {
		t.Errorf("only %d operations", steps)
	}
}

// TestCopiesTakeAMinorOfSeveralMinors: a follower that has them, one that has some, and one that has none, by the rules of the build before (C66): a minor takes the place of others on its base.
func TestCopiesTakeAMinorOfSeveralMinors(t *testing.T) {
	l, c := leading(t, vfs.NewMem(), 1)
	defer l.close()
	var fs []*bench
	for range 3 {
		f := following(t, vfs.NewMem(), 1)
		defer f.close()
		fs = append(fs, f)
	}
	c.await = func(point.Serial) (err error) {
		for _, f := range fs {
			err = errors.Join(err, f.catchUp(l, 1))
		}
		return err
	}
	for i := range int64(6) {
		l.must(l.put("a", i, float64(i)))
		l.must(l.put(fmt.Sprint("b", i), 1, 1))
		l.must(l.Flush(t.Context(), ByAge))
		for n, f := range fs {
			if n == 0 || n == 1 && i < 4 {
				f.must(f.fetch(l, 1))
			}
		}
	}
	for _, first := range []int{3, 1, 0} {
		l.foldFrom(first)
		l.must(l.put("c", int64(first), 1))
		for _, f := range fs {
			f.must(f.catchUp(l, 1))
			f.must(f.fetch(l, 1))
			same(t, l, f)
			if len(f.files()) != len(l.Segments()) {
				t.Errorf("files %v of %d segments", f.files(), len(l.Segments()))
			}
		}
		l.must(l.Flush(t.Context(), ByAge))
	}
}

// TestAFoldOfTheNewestTakesAllWhereRowsAreDeleted: a minor's header lists a deletion of rows below it, or tombstones hide rows of some segment. Only a major lists what was deleted before, and may define series without rows.
func TestAFoldOfTheNewestTakesAllWhereRowsAreDeleted(t *testing.T) {
	for _, folded := range []bool{false, true} { // before the deletion is in a header
		b := openBench(t, vfs.NewMem(), 1)
		for i := range 3 {
			b.must(b.put("a", int64(i), 1))
			b.must(b.put("b", int64(i), 1))
			b.must(b.Flush(t.Context(), ByAge))
		}
		b.must(b.Delete(t.Context(), 0, only("a"), 0, 9))
		if folded {
			b.must(b.Compact(t.Context(), ByRequest))
		}
		for i := range 3 {
			b.must(b.put("b", int64(10+i), 1))
			b.must(b.Flush(t.Context(), ByAge))
		}
		b.foldFrom(1)
		b.want("b 0:1 1:1 2:1 10:1 11:1 12:1")
		if n := len(b.Segments()); n != 1 {
			t.Errorf("folded %t: %d segments", folded, n)
		}
		b.close()
	}
}

// overwritten has two minors: a row of a, then a staged row of the same time that is older by its rank, beside one of another time that is younger than both.
func overwritten(t *testing.T) *bench {
	b := openBench(t, vfs.NewMem(), 1)
	b.must(b.putAs(ranked(10), "a", 1, 1))
	b.must(b.Flush(t.Context(), ByAge))
	b.must(b.forward(ranked(5), "a", 1, 2))
	b.must(b.putAs(ranked(20), "a", 2, 3))
	b.must(b.Flush(t.Context(), ByAge))
	return b
}

// TestAnOverwrittenValueStaysOverwrittenAfterAFoldOfTheNewest: a staged row that is older than one in the major, and old enough for majors to drop ranks. In a minor without ranks it would count as
// the highest row of its chunk, and win from then on.
func TestAnOverwrittenValueStaysOverwrittenAfterAFoldOfTheNewest(t *testing.T) {
	b := overwritten(t)
	defer b.close()
	b.must(b.putAs(rank.At(time.Now().UnixNano()), "other", 1, 1))
	b.must(b.Flush(t.Context(), ByAge))
	want := map[string]map[point.Nanos]float64{"a": {1: 1, 2: 3}, "other": {1: 1}}
	b.reads(0, 0, want)
	b.foldFrom(1)
	b.reads(0, 1, want)
	b.must(b.Compact(t.Context(), ByRequest))
	b.reads(0, 2, want)
}

// TestAFoldOfTheNewestKeepsRanksWhereAllRowsAreOld, since a row that wins among them may lose to one below.
func TestAFoldOfTheNewestKeepsRanksWhereAllRowsAreOld(t *testing.T) {
	b := overwritten(t)
	defer b.close()
	b.must(b.putAs(ranked(30), "a", 3, 4))
	b.must(b.Flush(t.Context(), ByAge))
	want := map[string]map[point.Nanos]float64{"a": {1: 1, 2: 3, 3: 4}}
	b.reads(0, 0, want)
	b.foldFrom(1)
	b.reads(0, 1, want)
}

// TestSegmentsOfEarlyBuildsAreWrittenAnewByTheFirstCompaction: one without a checksum is neither copied nor scrubbed, nor is what lies above it, and one without a range does not help to rebuild
// the catalogue. A fold of the newest would leave them as they are until the partition's time has passed.
func TestSegmentsOfEarlyBuildsAreWrittenAnewByTheFirstCompaction(t *testing.T) {
	for name, early := range map[string]func(g *SegmentState){
		"no checksum": func(g *SegmentState) { g.Checksum = 0 },
		"no range":    func(g *SegmentState) { g.Range = nil },
	} {
		for at, want := range []int{1, 1, 3, 3} { // index of the early segment, and segments after a fold of those from 2 on
			b := openBench(t, vfs.NewMem(), 1)
			for i := range 4 {
				b.must(b.put("a", int64(i), float64(i)))
				b.must(b.Flush(t.Context(), ByAge))
			}
			b.mu.Lock()
			st := *b.mu.state
			st.Segments = slices.Clone(st.Segments)
			early(&st.Segments[at])
			b.mu.state = &st
			b.mu.Unlock()
			b.foldFrom(2)
			if n := len(b.Segments()); n != want {
				t.Errorf("%s in segment %d: %d segments, want %d", name, at, n, want)
			}
			b.want("a 0:0 1:1 2:2 3:3")
			for _, g := range b.State().Segments {
				if g.Checksum == 0 || !g.Described() {
					t.Errorf("%s in segment %d: segment %v is as it was", name, at, g.ID)
				}
			}
			b.close()
		}
	}
}

// TestAFoldOfALeaderThatFollowsAndLeadsAgainCommitsNothing: its followers were offered the segments from before it until its end, and nothing of what was flushed by then.
func TestAFoldOfALeaderThatFollowsAndLeadsAgainCommitsNothing(t *testing.T) {
	for name, change := range map[string]func(b *bench){
		"follows":        func(b *bench) { b.must(b.FollowLeader(2)) },
		"follows, leads": func(b *bench) { b.must(b.FollowLeader(2)); b.must(b.LeadChain(3, new(byHand))) },
		"next epoch":     func(b *bench) { b.must(b.LeadChain(2, new(byHand))) },
	} {
		t.Run(name, func(t *testing.T) {
			fs := newFolds(vfs.NewMem())
			b, _ := leading(t, fs, 1)
			defer b.close()
			for i := range 4 {
				b.must(b.put("a", int64(i), float64(i)))
				b.must(b.Flush(t.Context(), ByAge))
			}
			var had *State
			fs.steps = append(fs.steps, func() {
				b.must(b.put("a", 4, 4))
				b.must(b.Flush(t.Context(), ByAge))
				had = b.State()
				change(b)
				if b.Offered() != had {
					t.Error("the next leader's followers are offered the segments from before a fold of another epoch")
				}
			})
			if err := b.compact(t.Context(), ByRequest, b.Segments()[1].ID); !fault.Is(err, fault.Canceled) && !fault.Is(err, fault.Stale) {
				t.Errorf("the fold ends with %v", err)
			}
			if b.State() != had || len(b.files()) != 5 {
				t.Errorf("%d segments, files %v", len(b.Segments()), b.files())
			}
			b.want("a 0:0 1:1 2:2 3:3 4:4")
		})
	}
}

// TestRowsOfADeletionThatIsCutDuringAFoldAreKept: the fold left them out, and another deletion came, so that the segments have as many as before.
func TestRowsOfADeletionThatIsCutDuringAFoldAreKept(t *testing.T) {
	fs := newFolds(vfs.NewMem())
	b, _ := leading(t, fs, 1)
	defer b.close()
	for i := range 3 {
		b.must(b.put("a", int64(i), float64(i)))
		b.must(b.put("b", int64(i), float64(i)))
		b.must(b.Flush(t.Context(), ByAge))
	}
	before := b.Last()
	b.must(b.Delete(t.Context(), 1, only("a"), 0, 9))
	b.want("b 0:0 1:1 2:2")
	fs.when = errorfs.OpRename
	fs.steps = append(fs.steps, func() {
		b.must(b.FollowLeader(2))
		_, err := b.Cut(before)
		b.must(err)
		b.must(b.LeadChain(3, new(byHand)))
		b.must(b.Delete(t.Context(), 3, only("b"), 1, 1))
	})
	if err := b.Compact(t.Context(), ByRequest); !fault.Is(err, fault.Canceled) || len(fs.steps) > 0 {
		t.Errorf("the compaction ends with %v; %d steps are left", err, len(fs.steps))
	}
	b.want("a 0:0 1:1 2:2; b 0:0 2:2")
	b.must(b.Compact(t.Context(), ByRequest))
	b.want("a 0:0 1:1 2:2; b 0:0 2:2")
}

// TestACopyThatComesBackDuringAFoldGetsTheFramesThatItLacks: where the compaction was asked for, it is not offered what was flushed meanwhile, so the log keeps these frames until the compaction ends,
// or the log has no room.
func TestACopyThatComesBackDuringAFoldGetsTheFramesThatItLacks(t *testing.T) {
	for _, c := range []struct {
		why, next Reason // of the flush, and of a round of maintenance after it, when there are no more rows
		lacks     bool
	}{{why: ByAge}, {why: ByLog, lacks: true}, {why: ByMemory, next: ByLog, lacks: true}} {
		why := c.why
		fs := newFolds(vfs.NewMem())
		l, _ := leading(t, fs, 1)
		f := following(t, vfs.NewMem(), 1)
		for i := range 4 {
			l.must(l.put("a", int64(i), float64(i)))
			f.must(f.catchUp(l, 1))
			l.must(l.Flush(t.Context(), ByAge))
			f.must(f.catchUp(l, 1))
			f.must(f.fetch(l, 1))
		}
		fs.steps = append(fs.steps, func() {
			l.must(l.put("a", 4, 4)) // the copy is away
			l.must(l.Flush(t.Context(), why))
			l.must(l.Maintain(t.Context(), time.Now(), c.next))
			l.must(l.put("a", 5, 5))
			if l.Offered() == l.State() {
				t.Error("copies are offered what was flushed meanwhile")
			}
			if err := f.catchUp(l, 1); (err != nil) != c.lacks {
				t.Errorf("flushed by %s: the copy comes back, with error %v", why, err)
			}
		})
		l.must(l.Compact(t.Context(), ByRequest))
		f.must(f.fetch(l, 1))
		f.must(f.catchUp(l, 1))
		same(t, l, f)
		held := 0
		l.must(l.EachFrame(point.Serial{}, func(point.Serial, []byte) error { held++; return nil }))
		if held != 1 {
			t.Errorf("flushed by %s: the log has %d frames after the fold, want that of the head alone", why, held)
		}
		l.close()
		f.close()
	}
}

// TestAPartitionIsReadAfterAFoldReplacedADamagedSegment: the scrub found the damage once all rows were read. No file was damaged after the commit, and nothing was read until the next start.
func TestAPartitionIsReadAfterAFoldReplacedADamagedSegment(t *testing.T) {
	for at, stays := range []bool{true, false, false} {
		fs := newFolds(vfs.NewMem())
		fs.when = errorfs.OpRename
		b := openBench(t, fs, 1)
		for i := range 3 {
			b.must(b.put("a", int64(i), float64(i)))
			b.must(b.Flush(t.Context(), ByAge))
		}
		fs.steps = append(fs.steps, func() {
			found, err := b.CheckSegment(t.Context(), b.breakSegment(at), func(int) error { return nil })
			if b.must(err); found != FoundDamaged {
				t.Errorf("segment %d is found %v", at, found)
			}
		})
		b.foldFrom(1)
		if ids, _ := b.Broken(); len(b.Segments()) != 2 || (b.Damaged() != nil) != stays || (len(ids) > 0) != stays {
			t.Errorf("segment %d: %d segments, broken %v, %v", at, len(b.Segments()), ids, b.Damaged())
		}
		if !stays {
			b.want("a 0:0 1:1 2:2")
		}
		b.close()
	}
}
