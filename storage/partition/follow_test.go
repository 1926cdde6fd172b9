package partition

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/frame"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/brick"
	"github.com/spillwaydb/spillway/storage/segment"
	"github.com/spillwaydb/spillway/storage/series"
)

// byHand is a chain: the test itself carries its frames over.
type byHand struct {
	passed [][]byte
	own    brick.Wait               // of the newest frame
	await  func(point.Serial) error // nil: all other placements have all frames
}

func (c *byHand) Pass(_, _ point.Serial, rec []byte, own brick.Wait) {
	c.passed, c.own = append(c.passed, bytes.Clone(rec)), own
}

func (c *byHand) HandOn() {}

func (c *byHand) Await(_ context.Context, s point.Serial) error {
	if c.await == nil {
		return c.own.Wait()
	}
	return c.await(s)
}

// leading opens a placement that leads, with a chain.
func leading(t *testing.T, fs vfs.FS, epoch point.Epoch) (*bench, *byHand) {
	t.Helper()
	b, c := openBench(t, fs, 0), new(byHand)
	b.stamp = point.Stamp(epoch) << 32
	b.must(b.LeadChain(epoch, c))
	return b, c
}

// following opens a placement that follows.
func following(t *testing.T, fs vfs.FS, epoch point.Epoch) *bench {
	t.Helper()
	b := openBench(t, fs, 0)
	b.must(b.FollowLeader(0))
	b.must(b.Tidy(true))
	b.must(b.FollowLeader(epoch))
	return b
}

// catchUp carries over the frames that b lacks.
func (b *bench) catchUp(from *bench, epoch point.Epoch) error {
	return from.EachFrame(b.Last(), func(_ point.Serial, rec []byte) error {
		wait, err := b.Follow(epoch, rec)
		if err == nil {
			err = wait.Wait()
		}
		return err
	})
}

// fetch carries over the segments that b lacks.
func (b *bench) fetch(from *bench, epoch point.Epoch) error {
	for _, info := range from.Segments() {
		if slices.ContainsFunc(b.Segments(), func(i segment.Info) bool { return i.ID == info.ID }) {
			continue
		}
		path := copySegment(b.t, from, b, info.ID)
		if err := b.Adopt(epoch, info, path); err != nil {
			return err
		}
	}
	return nil
}

// copySegment leaves a copy of a segment's file on b's disk.
func copySegment(t *testing.T, from, to *bench, id point.SegmentID) string {
	t.Helper()
	in, err := from.brick.FS().Open(from.brick.SegmentPath(ident.Placement, id))
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	const path = "incoming"
	out, err := to.brick.FS().Create(path, vfs.WriteCategoryUnspecified)
	if err == nil {
		_, err = io.Copy(out, in)
	}
	if err == nil {
		err = errors.Join(out.Sync(), out.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// same compares rows, lists of segments, ends, and the logs behind the segments of both, byte for byte.
func same(t *testing.T, a, b *bench) {
	t.Helper()
	after := a.Flushed()
	if after.Less(b.Flushed()) {
		after = b.Flushed()
	}
	da, err := a.Digest(after)
	a.must(err)
	db, err := b.Digest(after)
	b.must(err)
	if fmt.Sprint(da) != fmt.Sprint(db) {
		t.Errorf("digests %+v and %+v", da, db)
	}
	va, err := a.View()
	a.must(err)
	defer va.Close()
	vb, err := b.View()
	b.must(err)
	defer vb.Close()
	if ra, rb := text(t, va), text(t, vb); ra != rb {
		t.Errorf("rows %q and %q", ra, rb)
	}
	if x, y := numbersOf(t, a), numbersOf(t, b); x != y {
		t.Errorf("series are numbered %s and %s", x, y)
	}
}

// numbersOf returns the names of all series by their numbers.
func numbersOf(t *testing.T, b *bench) string {
	t.Helper()
	v, err := b.View()
	b.must(err)
	defer v.Close()
	ss, err := v.MatchDefined(nil)
	b.must(err)
	var out []string
	for _, s := range ss {
		out = append(out, fmt.Sprintf("%d=%s", s.ID, s.Labels.Get("i")))
	}
	slices.Sort(out)
	return fmt.Sprint(out)
}

func TestAFollowerHoldsWhatItsLeaderDoes(t *testing.T) {
	l, c := leading(t, vfs.NewMem(), 1)
	defer l.close()
	f := following(t, vfs.NewMem(), 1)
	defer f.close()
	for i := range 5 {
		l.must(l.put("a", point.Nanos(i), float64(i)))
		l.must(l.put(fmt.Sprint("b", i), 10, 1))
	}
	f.must(f.catchUp(l, 1))
	same(t, l, f)
	var logged [][]byte
	l.must(l.EachFrame(point.Serial{}, func(_ point.Serial, rec []byte) error {
		logged = append(logged, bytes.Clone(rec))
		return nil
	}))
	if !slices.EqualFunc(logged, c.passed, bytes.Equal) {
		t.Error("what was passed on is not what lies in the log")
	}
	c.await = func(point.Serial) error { return f.catchUp(l, 1) }
	// A flush logs FREEZE; the follower ends its head there, keeps it until it has the segment, and makes none itself.
	l.must(l.Flush(t.Context(), ByAge))
	l.must(l.put("a", 20, 2))
	f.must(f.catchUp(l, 1))
	f.must(f.Flush(t.Context(), ByAge))
	f.must(f.CompactIfDue(t.Context(), l.mu.lastWrite))
	if n, h := len(f.Segments()), f.HeadRows(); n != 0 || h != 11 {
		t.Errorf("%d segments and %d rows in heads, want 0 and 11", n, h)
	}
	f.must(f.fetch(l, 1))
	if h, last := f.HeadRows(), f.Flushed(); h != 1 || last != (point.Serial{Epoch: 1, Seq: 11}) {
		t.Errorf("%d rows in heads behind %v, want 1 behind 1-11", h, last)
	}
	same(t, l, f)
	// A major takes the place of all.
	l.must(l.Flush(t.Context(), ByAge))
	l.must(l.Compact(t.Context(), ByRequest))
	f.must(f.catchUp(l, 1))
	f.must(f.fetch(l, 1))
	same(t, l, f)
	if n := len(f.files()); n != 1 {
		t.Errorf("%d files are left, want the major alone", n)
	}
	l.must(l.put("c", 30, 3))
	f.must(f.catchUp(l, 1))
	same(t, l, f)
}

func TestAFollowerTakesNothingThatDoesNotFollow(t *testing.T) {
	l, c := leading(t, vfs.NewMem(), 3)
	defer l.close()
	f := following(t, vfs.NewMem(), 3)
	defer f.close()
	for i := range 3 {
		l.must(l.put("a", point.Nanos(i), 1))
	}
	take := func(epoch point.Epoch, rec []byte) error { _, err := f.Follow(epoch, rec); return err }
	var m *Mismatch
	if err := take(3, c.passed[1]); !errors.As(err, &m) || !fault.Is(err, fault.Stale) || m.Last != (point.Serial{}) || len(m.Ends) != 0 {
		t.Errorf("the second frame first: %v", err)
	}
	f.must(take(3, c.passed[0]))
	if err := take(3, c.passed[0]); !errors.As(err, &m) || m.Last.Seq != 1 || len(m.Ends) != 1 {
		t.Errorf("the first frame twice: %v", err)
	}
	for _, epoch := range []point.Epoch{2, 4} {
		if err := take(epoch, c.passed[1]); !fault.Is(err, fault.Stale) {
			t.Errorf("a frame sent in epoch %d: %v, want stale", epoch, err)
		}
	}
	flipped := bytes.Clone(c.passed[1])
	flipped[len(flipped)-1] ^= 1
	if err := take(3, flipped); !fault.Is(err, fault.Corrupt) {
		t.Errorf("a frame with a flipped bit: %v, want corrupt", err)
	}
	if err := f.put("a", 9, 9); !fault.Is(err, fault.Stale) {
		t.Errorf("an insert: %v, want stale", err)
	}
	if err := f.Delete(t.Context(), 3, only("a"), 0, 9); !fault.Is(err, fault.Stale) {
		t.Errorf("a deletion: %v, want stale", err)
	}
	if err := f.Lead(3); !fault.Is(err, fault.Stale) {
		t.Errorf("leading in the leader's epoch: %v, want stale", err)
	}
	if err := f.FollowLeader(2); !fault.Is(err, fault.Stale) {
		t.Errorf("following an older leader: %v, want stale", err)
	}
	if err := l.FollowLeader(3); !fault.Is(err, fault.Stale) {
		t.Errorf("following oneself: %v, want stale", err)
	}
	f.must(f.catchUp(l, 3))
	same(t, l, f)
}

// M has a frame that defines series 1 otherwise than the next leader does (history 2 of replication).
func TestSurplusIsSetAsideAndItsNumbersAreGivenAnew(t *testing.T) {
	fs := vfs.NewMem()
	h, _ := leading(t, vfs.NewMem(), 1)
	m := following(t, fs, 1)
	tail := following(t, vfs.NewMem(), 1)
	defer h.close()
	defer tail.close()
	h.must(h.put("a", 1, 1))
	m.must(m.catchUp(h, 1))
	tail.must(tail.catchUp(h, 1))
	h.must(h.put("A", 2, 2)) // reaches M alone
	h.must(h.put("a", 3, 3))
	m.must(m.catchUp(h, 1))

	tail.must(tail.Lead(2))
	tail.must(tail.put("B", 4, 4))
	m.must(m.FollowLeader(2))
	var mm *Mismatch
	if err := m.catchUp(tail, 2); !errors.As(err, &mm) {
		_ = tail.EachFrame(point.Serial{}, func(s point.Serial, rec []byte) error {
			if s.Epoch == 2 {
				_, err = m.Follow(2, rec)
			}
			return nil
		})
		if !errors.As(err, &mm) || fmt.Sprint(mm.Ends) != "[{1 3}]" {
			t.Fatalf("a frame of the new leader before the cut: %v", err)
		}
	}
	s, err := m.Cut(point.Serial{Epoch: 1, Seq: 1})
	m.must(err)
	m.want("a 1:1")
	m.must(m.catchUp(tail, 2))
	same(t, tail, m)
	if again, err := m.Cut(point.Serial{Epoch: 2, Seq: 2}); again != nil || err != nil {
		t.Errorf("a second cut: %v, %v", again, err)
	}
	// The surplus is there after a restart, with the labels of its series.
	m.close()
	m = following(t, fs, 2)
	defer m.close()
	same(t, tail, m)
	list, err := m.SurplusFiles()
	if err != nil || len(list) != 1 || list[0].Path != s.Path || s.Frames != 2 {
		t.Fatalf("surplus %v of %+v, %v", list, s, err)
	}
	var got string
	m.must(m.ReadSurplus(&list[0], func(f *frame.Frame) error {
		for i, id := range f.IDs {
			got += fmt.Sprintf("%s %d:%v foreign %v; ", f.Defs[id].Get("i"), f.Times[i], f.Values[i], f.Foreign)
		}
		return nil
	}))
	if want := "A 2:2 foreign true; a 3:3 foreign true; "; got != want {
		t.Errorf("surplus %q, want %q", got, want)
	}
	m.must(m.ForgetSurplus(&list[0]))
	if list, _ := m.SurplusFiles(); len(list) > 0 {
		t.Errorf("%v is left", list)
	}
}

func TestADamagedSurplusFileIsNotHandedOver(t *testing.T) {
	h, _ := leading(t, vfs.NewMem(), 1)
	defer h.close()
	m := following(t, vfs.NewMem(), 1)
	defer m.close()
	h.must(h.put("a", 1, 1))
	h.must(h.put("b", 2, 2))
	m.must(m.catchUp(h, 1))
	s, err := m.Cut(point.Serial{})
	m.must(err)
	whole, err := readAll(m.brick.FS(), s.Path)
	m.must(err)
	if int64(len(whole)) != s.Bytes {
		t.Errorf("%d bytes, said are %d", len(whole), s.Bytes)
	}
	read := func(b []byte) error {
		n := 0
		err := m.eachSurplus(b, s.After, func(*frame.Frame) error { n++; return nil })
		if err == nil && n != 2 {
			t.Errorf("%d frames, want 2", n)
		}
		return err
	}
	m.must(read(whole))
	for n := range whole {
		if err := read(whole[:n]); !fault.Is(err, fault.Corrupt) {
			t.Errorf("cut to %d bytes: %v, want corrupt", n, err)
		}
		flipped := bytes.Clone(whole)
		flipped[n] ^= 0x10
		if err := read(flipped); !fault.Is(err, fault.Corrupt) {
			t.Errorf("byte %d flipped: %v, want corrupt", n, err)
		}
	}
}

// A leader that was a follower continues its leader's numbers and serials; the old leader follows it.
func TestAFollowerThatLeadsNumbersAsItsLeaderWould(t *testing.T) {
	l, c := leading(t, vfs.NewMem(), 1)
	defer l.close()
	f := following(t, vfs.NewMem(), 1)
	defer f.close()
	c.await = func(point.Serial) error { return f.catchUp(l, 1) }
	l.must(l.put("a", 1, 1))
	l.must(l.Flush(t.Context(), ByAge)) // its segment does not reach the follower
	l.must(l.put("b", 2, 2))
	f.must(f.catchUp(l, 1))
	c2 := new(byHand)
	f.must(f.LeadChain(2, c2))
	l.must(l.FollowLeader(2))
	c2.await = func(point.Serial) error { return l.catchUp(f, 2) }
	f.must(f.put("c", 3, 3))
	f.must(f.put("a", 4, 4))
	l.must(l.catchUp(f, 2))
	f.must(f.Flush(t.Context(), ByRetry)) // the head that the leader before froze
	f.must(f.Flush(t.Context(), ByAge))
	if n := len(f.Segments()); n != 2 {
		t.Errorf("%d segments, want one a frozen head", n)
	}
	l.must(l.catchUp(f, 2))
	if got, want := numbersOf(t, l), numbersOf(t, f); got != want || got != "[0=a 1=b 2=c]" {
		t.Errorf("series are numbered %s and %s", got, want)
	}
	// The old leader has rows in one segment, the new one has them in another: a major of the new one brings them together.
	f.must(f.Compact(t.Context(), ByRequest))
	l.must(l.fetch(f, 2))
	same(t, f, l)
}

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
	// Another placement takes over while the flush waits.
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

	// A minor on the same base that holds less takes nothing away.
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
	same(t, l, f)
}

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

// A segment of the next leader lacks frames that only this placement has: they must be cut before, or would be in neither log nor segments.
func TestASegmentIsNotAdoptedOverSurplus(t *testing.T) {
	old, _ := leading(t, vfs.NewMem(), 1)
	defer old.close()
	l, m := following(t, vfs.NewMem(), 1), following(t, vfs.NewMem(), 1)
	defer l.close()
	defer m.close()
	old.must(old.put("a", 1, 1))
	l.must(l.catchUp(old, 1))
	old.must(old.put("surplus", 2, 2))
	m.must(m.catchUp(old, 1))
	l.must(l.Lead(2))
	l.must(l.put("b", 3, 3))
	l.must(l.Flush(t.Context(), ByAge))
	m.must(m.FollowLeader(2))
	if err := m.fetch(l, 2); !fault.Is(err, fault.Stale) {
		t.Errorf("adopted over surplus: %v", err)
	}
	m.want("a 1:1; surplus 2:2")
	_, err := m.Cut(point.Serial{Epoch: 1, Seq: 1})
	m.must(err)
	m.must(m.fetch(l, 2))
	same(t, l, m)
}

// live carries frames over as they come, in a goroutine of its own.
type live struct {
	frames chan []byte
	mu     sync.Mutex
	upto   point.Serial
	news   chan struct{}
}

func (c *live) Pass(_, _ point.Serial, rec []byte, _ brick.Wait) { c.frames <- bytes.Clone(rec) }

func (c *live) HandOn() {}

func (c *live) Await(ctx context.Context, s point.Serial) error {
	for {
		c.mu.Lock()
		ok, news := !c.upto.Less(s), c.news
		c.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-news:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (c *live) follow(t *testing.T, f *bench, epoch point.Epoch) {
	for rec := range c.frames {
		wait, err := f.Follow(epoch, rec)
		if err == nil {
			err = wait.Wait()
		}
		if err != nil {
			t.Error(err)
			return
		}
		c.mu.Lock()
		c.upto = f.Last()
		close(c.news)
		c.news = make(chan struct{})
		c.mu.Unlock()
	}
}

// Writers, flushes, deletions, segments and readers at once: every acked row is on both placements.
func TestAFollowerKeepsUpWithWritersAndFlushes(t *testing.T) {
	l, f := openBench(t, vfs.NewMem(), 0), following(t, vfs.NewMem(), 1)
	defer l.close()
	defer f.close()
	c := &live{frames: make(chan []byte, 4096), news: make(chan struct{})}
	l.must(l.LeadChain(1, c))
	var follower, writers, others sync.WaitGroup
	follower.Go(func() { c.follow(t, f, 1) })
	for w := range 4 {
		writers.Go(func() {
			ref := l.index.Intern(labelsOf(fmt.Sprint("w", w)))
			defer l.index.Release(ref)
			for i := range 200 {
				fresh := l.index.Intern(labelsOf(fmt.Sprint("w", w, "-", i/20)))
				err := l.Append(&Rows{Stamp: point.Stamp(i*4+w+1) << 12, Level: point.All, Refs: []series.Ref{ref, fresh}, Times: []point.Nanos{point.Nanos(i), point.Nanos(i)}, Values: []float64{1, 2}})
				l.index.Release(fresh)
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	stop := make(chan struct{})
	loop := func(f func() error) {
		others.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if err := f(); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	loop(func() error { return l.Flush(t.Context(), ByAge) })
	loop(func() error { return l.Delete(t.Context(), 1, only("w0"), 0, 10) })
	loop(func() error {
		if err := f.fetch(l, 1); !fault.Is(err, fault.Stale) && !fault.Is(err, fault.Throttled) {
			return err
		}
		return nil
	})
	loop(func() error {
		v, err := f.View()
		if err == nil {
			_, err = v.Match(nil)
			v.Close()
		}
		return err
	})
	writers.Wait()
	close(stop)
	others.Wait()
	l.must(l.Flush(t.Context(), ByAge))
	close(c.frames)
	follower.Wait()
	f.must(f.fetch(l, 1))
	same(t, l, f)
}
