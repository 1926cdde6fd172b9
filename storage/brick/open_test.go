package brick

import (
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/protocols/fault"
)

func TestNumbersOfFilesAreNeverUsedTwice(t *testing.T) {
	fs := vfs.NewMem()
	last := uint32(0)
	for i := range 5 {
		b, got := openAfter(t, fs, Settings{}, upTo{1: seq(uint64(i))})
		wantKept(t, got, nil)
		if n := b.mu.cur.number; n <= last {
			t.Fatalf("file %d after %d", n, last)
		}
		last = b.mu.cur.number
		put(t, b, 1, seq(uint64(i+1)), 10)
		b.Release(1, seq(uint64(i+1)))
		if i%2 == 0 {
			if err := b.Drop(1); err != nil {
				t.Fatal(err)
			}
		}
		mustClose(t, b)
	}
}

func TestDirectoryIsLocked(t *testing.T) {
	dir := t.TempDir()
	b, _ := open(t, vfs.Default, Settings{DataDir: dir})
	_, err := Open(Deps{}, Settings{DataDir: dir})
	wantKind(t, err, fault.Unavailable, "another process holds")
	id := b.ID()
	mustClose(t, b)
	b, _ = open(t, vfs.Default, Settings{DataDir: dir})
	if b.ID() != id {
		t.Error("the store has another identity")
	}
	mustClose(t, b)
}

// foreign is a file system on which the lock of another user's directory cannot be opened.
type foreign struct{ vfs.FS }

// Lock implements vfs.FS.
func (foreign) Lock(name string) (io.Closer, error) {
	return nil, &fs.PathError{Op: "open", Path: name, Err: syscall.EACCES}
}

// TestDirectoryOfAnotherUserIsNotCalledInUse: the message said to stop another process, and there was none.
func TestDirectoryOfAnotherUserIsNotCalledInUse(t *testing.T) {
	dir := t.TempDir()
	refused := func(disk vfs.FS, want string) {
		t.Helper()
		_, err := Open(Deps{FS: disk}, Settings{DataDir: dir})
		wantKind(t, err, fault.Unavailable, want)
		if strings.Contains(err.Error(), "another process") {
			t.Errorf("no other process is there: %v", err)
		}
	}
	refused(foreign{vfs.Default}, "no permission to write "+filepath.Join(dir, LockFile)+"; start it as the user who owns "+dir)
	if err := os.Mkdir(filepath.Join(dir, LockFile), 0o755); err != nil {
		t.Fatal(err)
	}
	refused(vfs.Default, "is a directory")
}

func TestWrongDirectoriesAreNoticed(t *testing.T) {
	fs := vfs.NewMem()
	b, _ := open(t, fs, Settings{DataDir: "/a", LogDir: "/la"})
	put(t, b, 1, seq(1), 1)
	mustClose(t, b)
	b, _ = open(t, fs, Settings{DataDir: "/b", LogDir: "/lb"})
	mustClose(t, b)
	_, _, err := tryOpen(fs, Settings{DataDir: "/b", LogDir: "/la"})
	wantKind(t, err, fault.Corrupt, "is log_dir right?")
	_, _, err = tryOpen(fs, Settings{DataDir: "/c", LogDir: "/la"})
	wantKind(t, err, fault.Corrupt, "is data_dir right?")
	_, _, err = tryOpen(fs, Settings{DataDir: "/a", LogDir: "/new"})
	wantKind(t, err, fault.Corrupt, "was log_dir changed?")
}

func TestSettingsReportEveryMistake(t *testing.T) {
	err := (&Settings{FileBytesMax: 1, InFlightBytesMax: -1}).Validate()
	wantKind(t, err, fault.Invalid, "data_dir")
	wantKind(t, err, fault.Invalid, "file_bytes_max")
	wantKind(t, err, fault.Invalid, "in_flight_bytes_max")
	_, err = Open(Deps{FS: vfs.NewMem()}, Settings{})
	wantKind(t, err, fault.Invalid, "data_dir is empty")
}

func TestStoreOnARealDisk(t *testing.T) {
	dir := t.TempDir()
	b, _ := open(t, vfs.Default, Settings{DataDir: dir, FileBytesMax: fileBytesMin})
	var want []kept
	for i := range 40 {
		want = append(want, put(t, b, 1, seq(uint64(i+1)), 5000))
	}
	mustClose(t, b)
	if st, err := os.Stat(dir + "/log/0000000001.log"); err != nil || st.Size() < fileBytesMin {
		t.Errorf("first log file: %v %v", st, err)
	}
	b, got := open(t, vfs.Default, Settings{DataDir: dir})
	wantKept(t, got, want)
	mustClose(t, b)
}

// rootsLostFound is a disk on which lost+found is another user's, as mke2fs makes it.
type rootsLostFound struct{ vfs.FS }

func (f rootsLostFound) denied(path string) error {
	if strings.Contains(path, "/lost+found/") {
		return &os.PathError{Op: "open", Path: path, Err: syscall.EACCES}
	}
	return nil
}

func (f rootsLostFound) Rename(from, to string) error {
	if err := f.denied(to); err != nil {
		return err
	}
	return f.FS.Rename(from, to)
}

func (f rootsLostFound) Create(path string, c vfs.DiskWriteCategory) (vfs.File, error) {
	if err := f.denied(path); err != nil {
		return nil, err
	}
	return f.FS.Create(path, c)
}

// TestAStoreOpensOnADiskWhoseLostAndFoundIsRoots: with a disk mounted at the data directory a crash that left a file to put aside was followed by no start.
func TestAStoreOpensOnADiskWhoseLostAndFoundIsRoots(t *testing.T) {
	mem := vfs.NewMem()
	b, _ := open(t, rootsLostFound{mem}, Settings{})
	defer mustClose(t, b)
	if err := MakeDir(mem, b.lostFoundDir()); err != nil {
		t.Fatal(err)
	}
	writeBytes(t, mem, "/data/stray", []byte("rows"))
	if err := b.PutAside("/data/stray", "a test"); err != nil {
		t.Error(err)
	}
	put(t, b, 1, seq(1), 100)
	if err := b.PutLogAside(1); err != nil {
		t.Error(err)
	}
	b.countLostFound(time.Now(), 0)
	if got := b.LostFound(); got.Entries != 2 {
		t.Errorf("%d entries", got.Entries)
	}
}
