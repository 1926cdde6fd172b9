package database

import (
	"errors"
	"io"
	"io/fs"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// countingLock counts how often the locks of its directories are closed.
type countingLock struct {
	vfs.FS
	closed atomic.Int32
}

// Lock implements vfs.FS.
func (f *countingLock) Lock(string) (io.Closer, error) { return f, nil }

// Close implements io.Closer.
func (f *countingLock) Close() error {
	f.closed.Add(1)
	return nil
}

// TestTheLockOfADirectoryIsClosedOnce: an Open that is abandoned because a flush failed and one that Pebble gives up at the same moment
// both close the lock. The second close would free a lock that a later Open holds, or panic in vfs.MemFS.
func TestTheLockOfADirectoryIsClosedOnce(t *testing.T) {
	disk := &countingLock{FS: vfs.NewMem()}
	f := &files{FS: disk, a: &attempt{}}
	lock, err := f.Lock("db")
	if err != nil {
		t.Fatal(err)
	}
	var closers sync.WaitGroup
	for _, c := range []io.Closer{lock, lock, f.a.lock} {
		closers.Go(func() { _ = c.Close() })
	}
	closers.Wait()
	if n := disk.closed.Load(); n != 1 {
		t.Errorf("the lock was closed %d times", n)
	}
}

// TestOnlyAHeldLockIsCalledHeld: operators were asked to stop another process that there was not.
func TestOnlyAHeldLockIsCalledHeld(t *testing.T) {
	f := func(err error, want string) {
		t.Helper()
		got := LockError(err, "db/LOCK", "db is in use", "start it as another user")
		if !fault.Is(got, fault.Unavailable) || got.Error() != want || !errors.Is(got, err) {
			t.Errorf("%v became %q, a %v; want %q", err, got, fault.KindOf(got), want)
		}
	}
	f(syscall.EAGAIN, "db is in use: resource temporarily unavailable")
	f(syscall.EACCES, "db is in use: permission denied") // of fcntl, which POSIX allows
	f(&fs.PathError{Op: "open", Path: "db/LOCK", Err: syscall.EACCES}, "this process has no permission to write db/LOCK; start it as another user: open db/LOCK: permission denied")
	f(&fs.PathError{Op: "open", Path: "db/LOCK", Err: syscall.EROFS}, "lock db/LOCK: open db/LOCK: read-only file system")
	f(syscall.ENOLCK, "lock db/LOCK: no locks available")
	if LockError(nil, "", "", "") != nil {
		t.Error("no error became one")
	}

	file := filepath.Join(t.TempDir(), "LOCK")
	first, err := vfs.Default.Lock(file)
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	if _, err := vfs.Default.Lock(file); !lockHeld(err) {
		t.Errorf("of a lock that this process holds: %v", err)
	}
	mem := vfs.NewMem()
	if _, err := mem.Lock("LOCK"); err != nil {
		t.Fatal(err)
	}
	if _, err := mem.Lock("LOCK"); !lockHeld(err) {
		t.Errorf("of a lock in memory: %v", err)
	}
}
