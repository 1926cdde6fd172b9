package database

import (
	"io"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
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
