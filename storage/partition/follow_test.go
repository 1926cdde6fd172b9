package partition

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

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
	// A major replaces all.
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
