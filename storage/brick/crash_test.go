package brick

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/protocols/point"
)

const placements = 4

// model is the writers' record of one placement.
type model struct {
	sync.Mutex
	log   []point.Serial // all ever appended and not cut off
	acked int            // of log
	cuts  int            // odd while one is under way
}

type modelState struct {
	log   []point.Serial
	acked int
	cuts  int
}

func (m *model) state() modelState {
	m.Lock()
	defer m.Unlock()
	return modelState{slices.Clone(m.log), m.acked, m.cuts}
}

// TestCrashesLoseNothingAcked runs a random workload and examines the remains of a crash at random moments: every record that was
// acked before and not released comes back, in order and byte for byte, nothing is invented, and the records of the next life
// follow it. CRASH_IMAGES sets how many crashes, TEST_SEED which ones.
func TestCrashesLoseNothingAcked(t *testing.T) {
	images := envInt(t, "CRASH_IMAGES", 100)
	seed := uint64(envInt(t, "TEST_SEED", int(rand.Uint32())))
	defer func() {
		if t.Failed() {
			t.Logf("TEST_SEED=%d CRASH_IMAGES=%d go test -run %s", seed, images, t.Name())
		}
	}()
	fs := vfs.NewCrashableMem()
	b, _ := open(t, fs, Settings{FileBytesMax: fileBytesMin})
	var models [placements]model
	quit := make(chan struct{})
	var wg sync.WaitGroup
	var turn sync.RWMutex // holds the writers while an image is looked at: on few cores they would only be in the way
	for p := range placements {
		wg.Go(func() {
			w := writer{t: t, b: b, p: point.PlacementID(p + 1), m: &models[p], rng: rand.New(rand.NewPCG(seed, uint64(p)))}
			for i := 0; ; i++ {
				select {
				case <-quit:
					return
				default:
					turn.RLock()
					w.step()
					turn.RUnlock()
				}
			}
		})
	}
	rng := rand.New(rand.NewPCG(seed, 99))
	for i := 0; i < images && !t.Failed(); i++ {
		var before, after [placements]modelState
		for p := range models {
			before[p] = models[p].state()
		}
		percent := []int{0, 100, 50}[i%3] // 50: pages reach the disk in any order
		image := fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: rng})
		for p := range models {
			after[p] = models[p].state()
		}
		turn.Lock()
		err := checkImage(image, before[:], after[:])
		turn.Unlock()
		if err != nil {
			t.Errorf("image %d, %d %% of unsynced data kept: %v", i, percent, err)
		}
		time.Sleep(time.Duration(rng.IntN(3000)) * time.Microsecond)
	}
	close(quit)
	wg.Wait()
	mustClose(t, b)
}

func envInt(t *testing.T, name string, def int) int {
	s := os.Getenv(name)
	if s == "" {
		return def
	}
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatalf("%s=%s: %v", name, s, err)
	}
	return n
}

// writer is the owner of one placement: it appends, waits, checkpoints, and at times has its log rewritten or cut.
type writer struct {
	t     *testing.T
	b     *Brick
	p     point.PlacementID
	m     *model
	rng   *rand.Rand
	epoch point.Epoch
	seq   uint64
}

func (w *writer) step() {
	switch n := w.rng.IntN(100); {
	case n < 80:
		w.append(1 + w.rng.IntN(8))
	case n < 94:
		w.release()
	case n < 97:
		if _, err := w.b.Rewrite(w.p, RewriteBytesMax); err != nil {
			w.t.Errorf("rewrite: %v", err)
		}
	default:
		w.cut()
	}
}

func (w *writer) append(n int) {
	if w.epoch == 0 {
		w.epoch = 1
	}
	var last Wait
	for range n {
		w.seq++
		s := point.Serial{Epoch: w.epoch, Seq: w.seq}
		w.m.Lock()
		w.m.log = append(w.m.log, s) // before: a crash may find it from the moment Append begins
		w.m.Unlock()
		var err error
		if last, err = w.b.Append(w.p, w.epoch, s, load(w.p, s, recordSize(s))); err != nil {
			w.t.Errorf("append: %v", err)
			return
		}
	}
	if err := last.Wait(); err != nil {
		w.t.Errorf("wait: %v", err)
		return
	}
	w.m.Lock()
	w.m.acked = len(w.m.log)
	w.m.Unlock()
}

func recordSize(s point.Serial) int {
	if s.Seq%17 == 0 {
		return 40_000
	}
	return int(s.Seq*1237) % 6000
}

func releasedKey(p point.PlacementID) []byte { return fmt.Appendf(nil, "p/%v", p) }

// release checkpoints up to a random acked record: the catalogue entry first (I7).
func (w *writer) release() {
	st := w.m.state()
	if st.acked == 0 {
		return
	}
	s := st.log[max(0, st.acked-1-w.rng.IntN(12))]
	if rel, err := releasedOf(w.b, w.p); err != nil || !rel.Less(s) {
		return
	}
	t := w.b.NewBatch()
	t.Set(releasedKey(w.p), binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, uint64(s.Epoch)), s.Seq))
	if err := t.Commit(true); err != nil {
		w.t.Errorf("commit: %v", err)
		return
	}
	w.b.Release(w.p, s)
}

// cut removes up to five records behind the released ones, and begins an epoch.
func (w *writer) cut() {
	st := w.m.state()
	rel, err := releasedOf(w.b, w.p)
	if err != nil {
		w.t.Errorf("released: %v", err)
	}
	n := len(st.log) - 1 - w.rng.IntN(5)
	if n < 0 || st.log[n].Less(rel) {
		return
	}
	w.m.Lock()
	w.m.cuts++
	w.m.Unlock()
	if err := w.b.Cut(w.p, st.log[n]); err != nil {
		w.t.Errorf("cut: %v", err)
	}
	w.m.Lock()
	w.m.log, w.m.acked = w.m.log[:n+1:n+1], min(w.m.acked, n+1)
	w.m.cuts++
	w.m.Unlock()
	w.epoch, w.seq = w.epoch+1, st.log[n].Seq
}

func releasedOf(b *Brick, p point.PlacementID) (s point.Serial, err error) {
	v, ok, err := b.Get(releasedKey(p))
	if ok {
		s = point.Serial{Epoch: point.Epoch(binary.BigEndian.Uint64(v)), Seq: binary.BigEndian.Uint64(v[8:])}
	}
	return s, err
}

// checkImage starts a brick on the remains of a crash.
func checkImage(image *vfs.MemFS, before, after []modelState) error {
	set := Settings{DataDir: "/data", FileBytesMax: fileBytesMin}
	b, got, rel, err := recoverImage(image, set)
	if err != nil {
		return err
	}
	for p := range before {
		pl := point.PlacementID(p + 1)
		if err := checkPlacement(pl, got[pl], rel[pl], before[p], after[p]); err != nil {
			return fmt.Errorf("placement %v: %w", pl, err)
		}
	}
	// The next life appends, and is cut off from power too.
	for p := range before {
		pl := point.PlacementID(p + 1)
		s := point.Serial{Epoch: 1 << 20, Seq: 1}
		w, err := b.Append(pl, s.Epoch, s, load(pl, s, recordSize(s)))
		if err == nil {
			err = w.Wait()
		}
		if err != nil {
			return fmt.Errorf("append after the crash: %w", err)
		}
		got[pl] = append(got[pl], s)
	}
	second := image.CrashClone(vfs.CrashCloneCfg{})
	if err := b.Close(); err != nil {
		return err
	}
	b, again, _, err := recoverImage(second, set)
	if err != nil {
		return fmt.Errorf("second crash: %w", err)
	}
	for p := range before {
		pl := point.PlacementID(p + 1)
		if !slices.Equal(again[pl], got[pl]) {
			return fmt.Errorf("second crash: placement %v: %v, want %v", pl, again[pl], got[pl])
		}
	}
	return b.Close()
}

func recoverImage(fs vfs.FS, set Settings) (*Brick, map[point.PlacementID][]point.Serial, upTo, error) {
	b, err := Open(Deps{FS: fs}, set)
	if err != nil {
		return nil, nil, nil, err
	}
	got, rel := map[point.PlacementID][]point.Serial{}, upTo{}
	for p := point.PlacementID(1); p <= placements; p++ {
		if rel[p], err = releasedOf(b, p); err != nil {
			return nil, nil, nil, err
		}
	}
	err = b.Recover(func(p point.PlacementID) point.Serial {
		return rel[p]
	}, func(p point.PlacementID, s point.Serial, rec []byte) error {
		if !bytes.Equal(rec, load(p, s, recordSize(s))) {
			return fmt.Errorf("placement %v: %v has other bytes", p, s)
		}
		got[p] = append(got[p], s)
		return nil
	})
	return b, got, rel, err
}

func checkPlacement(p point.PlacementID, got []point.Serial, rel point.Serial, before, after modelState) error {
	if !slices.IsSortedFunc(got, func(a, b point.Serial) int {
		if a.Less(b) {
			return -1
		}
		return 1
	}) {
		return fmt.Errorf("out of order: %v", got)
	}
	if before.cuts != after.cuts || before.cuts%2 == 1 {
		return nil // the log was being cut: either state is right
	}
	want := after.log
	for len(want) > 0 && !rel.Less(want[0]) {
		want = want[1:]
		before.acked--
	}
	if len(got) < before.acked {
		return fmt.Errorf("%d records, %d were acked; released %v, got %v", len(got), before.acked, rel, got)
	}
	if len(got) > len(want) || !slices.Equal(got, want[:len(got)]) {
		return fmt.Errorf("got %v, want a prefix of %v", got, want)
	}
	return nil
}
