package partition

import (
	"slices"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/series"
)

func wantKind(t *testing.T, err error, k fault.Kind) {
	t.Helper()
	if !fault.Is(err, k) {
		t.Errorf("%v, want %v", err, k)
	}
}

// under appends one row by an epoch.
func (b *bench) under(epoch point.Epoch, name string, at point.Nanos) error {
	ref := b.index.Intern(labelsOf(name))
	defer b.index.Release(ref)
	b.stamp += 1024
	return b.Append(&Rows{Epoch: epoch, Stamp: b.stamp, Refs: []series.Ref{ref}, Times: []point.Nanos{at}, Values: []float64{float64(epoch)}})
}

func (b *bench) wantEnds(want ...point.EpochEnd) {
	b.t.Helper()
	if got := b.Ends(); !slices.Equal(got, want) {
		b.t.Errorf("ends %v, want %v", got, want)
	}
}

// TestRowsAreTakenInTheEpochThatIsLed: a placement is opened, led, led again later, and each epoch's frames are kept apart: in the
// head, in a segment, after a restart and after a compaction.
func TestRowsAreTakenInTheEpochThatIsLed(t *testing.T) {
	fs := vfs.NewMem()
	b := openBench(t, fs, 0)
	wantKind(t, b.under(0, "a", 1), fault.Stale)
	b.must(b.Lead(3))
	b.must(b.under(3, "a", 1))
	b.must(b.under(3, "a", 2))
	wantKind(t, b.under(2, "a", 3), fault.Stale)
	wantKind(t, b.under(4, "a", 3), fault.Stale)
	wantKind(t, b.Lead(2), fault.Stale)
	b.must(b.Lead(7))
	b.must(b.Lead(7))
	b.must(b.under(7, "a", 3))
	wantKind(t, b.under(3, "a", 9), fault.Stale)
	b.wantEnds(point.EpochEnd{Epoch: 3, Seq: 2}, point.EpochEnd{Epoch: 7, Seq: 3})
	b.close()

	b = openBench(t, fs, 0) // both epochs come from the log
	b.wantEnds(point.EpochEnd{Epoch: 3, Seq: 2}, point.EpochEnd{Epoch: 7, Seq: 3})
	wantKind(t, b.under(7, "a", 4), fault.Stale)
	wantKind(t, b.Lead(6), fault.Stale)  // the brick remembers
	b.must(b.Flush(t.Context(), ByStop)) // and its rows may be flushed before it is led
	b.wantEnds(point.EpochEnd{Epoch: 3, Seq: 2}, point.EpochEnd{Epoch: 7, Seq: 3})
	if id := b.Segments()[0].ID; id.Epoch != 7 {
		t.Errorf("segment %v, want one of epoch 7", id)
	}
	b.must(b.Lead(9))
	b.must(b.under(9, "a", 5))
	b.must(b.Flush(t.Context(), ByStop))
	b.must(b.Compact(t.Context(), ByRequest))
	b.close()

	b = openBench(t, fs, 0)
	defer b.close()
	b.wantEnds(point.EpochEnd{Epoch: 3, Seq: 2}, point.EpochEnd{Epoch: 7, Seq: 3}, point.EpochEnd{Epoch: 9, Seq: 4})
	b.want("a 1:3 2:3 3:7 5:9")
}

func TestEmptyMeansThatNothingWasEverTaken(t *testing.T) {
	b := openBench(t, vfs.NewMem(), 1)
	defer b.close()
	if !b.Empty() {
		t.Error("a new placement is not empty")
	}
	b.must(b.put("a", 1, 1))
	if b.Empty() {
		t.Error("a placement with a row in its head is empty")
	}
	b.must(b.Flush(t.Context(), ByStop))
	if b.Empty() {
		t.Error("a placement with a segment is empty")
	}
}

// TestTheFirstRowOfAnEmptyCopyStays: it comes while the copy is to be removed because it is empty, and a leader acks it.
func TestTheFirstRowOfAnEmptyCopyStays(t *testing.T) {
	b := openBench(t, vfs.NewMem(), 1)
	defer b.close()
	b.must(b.put("a", 1, 1))
	if b.CloseEmpty() {
		t.Error("a placement with a row is closed as an empty one")
	}
	b.must(b.put("a", 2, 2))

	none := openBench(t, vfs.NewMem(), 1)
	defer none.close()
	if !none.CloseEmpty() {
		t.Error("an empty placement is not closed")
	}
	if err := none.put("a", 1, 1); !fault.Is(err, fault.Stale) {
		t.Errorf("a row after it was closed: %v", err)
	}
}

func TestSeriesOfAnotherColumnAreStale(t *testing.T) {
	b := openBench(t, vfs.NewMem(), 1)
	defer b.close()
	b.ident.PointLo, b.ident.PointHi = 1<<63, 0 // the upper half
	var in, out string
	for _, name := range []string{"a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l"} {
		if labelsOf(name).RingPoint() >= 1<<63 {
			in = name
		} else {
			out = name
		}
	}
	b.must(b.put(in, 1, 1))
	wantKind(t, b.put(out, 1, 1), fault.Stale)
	b.must(b.put(in, 2, 2))
	b.want(in + " 1:1 2:2")
}

// TestAnOlderLeaderDoesNotEndALaterEpochHere: the message of an older leader passed its check, waited for the brick while the placement began to
// lead the next epoch, and then ended that: its rows were refused until there was another.
func TestAnOlderLeaderDoesNotEndALaterEpochHere(t *testing.T) {
	b := openBench(t, vfs.NewMem(), 0)
	defer b.close()
	b.must(b.FollowLeader(0))
	b.must(b.LeadChain(6, &byHand{}))
	if _, err := b.beginToFollow(5); !fault.Is(err, fault.Stale) { // the rest of FollowLeader(5), which came before LeadChain(6)
		t.Errorf("the leader of epoch 5 is followed behind epoch 6: %v", err)
	}
	if !b.Leads(6) || b.Follows() {
		t.Error("epoch 6 is over")
	}
	b.must(b.under(6, "a", 1))
	b.must(b.FollowLeader(7))
}
