package partition

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/rows"
)

// fewRows writes to a narrow partition of some thousand series, a row or a few of each, and records the acked rows.
type fewRows struct {
	*bench
	rng   *rand.Rand
	acked map[int]map[point.Nanos]float64
}

const fewRowsSeries = 2600 // two pages and a half

// insert sends a frame of neighbouring series, as a scrape of some hosts is, at times one that names each twice.
func (w *fewRows) insert() {
	first, n := w.rng.IntN(fewRowsSeries), 1+w.rng.IntN(900)
	var r Rows
	for i := range n {
		id := (first + i) % fewRowsSeries
		r.Refs = append(r.Refs, w.index.Intern(labelsOf(strconv.Itoa(id))))
		r.Times = append(r.Times, int64(w.rng.IntN(4)))
		r.Values = append(r.Values, float64(w.rng.IntN(1000)))
	}
	w.stamp += 1 << 20
	r.Stamp = w.stamp
	w.must(w.Append(&r))
	w.index.Release(r.Refs...)
	for i := range r.Refs {
		id := (first + i) % fewRowsSeries
		if w.acked[id] == nil {
			w.acked[id] = map[point.Nanos]float64{}
		}
		w.acked[id][r.Times[i]] = r.Values[i]
	}
}

// check compares all rows of b with the acked ones.
func (w *fewRows) check(b *bench, what string) {
	w.t.Helper()
	v, err := b.View()
	w.must(err)
	defer v.Close()
	ss, err := v.Match(nil)
	w.must(err)
	found := 0
	w.must(v.Read(ss, math.MinInt64, math.MaxInt64, func(i int, r rows.Run) error {
		id, _ := strconv.Atoi(ss[i].Labels.Get("i"))
		found++
		if len(r.Times) != len(w.acked[id]) {
			return fmt.Errorf("series %d has %d rows, acked were %d", id, len(r.Times), len(w.acked[id]))
		}
		for k, at := range r.Times {
			if want := w.acked[id][at]; r.Values[k] != want {
				return fmt.Errorf("series %d at %d is %v, acked was %v", id, at, r.Values[k], want)
			}
		}
		return nil
	}))
	if found != len(w.acked) {
		w.t.Fatalf("%s: %d series have rows, want %d", what, found, len(w.acked))
	}
}

// cut opens the remains of a power cut at this moment.
func (w *fewRows) cut(image *vfs.MemFS, epoch point.Epoch, what string) {
	w.t.Helper()
	b := openBench(w.t, image, epoch)
	defer b.close()
	w.check(b, what)
	w.must(b.Flush(w.t.Context(), ByStop))
	w.check(b, what+", and flushed")
}

// TestAckedRowsOfNarrowPartitionsSurvivePowerCuts cuts the power between inserts and in the middle of flushes, of partitions with
// thin pages, with pages that widened, and that cooled and were warmed by late rows.
func TestAckedRowsOfNarrowPartitionsSurvivePowerCuts(t *testing.T) {
	rounds := 12
	if testing.Short() {
		rounds = 4
	}
	for seed := range uint64(3) {
		rng := rand.New(rand.NewPCG(seed, 7))
		fs := vfs.NewCrashableMem()
		w := &fewRows{rng: rng, acked: map[int]map[point.Nanos]float64{}}
		w.bench = openBench(t, fs, 1)
		if !w.ident.narrow() {
			t.Fatal("the partition is not narrow")
		}
		for round := range rounds {
			for range rng.IntN(6) {
				w.insert()
			}
			if rng.IntN(3) == 0 {
				w.cut(fs.CrashClone(vfs.CrashCloneCfg{}), 2, fmt.Sprintf("seed %d, round %d", seed, round))
			}
			if rng.IntN(2) == 0 {
				flushed := make(chan error)
				go func() { flushed <- w.Flush(t.Context(), ByIdle) }()
				time.Sleep(time.Duration(rng.IntN(3000)) * time.Microsecond) // any moment will do
				image := fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: rng.IntN(2) * 100, RNG: rng})
				w.must(<-flushed)
				w.cut(image, 2, fmt.Sprintf("seed %d, round %d, in a flush", seed, round))
			}
			if rng.IntN(3) == 0 {
				w.Cool(time.Now().Add(24*time.Hour), 0)
			}
			w.check(w.bench, fmt.Sprintf("seed %d, round %d, running", seed, round))
		}
		w.close()
	}
}
