//go:build faults

package process

import (
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// disk is the file system of the store in the program of make chaos (.ci/faults). While the file named by FAULT_SYNC exists, fsyncs fail, and
// bytes written since the last successful fsync read as zeroes afterwards, as after a kernel that drops dirty pages. Where it holds a duration,
// as 700ms, fsyncs last as much longer instead.
func disk() vfs.FS {
	if file := os.Getenv("FAULT_SYNC"); file != "" {
		return failingFS{vfs.Default, file}
	}
	return vfs.Default
}

type failingFS struct {
	vfs.FS
	file string // is there: fsyncs fail, or are slow
}

func (d failingFS) Unwrap() vfs.FS { return d.FS }

func (d failingFS) wrap(f vfs.File, err error) (vfs.File, error) {
	if err != nil {
		return nil, err
	}
	return &failingFile{File: f, fs: d, fresh: true}, nil
}

func (d failingFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	return d.wrap(d.FS.Create(name, c))
}

func (d failingFS) ReuseForWrite(from, to string, c vfs.DiskWriteCategory) (vfs.File, error) {
	return d.wrap(d.FS.ReuseForWrite(from, to, c))
}

func (d failingFS) OpenReadWrite(name string, c vfs.DiskWriteCategory, o ...vfs.OpenOption) (vfs.File, error) {
	f, err := d.FS.OpenReadWrite(name, c, o...)
	if err != nil {
		return nil, err
	}
	return &failingFile{File: f, fs: d}, nil
}

func (d failingFS) OpenDir(name string) (vfs.File, error) { return d.wrap(d.FS.OpenDir(name)) }

// failingFile is a file, or a directory.
type failingFile struct {
	vfs.File
	fs      failingFS
	fresh   bool // it is written from its beginning on: its unsynced part is known
	written atomic.Int64
	mu      struct { // one fsync at a time: none fails over bytes that another is about to keep
		sync.Mutex
		synced int64
	}
}

func (f *failingFile) Write(b []byte) (int, error) {
	n, err := f.File.Write(b)
	f.written.Add(int64(n))
	return n, err
}

func (f *failingFile) Sync() error     { return f.sync(f.File.Sync) }
func (f *failingFile) SyncData() error { return f.sync(f.File.SyncData) }

func (f *failingFile) sync(real func() error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	end := f.written.Load()
	if text, err := os.ReadFile(f.fs.file); err == nil {
		if slow, err := time.ParseDuration(string(text)); err == nil {
			time.Sleep(slow)
			return f.synced(end, real)
		}
		if lost := end - f.mu.synced; f.fresh && lost > 0 {
			_, _ = f.File.WriteAt(make([]byte, lost), f.mu.synced) // the fsync has failed, whatever this says
		}
		return syscall.EIO
	}
	return f.synced(end, real)
}

func (f *failingFile) synced(end int64, real func() error) error {
	err := real()
	if err == nil {
		f.mu.synced = end
	}
	return err
}
