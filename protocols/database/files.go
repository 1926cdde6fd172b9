package database

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// files is the file system of an attempt. It reports failed fsyncs of directories, and calls them done.
type files struct {
	vfs.FS
	a    *attempt
	logs logs
}

// Create implements vfs.FS. Tables are made after a fatal error, too: commits that wait for a flush would wait for ever.
func (f *files) Create(name string, c vfs.DiskWriteCategory) (file vfs.File, err error) {
	make := func() error {
		file, err = f.FS.Create(name, c)
		return err
	}
	if isLog(name) {
		return f.log(name, &file, make)
	}
	if isManifest(name) {
		return createManifest(f.a, name, &file, make)
	}
	if err = f.a.addition(make); err != nil {
		return nil, err
	}
	return file, nil
}

func isLog(name string) bool { return strings.HasSuffix(name, ".log") }

// log makes a log by do, which sets file. It may be begun after a fatal error of something else, too: it harms nothing.
func (f *files) log(name string, file *vfs.File, do func() error) (vfs.File, error) {
	return f.logs.make(name, func() (vfs.File, error) {
		err := f.a.addition(do)
		return *file, err
	})
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
	reuse := func() error {
		if f.a.now() == ended {
			// Pebble may consider the old log flushed by an edit of the MANIFEST that failed.
			file, err = f.FS.Create(to, c)
			return err
		}
		file, err = f.FS.ReuseForWrite(from, to, c)
		return err
	}
	if isLog(to) {
		return f.log(to, &file, reuse)
	}
	err = f.a.change(reuse)
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
