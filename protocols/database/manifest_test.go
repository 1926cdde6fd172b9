package database_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/spillwaydb/spillway/protocols/database"
)

// TestRowsSurviveOneFailedFsyncOfTheManifest: a flush whose edit of the MANIFEST could not be fsynced is tried again. The edit may be on
// the disk all the same: the table that it adds must not be deleted, or the database is damaged for good.
func TestRowsSurviveOneFailedFsyncOfTheManifest(t *testing.T) {
	for name, path := range map[string]string{"fsync of the MANIFEST": "MANIFEST", "fsync of the directory": "db"} {
		t.Run(name, func(t *testing.T) {
			disk := vfs.NewCrashableMem()
			var on, failed atomic.Bool
			failing := errorfs.InjectorFunc(func(op errorfs.Op) error {
				sync := op.Kind == errorfs.OpFileSync || op.Kind == errorfs.OpFileSyncData
				if base := op.Path[strings.LastIndex(op.Path, "/")+1:]; on.Load() && sync && strings.HasPrefix(base, path) && failed.CompareAndSwap(false, true) {
					return syscall.EIO
				}
				return nil
			})
			var errs atomic.Int32
			db, err := database.Open("db", &pebble.Options{FS: errorfs.Wrap(disk, failing), Logger: &quiet{}, L0CompactionThreshold: 2,
				EventListener: &pebble.EventListener{BackgroundError: func(error) { errs.Add(1) }}})
			if err != nil {
				t.Fatal(err)
			}
			var flushed <-chan struct{} // the last one
			for i := range 3 {
				on.Store(i == 2)
				if err := db.Set(fmt.Append(nil, i), []byte("row"), pebble.Sync); err != nil {
					t.Fatal(err)
				}
				if flushed, err = db.AsyncFlush(); err != nil {
					t.Fatal(err)
				}
			}
			ended := func() bool { // the fsync that failed was a compaction's, and no flush reports it
				select {
				case <-flushed:
					return failed.Load()
				default:
					return false
				}
			}
			for deadline := time.Now().Add(time.Minute); errs.Load() == 0 && !ended(); time.Sleep(time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatalf("no flush has failed (the fsync: %t)", failed.Load())
				}
			}
			_ = db.Close() // waits for the flush that Pebble has begun again
			for _, kept := range []int{0, 100} {
				image := disk.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: kept, RNG: rand.New(rand.NewPCG(1, 1))})
				db, err := database.Open("db", &pebble.Options{FS: image, Logger: &quiet{}})
				if err != nil {
					t.Fatalf("with %d %% of unsynced data: %v", kept, err)
				}
				for i := range 3 {
					_, c, err := db.Get(fmt.Append(nil, i))
					if err != nil {
						t.Fatalf("with %d %% of unsynced data, row %d: %v", kept, i, err)
					}
					_ = c.Close()
				}
				if err := db.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// TestAProcessOutlivesAnEditOfTheManifestThatTheDiskRefuses: each write and fsync of a MANIFEST in turn fails while flushes and compactions run beside
// each other. Pebble undid the one whose edit it was, and the next to end found its books out of step, at which it panics.
func TestAProcessOutlivesAnEditOfTheManifestThatTheDiskRefuses(t *testing.T) {
	for refused := range int32(24) {
		disk := vfs.NewCrashableMem()
		var on atomic.Bool
		var count atomic.Int32
		failing := errorfs.InjectorFunc(func(op errorfs.Op) error {
			edit := op.Kind == errorfs.OpFileWrite || op.Kind == errorfs.OpFileSync || op.Kind == errorfs.OpFileSyncData || op.Kind == errorfs.OpCreate
			if on.Load() && edit && strings.Contains(op.Path, "MANIFEST-") && count.Add(1) > refused {
				return syscall.EIO
			}
			return nil
		})
		log := &quiet{}
		db, err := database.Open("db", &pebble.Options{FS: errorfs.Wrap(disk, failing), Logger: log, L0CompactionThreshold: 2, MemTableSize: 64 << 10, MaxManifestFileSize: 1 << 10})
		if err != nil {
			t.Fatal(err)
		}
		on.Store(true)
		acked := 0
		for i := 0; i < 400 && log.fatal.Load() == 0; i++ {
			if err := db.Set(fmt.Append(nil, i), make([]byte, 4<<10), pebble.Sync); err != nil {
				t.Fatal(err)
			}
			if log.fatal.Load() == 0 {
				acked++
			}
		}
		if log.fatal.Load() == 0 {
			t.Fatalf("after %d edits none was refused", refused)
		}
		image := disk.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 50, RNG: rand.New(rand.NewPCG(uint64(refused), 1))})
		_ = db.Close()
		for name, fs := range map[string]vfs.FS{"at the moment": image, "after the end": disk.CrashClone(vfs.CrashCloneCfg{})} {
			again, err := database.Open("db", &pebble.Options{FS: fs, Logger: &quiet{}})
			if err != nil {
				t.Fatalf("edit %d refused, %s: %v", refused, name, err)
			}
			for i := range acked {
				_, c, err := again.Get(fmt.Append(nil, i))
				if err != nil {
					t.Fatalf("edit %d refused, %s: of %d rows number %d: %v", refused, name, acked, i, err)
				}
				_ = c.Close()
			}
			if err := again.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

// TestCommitsReturnAfterAnEditOfTheManifestWasRefused: a commit waits for a flush when the MemTables are full. The disk refused an edit of the MANIFEST, for example that of a
// compaction. Flushes were refused from then on, so that commits, and the end of the process, waited for ever.
func TestCommitsReturnAfterAnEditOfTheManifestWasRefused(t *testing.T) {
	disk := vfs.NewCrashableMem()
	var on atomic.Bool
	failing := errorfs.InjectorFunc(func(op errorfs.Op) error {
		if on.Load() && op.Kind == errorfs.OpFileWrite && strings.Contains(op.Path, "MANIFEST-") {
			return syscall.EIO
		}
		return nil
	})
	log := &quiet{}
	db, err := database.Open("db", &pebble.Options{FS: errorfs.Wrap(disk, failing), Logger: log, MemTableSize: 64 << 10})
	if err != nil {
		t.Fatal(err)
	}
	set := func(i int) {
		if err := db.Set(fmt.Append(nil, i), make([]byte, 4<<10), pebble.Sync); err != nil {
			t.Error(err)
		}
	}
	on.Store(true)
	acked := 0
	for ; log.fatal.Load() == 0; acked++ {
		set(acked)
	}
	returned := make(chan struct{})
	go func() {
		defer close(returned)
		for i := range 100 { // several MemTables
			set(acked + i)
		}
	}()
	select {
	case <-returned:
	case <-time.After(time.Minute):
		t.Fatal("commits do not return")
	}
	for i := range acked + 100 {
		_, c, err := db.Get(fmt.Append(nil, i))
		if err != nil {
			t.Fatalf("row %d: %v", i, err)
		}
		_ = c.Close()
	}
	_ = db.Close()
	again, err := database.Open("db", &pebble.Options{FS: disk.CrashClone(vfs.CrashCloneCfg{}), Logger: &quiet{}})
	if err != nil {
		t.Fatal(err)
	}
	for i := range acked + 100 {
		_, c, err := again.Get(fmt.Append(nil, i))
		if err != nil {
			t.Fatalf("at the next start, row %d: %v", i, err)
		}
		_ = c.Close()
	}
	if err := again.Close(); err != nil {
		t.Error(err)
	}
}
