package partition

import (
	"strings"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

// tightFS reports free space; each file that is made uses some.
type tightFS struct {
	vfs.FS
	free, perFile atomic.Int64
}

func (f *tightFS) GetDiskUsage(string) (vfs.DiskUsage, error) {
	return vfs.DiskUsage{AvailBytes: uint64(f.free.Load()), TotalBytes: 1 << 40}, nil
}

func (f *tightFS) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	f.free.Add(-f.perFile.Load())
	return f.FS.Create(name, category)
}

// A compaction without room beside the reserve does not begin, one that loses it ends; both leave no file and all rows, and flushes go on all the time.
func TestACompactionLeavesTheReserveToFlushes(t *testing.T) {
	fs := &tightFS{FS: vfs.NewMem()}
	fs.free.Store(1 << 30)
	b := openBench(t, fs, 1)
	for i := range 3 {
		b.must(b.put("a", point.Nanos(i), float64(i)))
		b.must(b.Flush(t.Context(), ByAge))
	}
	before := len(b.files())
	refused := func(what string) {
		t.Helper()
		err := b.Compact(t.Context(), ByRequest)
		if !fault.Is(err, fault.Unavailable) || !strings.Contains(err.Error(), "make room") {
			t.Errorf("%s: %v", what, err)
		}
		if n := len(b.files()); n != before {
			t.Errorf("%s: %d files, were %d", what, n, before)
		}
		b.want("a 0:0 1:1 2:2")
	}
	fs.free.Store(1000) // more than the reserve of the bench, less than the compaction writes
	refused("no room at the start")
	fs.free.Store(1 << 20)
	fs.perFile.Store(1 << 20)
	refused("the room goes meanwhile")
	fs.perFile.Store(0)
	b.must(b.Flush(t.Context(), ByAge))
	fs.free.Store(1 << 30)
	b.must(b.Compact(t.Context(), ByRequest))
	if n := len(b.files()); n != 1 {
		t.Errorf("%d files after the compaction", n)
	}
	b.want("a 0:0 1:1 2:2")
	b.close()
}
