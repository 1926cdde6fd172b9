package brick

import (
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/protocols/fault"
)

func TestReadOnlyBelowTheFreeSpaceLimit(t *testing.T) {
	fs := vfs.NewMem()
	fs.TestingSetDiskUsage(vfs.DiskUsage{AvailBytes: 10 << 30, TotalBytes: 20 << 30})
	b, _ := open(t, fs, Settings{FreeBytesMin: 1 << 30})
	put(t, b, 1, seq(1), 10)
	free := func(n uint64, want bool) {
		t.Helper()
		fs.TestingSetDiskUsage(vfs.DiskUsage{AvailBytes: n, TotalBytes: 20 << 30})
		b.checkSpace()
		if ro, why := b.ReadOnly(); ro != want {
			t.Errorf("%d bytes free: read-only %v (%s), want %v", n, ro, why, want)
		}
	}
	free(1<<30-1, true)
	_, err := b.Append(1, 1, seq(2), nil)
	wantKind(t, err, fault.Unavailable, "make room there or lower storage.free_bytes_min")
	free(1<<30+1, true) // no flapping
	free(5<<28, false)
	put(t, b, 1, seq(2), 10)
	mustClose(t, b)
}

// TestWritesEndBeforeTheLastFile: a store on a file system with room for bytes and for no file more would be fenced by its log or catalogue.
func TestWritesEndBeforeTheLastFile(t *testing.T) {
	files := Files{Total: 100_000, Free: 2 * FilesMin}
	fs := vfs.NewMem()
	fs.TestingSetDiskUsage(vfs.DiskUsage{AvailBytes: 10 << 30, TotalBytes: 20 << 30})
	b, err := Open(Deps{FS: fs, Files: func(string) Files { return files }}, Settings{DataDir: "data", FreeBytesMin: 1})
	if err != nil {
		t.Fatal(err)
	}
	free := func(f Files, want bool) {
		t.Helper()
		files = f
		b.checkSpace()
		if ro, why := b.ReadOnly(); ro != want || ro && !strings.Contains(why, "remove files there") {
			t.Errorf("%d: read-only %v (%s), want %v", f, ro, why, want)
		}
	}
	free(Files{Total: 100_000, Free: FilesMin}, false)
	free(Files{Total: 100_000, Free: FilesMin - 1}, true)
	free(Files{Total: 100_000, Free: FilesMin + 1}, true) // no flapping
	free(Files{Total: 100_000, Free: FilesMin * 5 / 4}, false)
	free(Files{Total: 800, Free: 99}, true)
	free(Files{Total: 800, Free: 100}, true)
	free(Files{Total: 800, Free: 125}, false)
	free(Files{}, false) // not known
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
}
