package partition

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/protocols/rank"
	"github.com/spillwaydb/spillway/storage/series"
)

// inherit appends rows of another partition.
func (b *bench) inherit(stamp point.Stamp, name string, rows map[point.Nanos]float64) error {
	ref := b.index.Intern(labelsOf(name))
	defer b.index.Release(ref)
	r := &Rows{Stamp: stamp, Foreign: true, Missing: true}
	for at, v := range rows {
		r.Refs, r.Times, r.Values = append(r.Refs, ref), append(r.Times, at), append(r.Values, v)
	}
	return b.Append(r)
}

// TestRowsWrittenSinceASplitAreNotReplacedByThoseOfTheParent: the parent's rows come in any order, more than once, while rows of the same times are written again,
// with everything between that a partition does with its rows. The oldest of a chunk's rows would win against newer ones of another segment if they were added.
func TestRowsWrittenSinceASplitAreNotReplacedByThoseOfTheParent(t *testing.T) {
	const times = 12
	for seed := range uint64(40) {
		rng := rand.New(rand.NewPCG(seed, 11))
		fs := vfs.NewMem()
		b := openBench(t, fs, 1)
		parent, want := map[point.Nanos]float64{}, map[point.Nanos]float64{}
		for at := range point.Nanos(times) {
			parent[at] = -float64(at) - 1
		}
		for i := range 120 {
			switch rng.IntN(12) {
			case 0, 1:
				b.must(b.Flush(t.Context(), ByAge))
			case 2:
				b.must(b.Compact(t.Context(), ByDelete))
			case 3:
				epoch := b.mu.epoch
				b.close()
				b = openBench(t, fs, epoch+1)
			case 4, 5, 6, 7:
				rows := map[point.Nanos]float64{}
				for at, v := range parent {
					if rng.IntN(4) == 0 {
						rows[at] = v
						if _, ok := want[at]; !ok {
							want[at] = v
						}
					}
				}
				b.must(b.inherit(rank.At(noon-second*point.Nanos(1+rng.IntN(2))), "a", rows))
			default:
				at := rng.Int64N(times)
				want[at] = float64(i)
				b.must(b.putAs(rank.At(noon), "a", at, float64(i)))
			}
			text := "a"
			for at := range point.Nanos(times) {
				if v, ok := want[at]; ok {
					text += fmt.Sprintf(" %d:%v", at, v)
				}
			}
			if len(want) > 0 {
				b.want(text)
			}
			if t.Failed() {
				t.Fatalf("seed %d, step %d", seed, i)
			}
		}
		b.close()
	}
}

// TestRowsThatAreHereAreNotTakenAgain: histograms and exemplars too; a second try adds nothing.
func TestRowsThatAreHereAreNotTakenAgain(t *testing.T) {
	b := openBench(t, vfs.NewMem(), 1)
	defer b.close()
	ref := b.index.Intern(labelsOf("a"))
	defer b.index.Release(ref)
	r := &Rows{Stamp: rank.At(noon), Foreign: true, Missing: true, Refs: []series.Ref{ref}, Times: []point.Nanos{1}, Values: []float64{1},
		ExemplarRefs: []series.Ref{ref}, Exemplars: []point.ExemplarRow{{Time: 1, Value: 2, Labels: labelsOf("x")}}}
	b.must(b.Append(r))
	frames := b.mu.last.Seq
	for range 2 {
		b.must(b.Append(r))
		b.must(b.Flush(t.Context(), ByAge))
	}
	if b.mu.last.Seq != frames {
		t.Errorf("%d frames, the first was %d", b.mu.last.Seq, frames)
	}
	b.want("a 1:1")
}

// TestRowsThatCameWhileTheyWereLookedForAreWaitedForToo: a slice that is sent again meets the rows of the first time, which other placements do not have yet. It was acked without them.
func TestRowsThatCameWhileTheyWereLookedForAreWaitedForToo(t *testing.T) {
	b, by := openBench(t, vfs.NewMem(), 0), &askedFor{byHand: new(byHand)}
	defer b.close()
	by.await = func(s point.Serial) error {
		by.upTo = s
		return nil
	}
	b.must(b.LeadChain(1, by))
	b.must(b.putAs(rank.At(noon+second), "b", 1, 1))
	v, err := b.View()
	b.must(err)
	defer v.Close()
	b.must(b.inherit(rank.At(noon), "a", map[point.Nanos]float64{1: 10}))
	by.upTo = point.Serial{}
	ref := b.index.Intern(labelsOf("a"))
	defer b.index.Release(ref)
	kept, err := b.lacking(v, &Rows{Stamp: rank.At(noon), Foreign: true, Missing: true, Level: point.All, Refs: []series.Ref{ref}, Times: []point.Nanos{1}, Values: []float64{10}})
	b.must(err)
	if len(kept.Refs) > 0 || by.upTo != b.mu.last {
		t.Errorf("%d rows are added, and those that are here were waited for up to %v of %v", len(kept.Refs), by.upTo, b.mu.last)
	}
}

// TestDeletedRowsDoNotComeBackFromAFormerLeader: it accepted them a second before they were deleted, and hands over what only it has when it returns. The deletion was ranked above all
// rows of before: clocks have no part in that, and what was written since stays.
func TestDeletedRowsDoNotComeBackFromAFormerLeader(t *testing.T) {
	b := openBench(t, vfs.NewMem(), 1)
	defer b.close()
	b.must(b.putAs(rank.At(noon), "b", 1, 1))
	b.RankAbove(rank.At(noon + second))
	b.must(b.DeleteLate(t.Context(), 0, only("a"), 0, 100))
	b.must(b.inherit(rank.At(noon), "a", map[point.Nanos]float64{1: 10, 200: 20}))
	b.want("a 200:20; b 1:1")
	b.must(b.putAs(rank.At(noon+2*second), "a", 1, 30))
	b.must(b.inherit(rank.At(noon), "a", map[point.Nanos]float64{1: 10}))
	b.want("a 1:30 200:20; b 1:1")
}
