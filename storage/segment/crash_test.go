package segment

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"go.uber.org/goleak"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/rows"
)

// TestFinishLeavesNoFileOrAWholeOne cuts the power after each file-system call of a write, keeping nothing or
// everything that was not synced.
func TestFinishLeavesNoFileOrAWholeOne(t *testing.T) {
	s := small()
	whole := s.write(t, vfs.NewMem(), "seg")
	c := openCache(t, 1<<20)
	done := false
	for call := 0; !done; call++ {
		mem := vfs.NewCrashableMem()
		dir := "store"
		check(t, mem.MkdirAll(dir, 0o755))
		check(t, syncDir(mem, ""))
		var images []*vfs.MemFS
		var mu sync.Mutex // pebble writes from a goroutine of its own
		n := 0
		fs := errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
			mu.Lock()
			defer mu.Unlock()
			if n == call {
				for _, p := range []int{0, 100} {
					images = append(images, mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: p, RNG: rand.New(rand.NewPCG(1, uint64(call)))}))
				}
			}
			n++
			return nil
		}))
		info := s.write(t, fs, "store/seg")
		done = n <= call
		images = append(images, mem.CrashClone(vfs.CrashCloneCfg{}))
		for i, image := range images {
			_, err := image.Stat("store/seg")
			acked := i == len(images)-1
			switch {
			case err != nil && acked:
				t.Fatalf("call %d: Finish returned and the file is gone: %v", call, err)
			case err != nil:
				continue
			}
			r, err := Open(image, "store/seg", info, c)
			check(t, err)
			check(t, r.Verify())
			check(t, r.Close())
			if info.Checksum != whole.Checksum {
				t.Fatalf("call %d: checksum %x, want %x", call, info.Checksum, whole.Checksum)
			}
		}
	}
}

// TestTheOrderOfPublication is I7 as the disk sees it.
func TestTheOrderOfPublication(t *testing.T) {
	var log bytes.Buffer
	fs := vfs.WithLogging(vfs.NewMem(), func(format string, args ...any) {
		line := fmt.Sprintf(format, args...)
		if !strings.HasPrefix(line, "sync-to") && !strings.HasPrefix(line, "write") {
			fmt.Fprintln(&log, line)
		}
	})
	small().write(t, fs, "seg")
	want := "create: seg.tmp\nsync-data: seg.tmp\nclose: seg.tmp\nrename: seg.tmp -> seg\nopen-dir: .\nsync: .\nclose: .\n"
	if log.String() != want {
		t.Errorf("calls\n%swant\n%s", log.String(), want)
	}
}

// TestADiskErrorIsUnavailable fails each file-system call in turn; nothing may be published and Abort must clean up.
func TestADiskErrorIsUnavailable(t *testing.T) {
	defer goleak.VerifyNone(t)
	s := small()
	broken := errors.New("broken disk")
	for call, reached := 0, true; reached; call++ {
		mem := vfs.NewMem()
		var mu sync.Mutex
		n := 0
		fs := errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
			mu.Lock()
			defer mu.Unlock()
			n++
			if n == call+1 && op.Kind != errorfs.OpRemove {
				return broken
			}
			return nil
		}))
		err := s.tryWrite(fs)
		reached = n > call
		names, lerr := mem.List("")
		check(t, lerr)
		switch {
		case err == nil && reached && n < 3:
			t.Fatalf("call %d: the error went unseen", call)
		case err == nil:
			continue
		case !fault.Is(err, fault.Unavailable) || !errors.Is(err, broken):
			t.Fatalf("call %d: %v, want unavailable", call, err)
		case slices.Contains(names, "seg.tmp"):
			t.Fatalf("call %d: %v is left behind", call, names)
		}
	}
}

func (s *source) tryWrite(fs vfs.FS) error {
	w, err := Create(fs, "seg", s.meta, Settings{})
	if err != nil {
		return err
	}
	for _, id := range s.order {
		r := s.runs[id]
		_ = w.Add(id, &r) // the error is sticky
	}
	if _, err = w.Finish(); err != nil {
		_ = w.Abort()
	}
	return err
}

func TestCloseWhileReading(t *testing.T) {
	fs := vfs.NewMem()
	s := small()
	info := s.write(t, fs, "seg")
	c := openCache(t, 1<<20)
	for range 20 {
		r, err := Open(fs, "seg", info, c)
		check(t, err)
		var wg sync.WaitGroup
		for g := range 4 {
			wg.Go(func() {
				rng := rand.New(rand.NewPCG(uint64(g), 0))
				for {
					id := s.order[rng.IntN(len(s.order))]
					err := r.Read([]point.DenseID{id}, 0, 1<<62, func(id point.DenseID, run rows.Run) error {
						equalRun(t, id, run, s.runs[id])
						return nil
					})
					if fault.Is(err, fault.Unavailable) {
						return
					}
					if err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		check(t, r.Close())
		check(t, r.Close()) // twice is fine
		wg.Wait()
	}
	if n := c.Bytes(); n > 1<<20 {
		t.Errorf("the cache holds %d bytes", n)
	}
}
