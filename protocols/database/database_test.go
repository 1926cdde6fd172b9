package database_test

import (
	"errors"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/spillwaydb/spillway/protocols/database"
)

type quiet struct{ fatal atomic.Int32 }

func (*quiet) Infof(string, ...any)  {}
func (*quiet) Errorf(string, ...any) {}

func (q *quiet) Fatalf(string, ...any) { q.fatal.Add(1) }

// TestOpenReturnsWhateverTheDiskRefuses: each operation of an Open fails, alone and with all that follow. Open returns, and the next one with
// a healthy disk finds the committed row. Without this package a flush that fails would be tried again for ever.
func TestOpenReturnsWhateverTheDiskRefuses(t *testing.T) {
	mem := vfs.NewCrashableMem()
	db, err := database.Open("db", &pebble.Options{FS: mem, Logger: &quiet{}})
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Set([]byte("a"), []byte("1"), pebble.Sync); err != nil {
		t.Fatal(err)
	}
	image := mem.CrashClone(vfs.CrashCloneCfg{}) // the row is in the log: it is flushed by the next Open
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	refused := 0
	for _, forever := range []bool{false, true} {
		for n := int32(0); ; n++ {
			disk := image.CrashClone(vfs.CrashCloneCfg{})
			var count atomic.Int32
			failing := errorfs.InjectorFunc(func(errorfs.Op) error {
				if i := count.Add(1) - 1; i == n || forever && i > n {
					return syscall.EIO
				}
				return nil
			})
			db, err := database.Open("db", &pebble.Options{FS: errorfs.Wrap(disk, failing), Logger: &quiet{}})
			if err == nil {
				_ = db.Close()
			} else if refused++; !errors.Is(err, syscall.EIO) {
				t.Errorf("operation %d: %v has lost its cause", n, err)
			}
			db, err = database.Open("db", &pebble.Options{FS: disk, Logger: &quiet{}})
			if err != nil {
				t.Fatalf("after operation %d failed: %v", n, err)
			}
			if v, c, err := db.Get([]byte("a")); err != nil || string(v) != "1" {
				t.Errorf("after operation %d failed: %q, %v", n, v, err)
			} else {
				_ = c.Close()
			}
			if err := db.Close(); err != nil {
				t.Errorf("after operation %d failed: %v", n, err)
			}
			if count.Load() <= n {
				break
			}
		}
	}
	if refused == 0 {
		t.Error("no Open was refused")
	}
	t.Logf("%d refused", refused)
}
