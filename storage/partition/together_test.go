package partition

import (
	"errors"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/series"
)

// ordered is a row that another server ordered.
type ordered struct {
	stamp point.Stamp
	name  string
	at    point.Nanos
	v     float64
}

// forwardAll appends rows that another server ordered, each as a frame of its own, at once.
func (b *bench) forwardAll(rows ...ordered) error {
	var all []*Rows
	for _, r := range rows {
		ref := b.index.Intern(labelsOf(r.name))
		defer b.index.Release(ref)
		all = append(all, &Rows{Stamp: r.stamp, Foreign: true, Level: point.All, Refs: []series.Ref{ref}, Times: []point.Nanos{r.at}, Values: []float64{r.v}})
	}
	return b.AppendAll(all)
}

// TestFramesThatComeTogetherKeepTheirRanks, whatever their order, after a restart and a flush too, and beside rows that were deleted.
func TestFramesThatComeTogetherKeepTheirRanks(t *testing.T) {
	fs := vfs.NewMem()
	b := openBench(t, fs, 1)
	b.must(b.put("c", 1, 1))
	low := b.highest()
	b.RankAbove(low + deletedMargin)
	b.must(b.forward(low, "gone", 5, 9))
	b.must(b.Delete(t.Context(), 0, only("gone"), 0, 100))
	high := b.highest()
	b.must(b.forwardAll(ordered{high + 30, "a", 5, 3}, ordered{high + 10, "a", 5, 1}, ordered{low, "gone", 5, 9}, ordered{high + 20, "a", 5, 2}, ordered{high + 10, "b", 5, 4}))
	b.want("a 5:3; b 5:4; c 1:1")
	b.close()
	b = openBench(t, fs, 2)
	defer b.close()
	b.want("a 5:3; b 5:4; c 1:1")
	b.must(b.Flush(t.Context(), ByAge))
	b.must(b.forwardAll(ordered{high + 25, "a", 5, 7}, ordered{high + 11, "b", 5, 8}))
	b.want("a 5:3; b 5:8; c 1:1")
}

// TestFramesBeforeAHiddenOneAreFsyncedBeforeTheAck: all rows of the last frame are hidden by a deletion, so that it is not logged. Those before it were acked, and forgotten by
// the servers that staged them, before they were on the disk.
func TestFramesBeforeAHiddenOneAreFsyncedBeforeTheAck(t *testing.T) {
	b := openBench(t, vfs.NewMem(), 1)
	defer b.close()
	b.must(b.put("c", 1, 1))
	low := b.highest()
	b.RankAbove(low + deletedMargin)
	b.must(b.forward(low, "gone", 5, 9))
	b.must(b.Delete(t.Context(), 0, only("gone"), 0, 100))
	for i := range point.Stamp(50) {
		high := b.highest()
		b.must(b.forwardAll(ordered{high + 10, "a", point.Nanos(i), 1}, ordered{low, "gone", 5, 9}))
		b.mu.Lock()
		done := b.mu.wait.Done()
		b.mu.Unlock()
		if !done {
			t.Fatal("acked before the fsync")
		}
	}
}

// askedFor is a chain that counts what it is asked for.
type askedFor struct {
	*byHand
	handOns, awaits int
	upTo            point.Serial
}

func (c *askedFor) HandOn() { c.handOns++ }

// TestFramesThatComeTogetherAreWaitedForOnce: one question to the chain for all, which is for the last of them. Those that were logged before one that is refused are sent too, and not acked.
func TestFramesThatComeTogetherAreWaitedForOnce(t *testing.T) {
	b, by := openBench(t, vfs.NewMem(), 0), &askedFor{byHand: new(byHand)}
	defer b.close()
	var failed error
	by.await = func(s point.Serial) error {
		by.awaits, by.upTo = by.awaits+1, s
		return failed
	}
	b.stamp = 1 << 32
	b.must(b.LeadChain(1, by))
	b.must(b.put("c", 1, 1))
	by.handOns, by.awaits, by.passed = 0, 0, nil
	b.must(b.forwardAll(ordered{10, "a", 5, 1}, ordered{20, "a", 6, 2}, ordered{30, "b", 5, 3}))
	if by.handOns != 1 || by.awaits != 1 || len(by.passed) != 3 || by.upTo != b.mu.last {
		t.Errorf("the chain was passed %d frames, asked %d times to send, and %d times to wait, for %v of %v", len(by.passed), by.handOns, by.awaits, by.upTo, b.mu.last)
	}
	failed = fault.Errorf(fault.Unavailable, "a copy is away")
	if err := b.forwardAll(ordered{40, "a", 5, 1}, ordered{50, "a", 6, 2}); !errors.Is(err, failed) {
		t.Errorf("%v", err)
	}
	failed, by.handOns, by.awaits, by.passed = nil, 0, 0, nil
	ref := b.index.Intern(labelsOf("a"))
	defer b.index.Release(ref)
	one := &Rows{Stamp: 60, Foreign: true, Level: point.All, Refs: []series.Ref{ref}, Times: []point.Nanos{5}, Values: []float64{1}}
	other := *one
	other.Epoch = 9
	if err := b.AppendAll([]*Rows{one, &other}); !fault.Is(err, fault.Stale) || by.handOns != 1 || by.awaits != 0 || len(by.passed) != 1 {
		t.Errorf("of another epoch: %v; %d frames passed, asked %d times to send and %d times to wait", err, len(by.passed), by.handOns, by.awaits)
	}
	b.must(b.AppendAll(nil))
}
