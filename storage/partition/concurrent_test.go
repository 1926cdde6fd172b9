package partition

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/rows"
	"github.com/spillwaydb/spillway/storage/series"
)

// TestEveryoneReadsWhatHeWrote has writers append and delete while the partition is flushed, compacted and cooled all the time.
// Each writer has its own series and reads them back after each step: it must read exactly the rows it wrote, whatever the others
// do. In the end the partition is reopened and must return the same rows.
func TestEveryoneReadsWhatHeWrote(t *testing.T) {
	t.Run("all in memory", func(t *testing.T) { everyoneReadsWhatHeWrote(t, Settings{}) })
	t.Run("quiet ones leave memory", func(t *testing.T) { everyoneReadsWhatHeWrote(t, hushed) })
}

func everyoneReadsWhatHeWrote(t *testing.T, set Settings) {
	const writers = 4
	steps := 150
	if testing.Short() {
		steps = 40
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	fs := vfs.NewMem()
	b := openBenchWith(t, fs, 1, set)
	quit := make(chan struct{})
	var wg, upkeep sync.WaitGroup
	loop := func(f func() error) {
		upkeep.Go(func() {
			for {
				select {
				case <-quit:
					return
				case <-time.After(time.Millisecond):
					if err := f(); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	loop(func() error { return b.Flush(context.Background(), ByAge) })
	loop(func() error { return b.Compact(context.Background(), ByRequest) })
	var cooled atomic.Int64
	loop(func() error {
		if b.Cool(time.Now(), 0) {
			cooled.Add(1)
		}
		b.index.Sweep()
		return nil
	})
	loop(func() error { return readAnything(b) })
	owners := make([]*owner, writers)
	for i := range owners {
		owners[i] = &owner{b: b, rng: rand.New(rand.NewPCG(seed, uint64(i))), i: i, truth: map[string]map[int64]float64{}}
		wg.Go(func() {
			for range steps {
				if err := owners[i].step(); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	// On a busy machine the writers left no idle time; now they have stopped.
	for end := time.Now().Add(time.Minute); cooled.Load() == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the partition never cooled")
		}
	}
	for _, o := range owners {
		if err := o.check(); err != nil {
			t.Errorf("after it cooled: %v", err)
		}
	}
	close(quit)
	upkeep.Wait()
	t.Logf("cooled %d times, %d frames", cooled.Load(), b.mu.last.Seq)
	b.close()
	b = openBenchWith(t, fs, 2, set)
	for _, o := range owners {
		o.b = b
		if err := o.check(); err != nil {
			t.Errorf("opened anew: %v", err)
		}
	}
	b.close()
}

// readAnything reads the rows of all writers: times must rise.
func readAnything(b *bench) error {
	v, _ := b.View()
	defer v.Close()
	ss, err := v.Match(nil)
	if err != nil {
		return err
	}
	return v.Read(ss, math.MinInt64, math.MaxInt64, func(i int, r rows.Run) error {
		if !slices.IsSorted(r.Times) || len(slices.Compact(slices.Clone(r.Times))) != len(r.Times) {
			return fmt.Errorf("%v: times do not rise: %v", ss[i].Labels, r.Times)
		}
		return nil
	})
}

// owner writes and deletes rows of its own series.
type owner struct {
	b     *bench
	rng   *rand.Rand
	i     int
	stamp point.Stamp
	next  float64
	truth map[string]map[int64]float64
}

func (o *owner) step() error {
	var err error
	switch n := o.rng.IntN(10); {
	case n == 0 && len(o.truth) > 0:
		err = o.delete()
	case n == 1:
		time.Sleep(3 * time.Millisecond) // a chance to cool
	default:
		err = o.append()
	}
	if err != nil {
		return err
	}
	return o.check()
}

// append writes a few rows; new series come all the time.
func (o *owner) append() error {
	r := Rows{Stamp: o.tick()}
	for range 1 + o.rng.IntN(10) {
		name := fmt.Sprintf("%d_%d", o.i, o.rng.IntN(1+len(o.truth)+1))
		ref := o.b.index.Intern(labelsOf(name))
		defer o.b.index.Release(ref)
		o.next++
		at := o.rng.Int64N(50)
		r.Refs, r.Times, r.Values = append(r.Refs, ref), append(r.Times, at), append(r.Values, o.next)
		if o.truth[name] == nil {
			o.truth[name] = map[int64]float64{}
		}
		o.truth[name][at] = o.next
	}
	return o.b.Append(&r)
}

// tick returns a rank above all earlier ones of this owner; ranks of others do not matter to its series.
func (o *owner) tick() point.Stamp {
	o.stamp += 1024
	return o.stamp
}

func (o *owner) delete() error {
	name := slices.Sorted(maps.Keys(o.truth))[o.rng.IntN(len(o.truth))]
	lo := o.rng.Int64N(50)
	hi := lo + o.rng.Int64N(20)
	if err := o.b.Delete(context.Background(), 0, only(name), lo, hi); err != nil {
		return err
	}
	maps.DeleteFunc(o.truth[name], func(at int64, _ float64) bool { return at >= lo && at <= hi })
	return nil
}

func (o *owner) check() error {
	v, _ := o.b.View()
	defer v.Close()
	ss, err := v.Match(nil)
	if err != nil {
		return err
	}
	own := slices.DeleteFunc(ss, func(s Series) bool { return o.truth[s.Labels.Get("i")] == nil })
	got := map[string]map[int64]float64{}
	err = v.Read(own, math.MinInt64, math.MaxInt64, func(i int, r rows.Run) error {
		m := map[int64]float64{}
		for j, at := range r.Times {
			m[at] = r.Values[j]
		}
		got[own[i].Labels.Get("i")] = m
		return nil
	})
	if err != nil {
		return err
	}
	for name, want := range o.truth {
		if !maps.Equal(got[name], want) {
			return fmt.Errorf("series %s: read %v, want %v", name, got[name], want)
		}
	}
	return nil
}

// TestNothingComesAfterADrop drops the partition amid concurrent calls: every call either did its work before or reports the drop,
// and nothing is left behind.
func TestNothingComesAfterADrop(t *testing.T) {
	for round := range 20 {
		fs := vfs.NewMem()
		b := openBench(t, fs, 1)
		refs := make([]series.Ref, 4)
		for i := range refs {
			refs[i] = b.index.Intern(labelsOf(fmt.Sprint(i)))
		}
		var wg sync.WaitGroup
		loop := func(f func(n int) error) {
			wg.Go(func() {
				for n := 0; ; n++ {
					err := f(n)
					if fault.Is(err, fault.Stale) || fault.Is(err, fault.Canceled) || errors.Is(err, errEnded) {
						return
					}
					if err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		for i, ref := range refs {
			loop(func(n int) error {
				return b.Append(&Rows{Stamp: point.Stamp(n+1) << 10, Refs: []series.Ref{ref}, Times: []int64{int64(n)}, Values: []float64{float64(i)}})
			})
		}
		loop(func(n int) error { return b.Delete(context.Background(), 0, only("0"), 0, int64(n)) })
		loop(func(int) error { return errors.Join(b.Flush(context.Background(), ByAge), ended(b)) })
		loop(func(int) error { return errors.Join(b.Compact(context.Background(), ByRequest), ended(b)) })
		loop(func(int) error {
			b.Cool(time.Now(), 0)
			if ended(b) != nil {
				return errEnded
			}
			return nil
		})
		time.Sleep(time.Duration(round) * time.Millisecond)
		if err := b.Drop(); err != nil {
			t.Error(err)
		}
		wg.Wait()
		b.index.Release(refs...)
		b.index.Sweep()
		if n := b.index.Len(); n != 0 {
			t.Errorf("%d series are left", n)
		}
		if n := b.deps.HeadBytes.(*headBytes).Load(); n != 0 {
			t.Errorf("%d bytes of heads are left", n)
		}
		b.removeDropped()
		if names := b.files(); len(names) != 0 {
			t.Errorf("files %v are left", names)
		}
		b.close()
		b = openBench(t, fs, 2)
		b.want("")
		b.close()
	}
}

var errEnded = errors.New("the partition is gone")

func ended(b *bench) error {
	v, _ := b.View()
	if v == nil {
		return errEnded
	}
	v.Close()
	return nil
}
