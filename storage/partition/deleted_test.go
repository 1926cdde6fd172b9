package partition

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/segment"
	"github.com/spillwaydb/spillway/storage/series"
)

// forward appends a row that another server ordered.
func (b *bench) forward(stamp point.Stamp, name string, at point.Nanos, v float64) error {
	ref := b.index.Intern(labelsOf(name))
	defer b.index.Release(ref)
	return b.Append(&Rows{Stamp: stamp, Foreign: true, Level: point.All, Refs: []series.Ref{ref}, Times: []point.Nanos{at}, Values: []float64{v}})
}

// highest is the rank of the newest frame.
func (b *bench) highest() point.Stamp {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.mu.ranks.Highest()
}

// TestDeletedRowsDoNotComeBackByALateForward: a server that kept rows for the leader forwards them once more, after they were deleted. What it received after
// the deletion is accepted.
func TestDeletedRowsDoNotComeBackByALateForward(t *testing.T) {
	fs := vfs.NewMem()
	b := openBench(t, fs, 1)
	b.must(b.put("c", 1, 1))
	low := b.highest()
	b.RankAbove(low + deletedMargin)
	b.must(b.forward(low, "a", 1, 10))
	b.must(b.forward(low, "a", 200, 20))
	b.must(b.forward(low, "b", 1, 30))
	b.must(b.Delete(t.Context(), 0, only("a"), 0, 100))
	for _, step := range []struct {
		what string
		do   func()
	}{
		{"at once", func() {}},
		{"after a restart", func() { b.close(); b = openBench(t, fs, b.mu.held+1); b.must(b.Tidy(true)) }},
		{"after a flush", func() { b.must(b.Flush(t.Context(), ByAge)) }},
		{"after a compaction", func() { b.must(b.Compact(t.Context(), ByRequest)) }},
		{"after another restart", func() { b.close(); b = openBench(t, fs, b.mu.held+1); b.must(b.Tidy(true)) }},
	} {
		step.do()
		b.must(b.forward(low, "a", 1, 10))
		b.must(b.forward(low, "b", 1, 30))
		b.must(b.forward(low, "a", 200, 20))
		if b.want("a 200:20; b 1:30; c 1:1"); t.Failed() {
			t.Fatal(step.what)
		}
	}
	b.must(b.forward(b.highest()+1, "a", 1, 40))
	b.want("a 1:40 200:20; b 1:30; c 1:1")
	b.close()
}

// TestARowThatIsAckedAfterADeletionIsKept: the gateway that staged it has a clock that is behind that of the gateway of the rows before.
func TestARowThatIsAckedAfterADeletionIsKept(t *testing.T) {
	b := openBench(t, vfs.NewMem(), 1)
	b.must(b.put("a", 1, 1))
	now := point.Stamp(1 << 60)
	b.RankAbove(now)
	b.must(b.put("b", 1, 1))
	b.must(b.DeleteLate(t.Context(), 0, only("a"), 0, 100))
	b.must(b.forward(now-point.Stamp(3*time.Second), "a", 2, 20))
	b.want("a 2:20; b 1:1")
	b.must(b.forward(now-point.Stamp(30*time.Second), "a", 3, 30))
	b.want("a 2:20; b 1:1")
	b.close()
}

// TestDeletedRowsDoNotComeBackAtTheNextLeader: one that followed has the deletion from the log, or from a segment alone; and not from a frame that was cut off.
func TestDeletedRowsDoNotComeBackAtTheNextLeader(t *testing.T) {
	for _, how := range []string{"log", "segment", "cut"} {
		l, _ := leading(t, vfs.NewMem(), 1)
		f := following(t, vfs.NewMem(), 1)
		l.must(l.put("a", 1, 10))
		low := l.highest()
		l.RankAbove(low + deletedMargin)
		l.must(l.put("b", 1, 10))
		l.must(l.Flush(t.Context(), ByAge))
		f.must(f.fetch(l, 1))
		if how != "cut" {
			l.must(l.Delete(t.Context(), 1, only("a"), 0, 100))
		}
		l.must(l.put("b", 2, 20))
		switch how {
		case "segment":
			l.must(l.Flush(t.Context(), ByAge))
			f.must(f.fetch(l, 1))
		default:
			f.must(f.catchUp(l, 1))
		}
		want := "b 1:10 2:20"
		if how == "cut" {
			l.must(l.Delete(t.Context(), 1, only("a"), 0, 100))
			f.must(f.fetch(l, 1))
			f.must(f.catchUp(l, 1))
			f.want(want)
			if _, err := f.Cut(f.Flushed()); err != nil {
				t.Fatal(err)
			}
			want = "a 1:10 3:7; b 1:10 2:20"
		}
		f.must(f.LeadChain(2, new(byHand)))
		f.must(f.forward(low, "a", 1, 10))
		f.must(f.forward(low, "a", 3, 7))
		if f.want(want); t.Failed() {
			t.Fatal(how)
		}
		l.close()
		f.close()
	}
}

// TestALateRowIsHiddenOnlyByADeletionThatAllHave: a leader that dies could otherwise lose the deletion, and the row was forgotten where it waited.
func TestALateRowIsHiddenOnlyByADeletionThatAllHave(t *testing.T) {
	l, c := leading(t, vfs.NewMem(), 1)
	defer l.close()
	l.must(l.put("a", 1, 10))
	low := l.highest()
	l.RankAbove(low + deletedMargin)
	l.must(l.Flush(t.Context(), ByAge))
	away := fault.Errorf(fault.Unavailable, "a placement is away")
	c.await = func(point.Serial) error { return away }
	if err := l.Delete(t.Context(), 1, only("a"), 0, 100); !fault.Is(err, fault.Unavailable) {
		t.Fatal(err)
	}
	if err := l.forward(low, "a", 1, 10); !fault.Is(err, fault.Unavailable) {
		t.Errorf("acked without the deletion at all placements: %v", err)
	}
	c.await = nil
	l.must(l.forward(low, "a", 1, 10))
}

// TestARowThatComesAfterItsDeletionIsHidden: the only row of a series was staged when the series was deleted, and came by a server that had been away.
func TestARowThatComesAfterItsDeletionIsHidden(t *testing.T) {
	fs := vfs.NewMem()
	b := openBench(t, fs, 1)
	b.must(b.put("c", 1, 1))
	low := b.highest()
	b.RankAbove(low + deletedMargin)
	b.must(b.DeleteLate(t.Context(), 0, only("a"), 0, 100))
	b.must(b.forward(low, "a", 1, 10))
	b.want("c 1:1")
	b.close()
	b = openBench(t, fs, 2)
	b.must(b.Tidy(true))
	b.must(b.Flush(t.Context(), ByAge))
	b.must(b.Compact(t.Context(), ByRequest))
	b.must(b.forward(low, "a", 1, 10))
	b.want("c 1:1")
	b.must(b.put("a", 1, 20))
	b.want("a 1:20; c 1:1")
	b.close()
}

// TestAMajorBringsTheDeletionsOfBefore: a placement that fetches nothing but a major, after a compaction that carried the deletion out.
func TestAMajorBringsTheDeletionsOfBefore(t *testing.T) {
	l, _ := leading(t, vfs.NewMem(), 1)
	l.must(l.put("a", 1, 10))
	low := l.highest()
	l.RankAbove(low + deletedMargin)
	l.must(l.put("b", 1, 10))
	l.must(l.Flush(t.Context(), ByAge))
	l.must(l.Delete(t.Context(), 1, only("a"), 0, 100))
	l.must(l.put("b", 2, 20))
	l.must(l.Flush(t.Context(), ByAge))
	l.must(l.Compact(t.Context(), ByRequest))
	f := following(t, vfs.NewMem(), 1)
	f.must(f.fetch(l, 1))
	f.must(f.LeadChain(2, new(byHand)))
	f.must(f.forward(low, "a", 1, 10))
	f.must(f.forward(f.highest(), "b", 3, 30))
	f.want("b 1:10 2:20 3:30")
	l.close()
	f.close()
}

func TestTheNewestDeletionsAreRemembered(t *testing.T) {
	var s State
	for i := range 3 * deletedMax {
		t := Tombstone{Matchers: []peer.Matcher{{Name: "i", Value: fmt.Sprint(i)}}, Hi: 1}
		s.remember(t, point.Stamp(i+1))
		s.remember(t, point.Stamp(i+1))
	}
	if n := len(s.Deleted); n != deletedMax || s.Deleted[n-1].Rank != 3*deletedMax || s.Deleted[0].Rank != 2*deletedMax+1 {
		t.Errorf("%d are remembered", n)
	}
	if n := len(s.deletedAbove(0, deletedMargin)); n != 0 {
		t.Errorf("%d are far above a rank of the same second", n)
	}
	s.remember(Tombstone{Matchers: []peer.Matcher{{Name: "i", Value: "x"}}, Hi: 2}, 3*deletedMax+deletedMargin)
	if n := len(s.deletedAbove(3*deletedMax-1, deletedMargin)); n != 1 || len(s.deletedAbove(3*deletedMax, deletedMargin)) != 0 {
		t.Errorf("%d are far above the rank of the last but one", n)
	}
	if s.remember(Tombstone{}, 0) {
		t.Error("a deletion without a rank is remembered")
	}
	oldest := s.Deleted[0].Rank
	for i := range 10 * deletedMax { // a sender deletes one series again and again, up to its newest row
		s.remember(Tombstone{Matchers: []peer.Matcher{{Name: "i", Value: "again"}}, Hi: point.Nanos(i)}, 3*deletedMax+deletedMargin+1)
	}
	if s.Deleted[0].Rank > oldest+2 {
		t.Errorf("deletions that a later one includes take the places of others: the oldest has rank %d, and had %d", s.Deleted[0].Rank, oldest)
	}
	long := make([]byte, deletedBytesMax-1)
	s.remember(Tombstone{Matchers: []peer.Matcher{{Name: "i", Value: string(long)}}}, 3*deletedMax+deletedMargin+2)
	if len(s.Deleted) != 1 {
		t.Errorf("%d are remembered with a long one", len(s.Deleted))
	}
}

// TestRowsThatAForgottenDeletionMayHaveRemovedAreNamed in the log, once a minute: nothing else shows that they are back.
func TestRowsThatAForgottenDeletionMayHaveRemovedAreNamed(t *testing.T) {
	b := openBench(t, vfs.NewMem(), 1)
	defer b.close()
	var log strings.Builder
	b.log = slog.New(slog.NewTextHandler(&log, nil))
	b.must(b.put("c", 1, 1))
	low := b.highest()
	b.RankAbove(low + 2*deletedMargin)
	for i := range deletedMax {
		if strings.Contains(log.String(), "they are back") {
			t.Fatalf("after %d deletions the log says\n%s", i, log.String())
		}
		b.must(b.DeleteLate(t.Context(), 0, only(fmt.Sprint("x", i)), 0, 100))
		b.must(b.forward(low, "a", 1, 10))
	}
	if n := strings.Count(log.String(), "they are back"); n != 1 {
		t.Errorf("the log names such rows %d times:\n%s", n, log.String())
	}
}

// TestAForgottenLongDeletionIsSaid: of deletions that were forgotten for the room that their matchers need nothing was said when rows that they hid came back.
func TestAForgottenLongDeletionIsSaid(t *testing.T) {
	var s State
	if s.forgets(1) {
		t.Error("a deletion is forgotten where there was none")
	}
	for i := range 4 {
		rank := point.Stamp(i+1) * 2 * deletedMargin
		s.remember(Tombstone{Matchers: []peer.Matcher{{Name: "i", Value: fmt.Sprint(i, strings.Repeat("x", 60_000))}}}, rank)
		if forgotten := len(s.Deleted) <= i; s.forgets(1) != forgotten && forgotten {
			t.Errorf("after %d deletions %d are remembered, and nothing is said", i+1, len(s.Deleted))
		}
	}
	if !s.forgets(1) || s.forgets(100*deletedMargin) {
		t.Error("of four long deletions none is forgotten, or of one that came before the row")
	}
}

// TestADeletionThatCameWithASegmentOutlivesItsRepetition: a deletion of the same rows, later cut off the log, removed the earlier one too, and changed the
// state that readers share.
func TestADeletionThatCameWithASegmentOutlivesItsRepetition(t *testing.T) {
	one := Tombstone{Matchers: only("a"), Lo: 0, Hi: 10}
	before := &State{Segments: []SegmentState{{Info: segment.Info{Rows: 1, TimeHi: 5}, Tombstones: []Tombstone{one}}, {Info: segment.Info{Rows: 1, TimeHi: 5}}}}
	next := *before
	next.Segments = slices.Clone(before.Segments)
	frame := point.Serial{Epoch: 3, Seq: 7}
	again := one
	again.At = frame
	if hit, err := hide(next.Segments, again, true); !hit || err != nil {
		t.Fatal(hit, err)
	}
	if got := next.Segments[1].Tombstones[0].At; got != frame {
		t.Errorf("the new one is of frame %v", got)
	}
	if got := next.Segments[0].Tombstones[0].At; got != (point.Serial{}) || before.Segments[0].Tombstones[0].At != got {
		t.Errorf("the one that was there is of frame %v", got)
	}
}
