package database

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// files is the file system of an attempt. It reports failed fsyncs of directories, and calls them done.
type files struct {
	vfs.FS
	a *attempt
}

// Create implements vfs.FS. Pebble panics when it cannot make its next log, in a way that ends the process: the reason is reported before.
func (f *files) Create(name string, c vfs.DiskWriteCategory) (file vfs.File, err error) {
	err = f.change(name, func() error {
		file, err = f.FS.Create(name, c)
		return err
	})
	if err != nil {
		if isLog(name) {
			f.a.failed(fmt.Errorf("the next log: %w", err))
		}
		return nil, err
	}
	if strings.HasPrefix(filepath.Base(name), "MANIFEST-") {
		file = &manifest{file, f.a}
	}
	return file, nil
}

func isLog(name string) bool { return strings.HasSuffix(name, ".log") }

// change makes a change by which name comes to be. A log may be begun after a fatal error, too: it harms nothing, and without it Pebble
// would panic.
func (f *files) change(name string, do func() error) error {
	if isLog(name) && f.a.now() == ended {
		return do()
	}
	return f.a.change(do)
}

// Link implements vfs.FS.
func (f *files) Link(from, to string) error {
	return f.a.change(func() error { return f.FS.Link(from, to) })
}

// MkdirAll implements vfs.FS.
func (f *files) MkdirAll(dir string, perm os.FileMode) error {
	return f.a.change(func() error { return f.FS.MkdirAll(dir, perm) })
}

// OpenReadWrite implements vfs.FS.
func (f *files) OpenReadWrite(name string, c vfs.DiskWriteCategory, o ...vfs.OpenOption) (file vfs.File, err error) {
	err = f.a.change(func() error {
		file, err = f.FS.OpenReadWrite(name, c, o...)
		return err
	})
	return file, err
}

// Remove implements vfs.FS.
func (f *files) Remove(name string) error {
	return f.a.change(func() error { return f.FS.Remove(name) })
}

// RemoveAll implements vfs.FS.
func (f *files) RemoveAll(name string) error {
	return f.a.change(func() error { return f.FS.RemoveAll(name) })
}

// Rename implements vfs.FS.
func (f *files) Rename(from, to string) error {
	return f.a.change(func() error { return f.FS.Rename(from, to) })
}

// ReuseForWrite implements vfs.FS.
func (f *files) ReuseForWrite(from, to string, c vfs.DiskWriteCategory) (file vfs.File, err error) {
	err = f.change(to, func() error {
		file, err = f.FS.ReuseForWrite(from, to, c)
		return err
	})
	return file, err
}

// OpenDir implements vfs.FS.
func (f *files) OpenDir(name string) (vfs.File, error) {
	d, err := f.FS.OpenDir(name)
	if err != nil {
		return nil, err
	}
	return &dir{d, name, f.a}, nil
}

// Lock implements vfs.FS.
func (f *files) Lock(name string) (io.Closer, error) {
	f.a.mu.Lock()
	defer f.a.mu.Unlock()
	lock, err := f.FS.Lock(name)
	if err != nil {
		return nil, err
	}
	f.a.lock = &onceCloser{close: sync.OnceValue(lock.Close)}
	return f.a.lock, nil
}

// onceCloser closes the lock of a directory once: an Open that is abandoned may fail by itself at the same time, and then Pebble closes it
// too.
type onceCloser struct{ close func() error }

// Close implements io.Closer.
func (c *onceCloser) Close() error { return c.close() }

type dir struct {
	vfs.File
	name string
	a    *attempt
}

// Sync implements vfs.File.
func (d *dir) Sync() error {
	if err := d.File.Sync(); err != nil {
		d.a.failed(fmt.Errorf("fsync of directory %s: %w", d.name, err))
		d.a.fatal()
	}
	return nil
}

// manifest is the file that lists the tables.
type manifest struct {
	vfs.File
	a *attempt
}

// Write implements vfs.File.
func (m *manifest) Write(p []byte) (n int, err error) {
	err = m.a.change(func() error {
		n, err = m.File.Write(p)
		return err
	})
	return n, err
}
