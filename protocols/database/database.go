// Package database opens Pebble databases, and returns an error where the disk fails meanwhile.
//
// Pebble calls Logger.Fatalf and expects that the process ends, and flushes that fail are tried again at once and for ever, so that a
// disk which fails while a database is opened for writing makes pebble.Open spin and never return. Open returns then.
package database

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// Open opens the database in dir as pebble.Open does. A panic over its files becomes an error. While it is opened for writing, the
// first error that pebble calls fatal, or of a flush, is returned; Pebble's goroutines are then left halted for good: two of them and a few
// MiB until the process ends. They change no file of the directory any more, and its lock is free, unless it is o.Lock. Later such errors go
// to o's own Logger and EventListener, and so does a failed fsync of a directory, at which Pebble panics. No compaction begins before the
// database is open.
func Open(dir string, o *pebble.Options) (*pebble.DB, error) {
	if o.ReadOnly {
		return open(dir, o)
	}
	a := &attempt{over: make(chan error, 1), logger: o.Logger}
	own := *o
	if o.EventListener != nil {
		listener := *o.EventListener
		own.EventListener = &listener
		a.background = o.EventListener.BackgroundError
	} else {
		own.EventListener = &pebble.EventListener{}
	}
	own.EventListener.BackgroundError = a.failed
	own.Logger = a
	own.FS = &files{o.FS, a}
	own.DisableTableStats = true // the goroutine that collects them uses caches which an Open that fails has closed
	compactions := newScheduler(a)
	own.Experimental.CompactionScheduler = compactions
	type result struct {
		db  *pebble.DB
		err error
	}
	opened := make(chan result, 1)
	go func() {
		db, err := open(dir, &own)
		opened <- result{db, err}
	}()
	select {
	case r := <-opened:
		if r.err != nil {
			a.end(abandoned)
			return nil, r.err
		}
		if a.end(inUse) {
			compactions.begin()
			return r.db, nil
		} // else a flush failed as the database was open: the goroutine that failed has halted with Pebble's lock
		return nil, a.free(<-a.over)
	case err := <-a.over:
		return nil, a.free(err)
	}
}

func open(dir string, o *pebble.Options) (db *pebble.DB, err error) {
	defer func() {
		p := recover()
		if cause, ok := p.(error); ok {
			db, err = nil, fmt.Errorf("pebble: %w", cause)
		} else if p != nil {
			db, err = nil, fmt.Errorf("pebble: %v", p)
		}
	}()
	return pebble.Open(dir, o)
}

// attempt stands between Pebble and the caller's logger and listener until the database is open.
type attempt struct {
	over       chan error
	logger     pebble.Logger
	background func(error)

	mu    sync.Mutex
	state state
	lock  io.Closer // of the directory; nil where the caller has it

	changes sync.RWMutex // held for reading by each operation that changes the directory
}

// state is that of an attempt. The first change is the last one: a database that a failure has halted is never handed out.
type state int

const (
	opening   state = iota
	inUse           // errors pass to the caller
	abandoned       // goroutines halt at an error, and before they change the directory
)

// end ends the opening, and reports whether a failure has not done so before.
func (a *attempt) end(s state) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.state != opening {
		return false
	}
	a.state = s
	return true
}

// inUse reports whether the database is open.
func (a *attempt) inUse() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.state == inUse
}

// change begins an operation that changes the directory, and returns its end. An attempt that is abandoned has none any more: the next
// Open of the directory may be at work, and would find files gone that it has listed.
func (a *attempt) change() (done func()) {
	a.changes.RLock()
	a.mu.Lock()
	gone := a.state == abandoned
	a.mu.Unlock()
	if gone {
		a.changes.RUnlock()
		halt()
	}
	return a.changes.RUnlock
}

// free waits for the changes of the directory that have begun, and frees its lock.
func (a *attempt) free(err error) error {
	a.changes.Lock()
	defer a.changes.Unlock()
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.lock != nil {
		_ = a.lock.Close()
	}
	return err
}

// halts reports an error and never returns, unless the database is open.
func (a *attempt) halts(err error) {
	if a.end(abandoned) {
		a.over <- err
		halt()
	}
	if !a.inUse() {
		halt()
	}
}

// halt has a name of its own, so that tests that look for goroutines know it.
func halt() { select {} }

func (a *attempt) failed(err error) {
	a.halts(err)
	if a.background != nil {
		a.background(err)
	}
}

// Infof implements pebble.Logger.
func (a *attempt) Infof(format string, args ...any) { a.logger.Infof(format, args...) }

// Errorf implements pebble.Logger.
func (a *attempt) Errorf(format string, args ...any) { a.logger.Errorf(format, args...) }

// Fatalf implements pebble.Logger. The Kind and the cause of an error among args are kept.
func (a *attempt) Fatalf(format string, args ...any) {
	err := fmt.Errorf(format, args...)
	for _, x := range args {
		if cause, ok := x.(error); ok {
			err = &fatal{err.Error(), cause}
		}
	}
	a.halts(err)
	a.logger.Fatalf(format, args...)
}

// fatal is a message of Pebble's with the error in it.
type fatal struct {
	text  string
	cause error
}

func (f *fatal) Error() string { return f.text }

func (f *fatal) Unwrap() error { return f.cause }

// files is a file system that reports failed fsyncs of directories, and calls them done. It changes nothing any more once the attempt is
// abandoned.
type files struct {
	vfs.FS
	a *attempt
}

// Create implements vfs.FS. Pebble panics when it cannot make its next log, in a way that ends the process: the reason is reported before.
func (f *files) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	done := f.a.change()
	file, err := f.FS.Create(name, c)
	done()
	if err != nil && strings.HasSuffix(name, ".log") {
		f.a.failed(fmt.Errorf("the next log: %w", err))
	}
	return file, err
}

// Link implements vfs.FS.
func (f *files) Link(from, to string) error {
	defer f.a.change()()
	return f.FS.Link(from, to)
}

// MkdirAll implements vfs.FS.
func (f *files) MkdirAll(dir string, perm os.FileMode) error {
	defer f.a.change()()
	return f.FS.MkdirAll(dir, perm)
}

// OpenReadWrite implements vfs.FS.
func (f *files) OpenReadWrite(name string, c vfs.DiskWriteCategory, o ...vfs.OpenOption) (vfs.File, error) {
	defer f.a.change()()
	return f.FS.OpenReadWrite(name, c, o...)
}

// Remove implements vfs.FS.
func (f *files) Remove(name string) error {
	defer f.a.change()()
	return f.FS.Remove(name)
}

// RemoveAll implements vfs.FS.
func (f *files) RemoveAll(name string) error {
	defer f.a.change()()
	return f.FS.RemoveAll(name)
}

// Rename implements vfs.FS.
func (f *files) Rename(from, to string) error {
	defer f.a.change()()
	return f.FS.Rename(from, to)
}

// ReuseForWrite implements vfs.FS.
func (f *files) ReuseForWrite(from, to string, c vfs.DiskWriteCategory) (vfs.File, error) {
	defer f.a.change()()
	return f.FS.ReuseForWrite(from, to, c)
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

// onceCloser closes the lock of a directory once: an Open that is abandoned may fail by itself at the same time, and then Pebble closes it too.
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
	}
	return nil
}
