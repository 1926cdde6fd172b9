package partition

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/protocols/rank"
	"github.com/spillwaydb/spillway/storage/series"
)

// putAs appends one row with the stamp of a gateway.
func (b *bench) putAs(stamp point.Stamp, name string, at point.Nanos, v float64) error {
	ref := b.index.Intern(labelsOf(name))
	defer b.index.Release(ref)
	return b.Append(&Rows{Stamp: stamp, Refs: []series.Ref{ref}, Times: []point.Nanos{at}, Values: []float64{v}})
}

const (
	second = 1_000_000_000
	noon   = point.Nanos(1_790_000_000 * second)
)

// TestTheValueWrittenLaterIsReadWhateverTheClocksSaid writes one value after the other by gateways with wrong clocks,
// with everything between that a partition does with its rows.
func TestTheValueWrittenLaterIsReadWhateverTheClocksSaid(t *testing.T) {
	for seed := range uint64(12) {
		rng := rand.New(rand.NewPCG(seed, 10))
		fs := vfs.NewMem()
		b := openBench(t, fs, 1)
		clocks := []int64{0, 3600, -3600}
		want := map[point.Nanos]float64{}
		for i := range 150 {
			switch rng.IntN(16) {
			case 0:
				b.must(b.Flush(t.Context(), ByAge))
			case 1:
				b.must(b.Compact(t.Context(), ByDelete))
			case 2:
				epoch := b.mu.epoch
				b.close()
				b = openBench(t, fs, epoch+1)
			case 3: // a clock is set
				clocks[rng.IntN(len(clocks))] = rng.Int64N(20_000_000) - 10_000_000
			default:
				at := rng.Int64N(5)
				want[at] = float64(i)
				b.must(b.putAs(rank.At(noon+clocks[rng.IntN(len(clocks))]*second)|point.Stamp(rng.IntN(2)), "a", at, float64(i)))
			}
			text := "a"
			for at := range point.Nanos(5) {
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

// TestARowWrittenAfterARestartWithTheClockSetBackIsRead: from the log, from a segment, and from a compacted one.
func TestARowWrittenAfterARestartWithTheClockSetBackIsRead(t *testing.T) {
	for name, before := range map[string]func(b *bench){
		"log":     func(*bench) {},
		"segment": func(b *bench) { b.must(b.Flush(t.Context(), ByAge)) },
		"major": func(b *bench) {
			b.must(b.Flush(t.Context(), ByAge))
			b.must(b.putAs(rank.At(noon+1), "b", 7, 1))
			b.must(b.Flush(t.Context(), ByAge))
			b.must(b.Compact(t.Context(), ByDelete))
		},
	} {
		t.Run(name, func(t *testing.T) {
			fs := vfs.NewMem()
			b := openBench(t, fs, 1)
			b.must(b.putAs(rank.At(noon), "a", 5, 1))
			before(b)
			b.close()
			b = openBench(t, fs, 2)
			defer b.close()
			b.must(b.putAs(rank.At(noon-3600*second), "a", 5, 2))
			v, _ := b.View()
			defer v.Close()
			if got := text(t, v); got[:5] != "a 5:2" {
				t.Errorf("read %q, want the value written last", got)
			}
		})
	}
}

// TestALateFirstTryDoesNotWin: an insert was sent, its stream broke, it was sent again and acked, and then another value was
// written. Then the first try comes out of a buffer. It is refused.
func TestALateFirstTryDoesNotWin(t *testing.T) {
	once := func(b *bench, stamp point.Stamp, v float64) error {
		ref := b.index.Intern(labelsOf("a"))
		defer b.index.Release(ref)
		return b.Append(&Rows{Stamp: stamp, Once: true, Refs: []series.Ref{ref}, Times: []point.Nanos{5}, Values: []float64{v}})
	}
	for _, flush := range []bool{false, true} {
		b := openBench(t, vfs.NewMem(), 1)
		b.must(once(b, rank.At(noon), 1))
		b.must(once(b, rank.At(noon+second), 2))
		if flush {
			b.must(b.Flush(t.Context(), ByAge))
		}
		if _, again := peer.NeedsStamp(once(b, rank.At(noon), 1)); !again {
			t.Error("the first try was taken")
		}
		b.want("a 5:2")
		b.must(once(b, rank.At(noon-second), 3)) // overtaken on its way, and not accepted before
		b.want("a 5:3")
		b.close()
	}
}

// TestForeignRowsKeepTheirRank: rows ranked elsewhere are not raised, and rows that come directly are raised above them.
func TestForeignRowsKeepTheirRank(t *testing.T) {
	fs := vfs.NewMem()
	b := openBench(t, fs, 1)
	foreign := func(stamp point.Stamp, v float64) {
		ref := b.index.Intern(labelsOf("a"))
		defer b.index.Release(ref)
		b.must(b.Append(&Rows{Stamp: stamp, Foreign: true, Refs: []series.Ref{ref}, Times: []point.Nanos{5}, Values: []float64{v}}))
	}
	b.must(b.putAs(rank.At(noon), "a", 5, 1))
	foreign(rank.At(noon-second), 2)
	b.want("a 5:1")
	foreign(rank.At(noon+second), 3)
	b.want("a 5:3")
	b.must(b.putAs(rank.At(noon), "a", 5, 4))
	b.want("a 5:4")
	b.close()
	b = openBench(t, fs, 2)
	defer b.close()
	b.want("a 5:4")
	b.must(b.putAs(rank.At(noon), "a", 5, 5))
	b.want("a 5:5")
}

// TestADeletionRanksAboveWhatItHides, so that it hides the same rows wherever it is applied.
func TestADeletionRanksAboveWhatItHides(t *testing.T) {
	b := openBench(t, vfs.NewMem(), 1)
	defer b.close()
	b.must(b.putAs(rank.At(noon+3600*second), "a", 5, 1))
	b.must(b.Delete(t.Context(), 0, only("a"), 0, 10))
	if got := b.mu.ranks.Highest(); got <= rank.At(noon+3600*second) {
		t.Errorf("the deletion has the rank %d, and hides rows of rank %d", got, rank.At(noon+3600*second))
	}
	b.must(b.putAs(rank.At(noon), "a", 5, 2))
	b.want("a 5:2")
}

// BenchmarkAppendFrame appends a frame of 100 existing series, without waiting.
func BenchmarkAppendFrame(b *testing.B) {
	p := openBench(new(testing.T), vfs.NewMem(), 1)
	defer p.close()
	refs := make([]series.Ref, 100)
	r := &Rows{Level: point.Received, Refs: refs, Times: make([]point.Nanos, 100), Values: make([]float64, 100)}
	for i := range refs {
		refs[i] = p.index.Intern(labelsOf(fmt.Sprint(i)))
	}
	b.ReportAllocs()
	at := point.Nanos(0)
	for b.Loop() {
		at++
		for i := range r.Times {
			r.Times[i] = at
		}
		r.Stamp = rank.At(noon + at*2000)
		if err := p.Append(r); err != nil {
			b.Fatal(err)
		}
	}
}
