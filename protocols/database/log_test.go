package database_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/spillwaydb/spillway/protocols/database"
)

// TestAProcessOutlivesALogThatTheDiskRefuses has one operation of the write-ahead log fail at each of the first fifty times it is done,
// once and from then on, while logs are begun one after another. The failure is reported before a commit that it hits returns, so that
// it is not believed durable; rows can be read as before, and a commit that returned without a report is there after a power cut.
func TestAProcessOutlivesALogThatTheDiskRefuses(t *testing.T) {
	kinds := map[string]errorfs.OpKind{"create": errorfs.OpCreate, "use again": errorfs.OpReuseForWrite, "write": errorfs.OpFileWrite, "fsync": errorfs.OpFileSyncData}
	for name, kind := range kinds {
		t.Run(name, func(t *testing.T) {
			hit := 0
			for _, forever := range []bool{false, true} {
				for n := range int32(50) {
					if refusedLog(t, kind, n, forever) {
						hit++
					}
				}
			}
			if hit == 0 {
				t.Error("no operation failed")
			}
			t.Logf("%d logs failed", hit)
		})
	}
}

func refusedLog(t *testing.T, kind errorfs.OpKind, n int32, forever bool) (hit bool) {
	t.Helper()
	disk := vfs.NewCrashableMem()
	var on atomic.Bool
	var count atomic.Int32
	failing := errorfs.InjectorFunc(func(op errorfs.Op) error {
		if !on.Load() || op.Kind != kind || !strings.HasSuffix(op.Path, ".log") {
			return nil
		}
		if i := count.Add(1) - 1; i == n || forever && i > n {
			return syscall.EIO
		}
		return nil
	})
	logged := &quiet{}
	db, err := database.Open("db", &pebble.Options{FS: errorfs.Wrap(disk, failing), Logger: logged, MemTableSize: 64 << 10, DisableAutomaticCompactions: true,
		EventListener: &pebble.EventListener{BackgroundError: func(error) {}}})
	if err != nil {
		t.Fatal(err)
	}
	on.Store(true)
	acked := 0
	value := bytes.Repeat([]byte("row"), 3000)
	for acked < 40 && logged.fatal.Load() == 0 {
		if err := db.Set(fmt.Append(nil, acked), value, pebble.Sync); err == nil && logged.fatal.Load() == 0 {
			acked++
		}
	}
	for i := range acked {
		v, c, err := db.Get(fmt.Append(nil, i))
		if err != nil || !bytes.Equal(v, value) {
			t.Fatalf("operation %d (forever: %t): row %d cannot be read: %v", n, forever, i, err)
		}
		_ = c.Close()
	}
	image := disk.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: int(n%2) * 100, RNG: rand.New(rand.NewPCG(1, uint64(n)))})
	_ = db.Close()
	for _, fs := range []*vfs.MemFS{image, disk} {
		wholeAfter(t, fs, acked, fmt.Sprintf("operation %d (forever: %t)", n, forever))
	}
	if count.Load() > n && logged.fatal.Load() == 0 {
		t.Errorf("operation %d (forever: %t) failed and nothing was logged", n, forever)
	}
	return count.Load() > n
}

func wholeAfter(t *testing.T, fs vfs.FS, acked int, what string) {
	t.Helper()
	db, err := database.Open("db", &pebble.Options{FS: fs, Logger: &quiet{}})
	if err != nil {
		t.Fatalf("%s: the next start: %v", what, err)
	}
	for i := range acked {
		_, c, err := db.Get(fmt.Append(nil, i))
		if err != nil {
			t.Fatalf("%s: of %d acknowledged rows %d is lost: %v", what, acked, i, err)
		}
		_ = c.Close()
	}
	if err := db.Close(); err != nil && !errors.Is(err, pebble.ErrClosed) {
		t.Error(err)
	}
}
