package partition

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/rows"
	"github.com/spillwaydb/spillway/storage/series"
)

// TestNobodySeesHalfOfAFrame: one frame after the other gives all series a new value at one time, and a row at a time of its own, while readers read. Each finds one value in all series, and as many rows in each; that of the
// frames that were there before it began, or of later ones. With flushes, compactions and restarts of heads in between, in a partition of many series and in a narrow one.
func TestNobodySeesHalfOfAFrame(t *testing.T) {
	for _, narrow := range []bool{false, true} {
		t.Run(fmt.Sprintf("narrow %t", narrow), func(t *testing.T) {
			of := ident
			if of.TimeHi = 1 << 40; narrow {
				of.TimeHi = point.Nanos(second)
			}
			b := openBenchAs(t, vfs.NewMem(), 1, exact, of)
			defer b.close()
			const n = 2500 // more than a head appends at once
			refs := make([]series.Ref, n)
			for i := range refs {
				refs[i] = b.index.Intern(labelsOf(fmt.Sprint(i)))
				defer b.index.Release(refs[i])
			}
			frame := func(value int) {
				b.stamp += 1024
				r := &Rows{Stamp: b.stamp}
				for i := range 2 * n {
					at := point.Nanos(1)
					if i >= n {
						at = point.Nanos(value + 1)
					}
					r.Refs, r.Times, r.Values = append(r.Refs, refs[i%n]), append(r.Times, at), append(r.Values, float64(value))
				}
				b.must(b.Append(r))
			}
			frame(1)
			quit := make(chan struct{})
			var readers sync.WaitGroup
			for i := range 3 {
				rng := rand.New(rand.NewPCG(7, uint64(i)))
				readers.Go(func() {
					for last := 0.0; ; {
						select {
						case <-quit:
							return
						default:
						}
						last = b.readsWhole(n, last, rng.IntN(3))
					}
				})
			}
			for value := 2; value < 60; value++ {
				frame(value)
				switch value % 20 {
				case 7:
					b.must(b.Flush(t.Context(), ByAge))
				case 13:
					b.must(b.Compact(t.Context(), ByRequest))
				}
			}
			close(quit)
			readers.Wait()
			b.readsWhole(n, 59, 0)
		})
	}
}

// readsWhole reads all series in one view, in one of three ways, and returns the value found in all of them, which is not below least.
func (b *bench) readsWhole(n int, least float64, how int) float64 {
	v, err := b.View()
	b.must(err)
	defer v.Close()
	ss, err := v.Match(nil)
	b.must(err)
	if len(ss) != n {
		b.t.Errorf("%d series of %d", len(ss), n)
	}
	found, count := map[float64]int{}, 0
	take := func(_ int, r rows.Run) error {
		found[r.Values[0]]++
		if how != 1 && (r.Len() != int(r.Values[0])+1 || r.Values[r.Len()-1] != r.Values[0]) {
			b.t.Errorf("%d rows, from value %v to %v", r.Len(), r.Values[0], r.Values[r.Len()-1])
		}
		count++
		return nil
	}
	const lo, hi = 0, 1 << 30
	switch how {
	case 0:
		err = v.Read(ss, lo, hi, take)
	case 1: // the rows of one time alone
		err = v.Read(ss, lo, 1, take)
	case 2:
		err = v.ReadRanked(ss, lo, hi, take)
	}
	b.must(err)
	if count != n || len(found) != 1 {
		b.t.Errorf("read in way %d: %d series of %d, with values %v", how, count, n, found)
	}
	for value := range found {
		if value < least {
			b.t.Errorf("value %v, and %v was read before", value, least)
		}
		return value
	}
	return least
}
