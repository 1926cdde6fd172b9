package server_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// diskErrors fails some operations of one kind on some files, after a number of successes.
type diskErrors struct {
	kind  errorfs.OpKind
	part  string       // of the paths; "": of all files
	after atomic.Int64 // how many go well first
	times int64        // how many fail then
	err   error
}

var diskErrorKinds = map[errorfs.OpKind]string{
	errorfs.OpCreate: "create", errorfs.OpLink: "link", errorfs.OpOpen: "open", errorfs.OpOpenDir: "open of a directory", errorfs.OpRemove: "remove",
	errorfs.OpRename: "rename", errorfs.OpReuseForWrite: "reuse", errorfs.OpMkdirAll: "mkdir", errorfs.OpList: "list", errorfs.OpFilePreallocate: "preallocate",
	errorfs.OpStat: "stat", errorfs.OpFileRead: "read", errorfs.OpFileReadAt: "read at", errorfs.OpFileWrite: "write", errorfs.OpFileWriteAt: "write at",
	errorfs.OpFileStat: "stat of an open file", errorfs.OpFileSync: "fsync", errorfs.OpFileSyncData: "fdatasync", errorfs.OpFileSyncTo: "sync of a range",
}

func newDiskErrors(rng *rand.Rand) *diskErrors {
	f := &diskErrors{err: syscall.EIO}
	for f.kind = errorfs.OpKind(rng.IntN(64)); diskErrorKinds[f.kind] == ""; {
		f.kind = errorfs.OpKind(rng.IntN(64))
	}
	parts := []string{"", "data/log/", "catalogue/", "mirror", "segments/", "segments"}
	f.part = parts[rng.IntN(len(parts))]
	f.after.Store(int64(1) << rng.IntN(10) * (1 + rng.Int64N(4)) / 2)
	f.times = []int64{1, 2, 10, 1 << 40}[rng.IntN(4)]
	if rng.IntN(2) == 0 {
		f.err = syscall.ENOSPC
	}
	return f
}

// MaybeError implements errorfs.Injector.
func (f *diskErrors) MaybeError(op errorfs.Op) error {
	if op.Kind != f.kind || !strings.Contains(op.Path, f.part) {
		return nil
	}
	if n := f.after.Add(-1); n >= 0 || n < -f.times {
		return nil
	}
	return f.err
}

func (f *diskErrors) String() string {
	return fmt.Sprintf("%d × %v of a %s in %q", f.times, f.err, diskErrorKinds[f.kind], f.part)
}

// TestADiskThatFailsAnywhereLosesNothingAcked has a disk fail operations of one kind, once, a few times or from then on, at any moment of
// inserts, deletions, drops, flushes and compactions, and again while the store is opened. Whatever fails may be refused; what was acked is
// there after a power cut, after a start in which the disk failed, and after a start with a healthy disk, and nothing else is.
// DISK_ERRORS sets how many disks (default 60, 10 in short), TEST_SEED which ones.
func TestADiskThatFailsAnywhereLosesNothingAcked(t *testing.T) {
	startsFailed.Store(true)
	most := 60
	if testing.Short() {
		most = 10
	}
	disks, seed := envInt(t, "DISK_ERRORS", most), uint64(envInt(t, "TEST_SEED", int(rand.Uint32())))
	hit := 0
	for i := range disks {
		rng := rand.New(rand.NewPCG(seed, uint64(i)))
		f := newDiskErrors(rng)
		if !t.Run(fmt.Sprint(i), func(t *testing.T) { failingDisk(t, seed+uint64(i)<<32, f, newDiskErrors(rng)) }) {
			t.Fatalf("disk %d: %v; TEST_SEED=%d DISK_ERRORS=%d go test -run %s ./storage/server", i, f, seed, i+1, t.Name())
		}
		if f.after.Load() < 0 {
			hit++
		}
	}
	t.Logf("%d of %d disks failed; TEST_SEED=%d", hit, disks, seed)
	if hit == 0 && disks >= 60 {
		t.Error("no disk failed")
	}
}

func failingDisk(t *testing.T, seed uint64, f, starting *diskErrors) {
	on := &switched{f: f}
	w := newWorkload(t, seed, func(fs vfs.FS) vfs.FS { return errorfs.Wrap(fs, on) })
	w.refusals = true
	ctx, stop := context.WithCancel(t.Context())
	ran := make(chan error, 1)
	go func() { ran <- w.server.Run(ctx) }()
	end := w.start()
	on.on.Store(true)
	time.Sleep(60 * time.Millisecond) // the load meets the disk's errors, if they come at all
	before := w.clock.Load()
	image := w.fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: int(seed >> 32 % 2 * 100), RNG: rand.New(rand.NewPCG(seed, 102))})
	after := w.clock.Load()
	end()
	stop()
	if err := <-ran; err != nil && !fault.Is(err, fault.Unavailable) {
		t.Errorf("Run ended with %v", err)
	}
	w.refusals = false
	on.on.Store(false)
	now := w.clock.Load()
	if got, err := everything(w.server); err == nil {
		if err := w.right(got, now, now, 0); err != nil {
			t.Errorf("while it runs: %v", err)
		}
	}
	_ = w.server.Close()
	_ = w.brick.Close()
	if err := w.check(image, before, after, true); err != nil {
		t.Errorf("after a power cut: %v", err)
	}

	p, err := open(errorfs.Wrap(w.fs, starting), w.maps, 2)
	if err == nil {
		if got, err := everything(p.server); err == nil {
			if err := w.right(got, now, now, 0); err != nil {
				t.Errorf("after a start with %v: %v", starting, err)
			}
		}
		_ = p.server.Close()
		_ = p.brick.Close()
	}
	if err := w.check(w.fs, now, now, false); err != nil {
		t.Errorf("after a start with %v, and one without: %v", starting, err)
	}
}

// switched is an injector that does nothing until it is switched on.
type switched struct {
	on atomic.Bool
	f  *diskErrors
}

// MaybeError implements errorfs.Injector.
func (e *switched) MaybeError(op errorfs.Op) error {
	if !e.on.Load() {
		return nil
	}
	return e.f.MaybeError(op)
}

func (e *switched) String() string { return e.f.String() }

// nthFails fails one operation, or that and all later ones.
type nthFails struct {
	n, count int64
	forever  bool
	err      error
	what     string
	mu       sync.Mutex
	gone     atomic.Bool // the store that used it has ended: what Pebble still tries, at once and for ever, stops at its next operation
}

// MaybeError implements errorfs.Injector.
func (f *nthFails) MaybeError(op errorfs.Op) error {
	if diskErrorKinds[op.Kind] == "" {
		return nil
	}
	if f.gone.Load() {
		select {}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.count++
	if f.count-1 == f.n || f.forever && f.count > f.n {
		if f.what == "" {
			f.what = diskErrorKinds[op.Kind] + " " + op.Path
		}
		return f.err
	}
	return nil
}

func (f *nthFails) String() string { return fmt.Sprint(f.n) }

// TestAStartOnAFailingDiskLosesNothing has each operation of a start fail in turn, once and all from then on: the start is refused or
// goes well, and the next one with a healthy disk has every row.
func TestAStartOnAFailingDiskLosesNothing(t *testing.T) {
	startsFailed.Store(true)
	w := newWorkload(t, 7, func(fs vfs.FS) vfs.FS { return fs })
	end := w.start()
	for deadline := time.Now().Add(30 * time.Second); !w.load.heavy() && time.Now().Before(deadline); {
		time.Sleep(10 * time.Millisecond)
	}
	end()
	w.stop(t)
	now := w.clock.Load()
	starts, refusals := 0, 0
	rounds := 4
	if testing.Short() {
		rounds = 1
	}
	for i := range rounds {
		forever := i%2 == 1
		for n := int64(0); ; n++ {
			f := &nthFails{n: n, forever: forever, err: []error{syscall.EIO, syscall.ENOSPC}[i/2]}
			disk := w.fs.CrashClone(vfs.CrashCloneCfg{})
			p, failed := open(errorfs.Wrap(disk, f), w.maps, 2)
			if failed == nil {
				if got, err := everything(p.server); err == nil {
					if err := w.right(got, now, now, 0); err != nil {
						t.Errorf("%v of operation %d, %s (all from then on: %t): %v", f.err, n, f.what, forever, err)
					}
				}
				_ = p.server.Close()
				_ = p.brick.Close()
			} else {
				refusals++
			}
			f.gone.Store(true)
			starts++
			if err := w.check(disk, now, now, false); err != nil {
				t.Errorf("after %v of operation %d, %s (all from then on: %t; the start's error: %v): %v", f.err, n, f.what, forever, failed, err)
			}
			if f.what == "" {
				break
			}
		}
	}
	t.Logf("%d starts, %d refused", starts, refusals)
}
