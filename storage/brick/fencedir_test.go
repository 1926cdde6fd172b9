package brick

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// TestRowsAreNotAckedInALogFileWhoseNameMayBeLost: the fsync of the log directory failed once, was tried again a second later, and found nothing left to write. The
// file became the current one, though a power cut could lose its name, and with it all rows acked in it.
func TestRowsAreNotAckedInALogFileWhoseNameMayBeLost(t *testing.T) {
	f := &failing{kind: errorfs.OpFileSync, part: "/log"}
	mem := vfs.NewMem()
	b, _ := open(t, errorfs.Wrap(mem, f), Settings{FileBytesMax: fileBytesMin})
	first := put(t, b, 1, seq(1), 100)
	b.runner.stop() // the test acts for the runner
	f.on.Store(true)
	want := []kept{first}
	for i := range 3 {
		want = append(want, put(t, b, 1, seq(uint64(i+2)), fileBytesMin/4))
	}
	wantKind(t, b.prepareNext(), fault.Unavailable, "fenced")
	f.on.Store(false) // the next fsync says that all is well
	b.tend()
	_, err := b.Append(1, 1, seq(9), []byte("x"))
	wantKind(t, err, fault.Unavailable, "fenced")
	if f.hits.Load() != 1 {
		t.Errorf("%d fsyncs of the directory were tried after the first failed", f.hits.Load()-1)
	}
	wantKind(t, b.Close(), fault.Unavailable, "fenced")
	b, got := open(t, mem, Settings{})
	wantKept(t, got, want)
	mustClose(t, b)
}

// TestRowsAreNotAckedBesideADirectoryOfSegmentsWhoseNameMayBeLost: the fsync of its name failed once, was tried again, and found nothing left to write. Segments were
// made in it, and their rows removed from the log, though a power cut could lose the directory.
func TestRowsAreNotAckedBesideADirectoryOfSegmentsWhoseNameMayBeLost(t *testing.T) {
	f := &failing{kind: errorfs.OpFileSync, part: "/" + segmentsDir}
	disk := vfs.NewMem()
	b, _ := open(t, errorfs.Wrap(disk, f), Settings{})
	f.on.Store(true)
	wantKind(t, b.MakeSegmentDir(7), fault.Unavailable, "fenced")
	if _, err := disk.Stat(b.SegmentDir(7)); err == nil {
		t.Error("the directory is there at the next start, whose fsync says that all is well, too")
	}
	f.on.Store(false) // the next fsync says that all is well
	_, err := b.Append(1, 1, seq(9), []byte("x"))
	wantKind(t, err, fault.Unavailable, "fenced")
	wantKind(t, b.Close(), fault.Unavailable, "fenced")
}

// TestASegmentDirectoryIsTriedAgainWhenFilesAreShort: nothing was lost where its parent could not be opened.
func TestASegmentDirectoryIsTriedAgainWhenFilesAreShort(t *testing.T) {
	f := &failing{kind: errorfs.OpOpenDir, part: "/" + segmentsDir}
	b, _ := open(t, errorfs.Wrap(vfs.NewMem(), f), Settings{})
	f.on.Store(true)
	wantKind(t, b.MakeSegmentDir(7), fault.Unavailable, "open directory")
	f.on.Store(false)
	if err := b.MakeSegmentDir(7); err != nil || b.Err() != nil {
		t.Error(err, b.Err())
	}
	mustClose(t, b)
}

// TestADirectoryWhoseNameMayBeLostIsMadeAnew: the fsync of its name failed once, was tried again, and found nothing left to write. A backup in it counted as whole, though a
// power cut could lose the directory.
func TestADirectoryWhoseNameMayBeLostIsMadeAnew(t *testing.T) {
	f := &failing{kind: errorfs.OpFileSync, part: "/a"}
	disk := vfs.NewMem()
	check := func(made bool) {
		t.Helper()
		for _, d := range []string{"/a/b", "/a/b/c"} {
			if _, err := disk.Stat(d); (err == nil) != made {
				t.Errorf("%s: %v", d, err)
			}
		}
	}
	if err := disk.MkdirAll("/a", 0o755); err != nil {
		t.Fatal(err)
	}
	f.on.Store(true)
	wantKind(t, MakeDir(errorfs.Wrap(disk, f), "/a/b/c"), fault.Unavailable, "sync directory")
	check(false)
	f.on.Store(false)
	if err := MakeDir(errorfs.Wrap(disk, f), "/a/b/c"); err != nil {
		t.Error(err)
	}
	check(true)
	f.on.Store(true)
	wantKind(t, MakeDir(errorfs.Wrap(disk, f), "/a/b/c"), fault.Unavailable, "sync directory")
	check(true) // another call made it
}

// TestADirectoryThatCannotBeMadeSaysWhatToDo: of a link to a disk that is not mounted it said "file exists".
func TestADirectoryThatCannotBeMadeSaysWhatToDo(t *testing.T) {
	top := t.TempDir()
	link, file := filepath.Join(top, "data"), filepath.Join(top, "file")
	if err := errors.Join(os.Symlink(filepath.Join(top, "disk", "data"), link), os.WriteFile(file, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	for dir, want := range map[string]string{
		link: "mount the disk", filepath.Join(link, "log"): "mount the disk", file: "is a file: name another", filepath.Join(file, "log"): "is a file: name another",
	} {
		wantKind(t, MakeDir(vfs.Default, dir), fault.Unavailable, want)
	}
	denied := errorfs.Wrap(vfs.Default, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind == errorfs.OpMkdirAll {
			return &os.PathError{Op: "mkdir", Path: op.Path, Err: syscall.EACCES}
		}
		return nil
	}))
	wantKind(t, MakeDir(denied, filepath.Join(top, "lib")), fault.Unavailable, "give it to the user of this process")
}
