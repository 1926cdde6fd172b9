package backup

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"path"
	"runtime"
	"testing"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/storage/brick"
)

// TestFilesWhoseNamesMayBeLostAreCopiedAgain: the fsync of the directory failed, and so did the backup, or the restore. The next one found the files there, and its own fsync
// succeeded, which proves nothing: after a power cut the backup, or the store, could name files that were gone.
func TestFilesWhoseNamesMayBeLostAreCopiedAgain(t *testing.T) {
	mem := vfs.NewMem()
	rows := bytes.Repeat([]byte("rows"), 1000)
	g := Segment{Placement: 42, Epoch: 1, Seq: 1, Size: int64(len(rows)), Checksum: xxhash.Sum64(rows), Path: "/rows"}
	if err := writeFile(mem, g.Path, bytes.NewReader(rows)); err != nil {
		t.Fatal(err)
	}
	cut := &unsynced{dir: "/bk/" + SegmentsDir}
	at := Dir{FS: errorfs.Wrap(mem, cut), Path: "/bk"}
	write := func(second int64) (Result, error) {
		return Write(t.Context(), mem, at, &Content{Store: "s", Segments: []Segment{g}}, time.Unix(second, 0), Settings{})
	}
	inParts := func(second int64) (Result, error) {
		s, err := Begin(t.Context(), at, "s", time.Unix(second, 0), Settings{})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Keep(t.Context(), &g, g.Path, func() (io.ReadCloser, error) { return mem.Open(g.Path) }); err != nil {
			t.Fatal(err)
		}
		res, err := s.End(t.Context(), &Manifest{Segments: []Segment{g}})
		return res, err
	}
	for name, write := range map[string]func(int64) (Result, error){"a store": write, "a cluster": inParts} {
		if err := at.Remove(t.Context(), SegmentsDir+"/"+g.name()); err != nil {
			t.Fatal(err)
		}
		cut.on.Store(true)
		if res, err := write(1); !fault.Is(err, fault.Unavailable) {
			t.Fatalf("%s: the first backup: %+v, %v", name, res, err)
		}
		cut.on.Store(false)
		if res, err := write(2 + int64(len(name))); err != nil || res.Copied != g.Size {
			t.Errorf("%s: the second backup copied %d of %d bytes, %v", name, res.Copied, g.Size, err)
		}
	}
	// The file was left by a backup that was killed, and its name had never been made durable.
	for name, write := range map[string]func(int64) (Result, error){"a store": write, "a cluster": inParts} {
		for _, list := range []string{"", SegmentsDir} { // no backup names it
			files, err := at.List(t.Context(), list)
			if err != nil {
				t.Fatal(err)
			}
			for f := range files {
				if isBackup(f) || list != "" {
					if err := at.Remove(t.Context(), path.Join(list, f)); err != nil {
						t.Fatal(err)
					}
				}
			}
		}
		if err := writeFile(mem, at.path(SegmentsDir+"/"+g.name()), bytes.NewReader(rows)); err != nil {
			t.Fatal(err)
		}
		cut.on.Store(true)
		if res, err := write(100); !fault.Is(err, fault.Unavailable) {
			t.Fatalf("%s: the backup after one that was killed: %+v, %v", name, res, err)
		}
		cut.on.Store(false)
		if res, err := write(101 + int64(len(name))); err != nil || res.Copied != g.Size {
			t.Errorf("%s: the backup after one that was killed and one that failed copied %d of %d bytes, %v", name, res.Copied, g.Size, err)
		}
		cut.on.Store(true)
		if res, err := write(200); !fault.Is(err, fault.Unavailable) {
			t.Fatalf("%s: the last backup: %+v, %v", name, res, err)
		}
		if _, err := mem.Stat(at.path(SegmentsDir + "/" + g.name())); err != nil {
			t.Errorf("%s: a file of a backup is removed: %v", name, err)
		}
	}
	cut.dir = "/data/segments/" + g.Placement.String()
	restore := func() (Result, error) {
		return Restore(t.Context(), at, "", brick.Deps{FS: errorfs.Wrap(mem, cut)}, brick.Settings{DataDir: "/data", FreeBytesMin: 1}, Settings{})
	}
	cut.on.Store(true)
	if res, err := restore(); !fault.Is(err, fault.Unavailable) {
		t.Fatalf("the first restore: %+v, %v", res, err)
	}
	cut.on.Store(false)
	if _, err := mem.Stat(cut.dir + "/1-1.seg"); err == nil {
		t.Error("the file whose name may be lost is there for the next try")
	}
}

// TestARestoreThatWasKilledAtItsFirstStepGoesOn: its mark was empty, and each restore into the directory was refused in favour of backup "".
func TestARestoreThatWasKilledAtItsFirstStepGoesOn(t *testing.T) {
	mem := vfs.NewMem()
	at := Dir{FS: mem, Path: "/bk"}
	if _, err := Write(t.Context(), mem, at, &Content{Store: "s"}, time.Unix(1, 0), Settings{}); err != nil {
		t.Fatal(err)
	}
	if err := mem.MkdirAll("/data", 0o755); err != nil {
		t.Fatal(err)
	}
	f, err := mem.Create("/data/"+brick.RestoringFile, vfs.WriteCategoryUnspecified)
	if err != nil || f.Close() != nil {
		t.Fatal(err)
	}
	if _, err := Restore(t.Context(), at, "", brick.Deps{FS: mem}, brick.Settings{DataDir: "/data", FreeBytesMin: 1}, Settings{}); err != nil {
		t.Error(err)
	}
}

// weighing is a place that records how much memory is in use when a backup is read.
type weighing struct {
	Dir
	most *uint64
}

func (w weighing) Read(ctx context.Context, name string) (io.ReadCloser, int64, error) {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	*w.most = max(*w.most, m.HeapAlloc)
	return w.Dir.Read(ctx, name)
}

// TestPruningHoldsOneManifestInMemory: it held those of all backups at once, gigabytes for some weeks of a large store, in the process that serves.
func TestPruningHoldsOneManifestInMemory(t *testing.T) {
	var most uint64
	at := weighing{Dir{FS: vfs.NewMem(), Path: "backups"}, &most}
	unlock, err := at.Lock(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	if err := unlock.Close(); err != nil {
		t.Fatal(err)
	}
	const backups, segments, entryBytes = 12, 1000, 2 << 20
	last := ""
	for i := range backups {
		m := &Manifest{Version: formatVersion, Made: time.UnixMilli(int64(i)), Entries: []Entry{{Key: []byte("p/1"), Value: make([]byte, entryBytes)}}}
		for n := range segments {
			m.Segments = append(m.Segments, Segment{Placement: 1, Epoch: 1, Seq: uint64(n), Size: 10, Checksum: checksumOf(i, n)})
		}
		if err := writeManifest(t.Context(), at, m); err != nil {
			t.Fatal(err)
		}
		last = m.name()
	}
	runtime.GC()
	var before runtime.MemStats
	runtime.ReadMemStats(&before)
	removed, err := Prune(t.Context(), at, "", last, 3)
	if err != nil || len(removed) != backups-3 {
		t.Fatalf("removed %v, %v", removed, err)
	}
	if most > before.HeapAlloc+4*entryBytes {
		t.Errorf("%d KiB were in use, %d KiB before", most>>10, before.HeapAlloc>>10)
	}
}

func checksumOf(backup, n int) uint64 { return xxhash.Sum64String(fmt.Sprint(backup, n)) }

// unsure is a place in which names of backups may be lost.
type unsure struct{ Dir }

func (u unsure) Sync(folder string) error {
	if folder != "" {
		return u.Dir.Sync(folder)
	}
	return fault.Errorf(fault.Unavailable, "no fsync")
}

// TestABackupThatFailedIsNoBackup: the fsync of its name failed, and its file stayed. Older backups were removed in favour of one that a power cut could lose.
func TestABackupThatFailedIsNoBackup(t *testing.T) {
	at := Dir{FS: vfs.NewMem(), Path: "/bk"}
	if err := brick.MakeDir(at.FS, at.path(SegmentsDir)); err != nil {
		t.Fatal(err)
	}
	if _, err := Write(t.Context(), at.FS, unsure{at}, &Content{Store: "s"}, time.Unix(1, 0), Settings{}); !fault.Is(err, fault.Unavailable) {
		t.Fatal(err)
	}
	files, err := at.List(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	for f := range files {
		if isBackup(f) {
			t.Errorf("%s is there", f)
		}
	}
}
