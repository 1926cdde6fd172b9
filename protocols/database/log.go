package database

import (
	"fmt"
	"io/fs"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// logs are the write-ahead logs that an attempt makes. Where Pebble cannot end its log or make the next one it panics between an unlock
// and a deferred unlock of its lock, which ends the process even under a recover. So the first failure of a log is reported as fatal, before
// a caller can believe its write durable, and is called a success then. From then on no log is written or made: Pebble reports a
// log after one without a clean end as damaged.
type logs struct {
	a    *attempt
	once sync.Once
	lost atomic.Bool // set once the failure is reported
}

// failed reports the first failure of a log. While the database is being opened it does not return.
func (l *logs) failed(name, verb string, err error) {
	l.once.Do(func() {
		l.a.Fatalf("%s of log %s: %v", verb, filepath.Base(name), err)
		l.lost.Store(true)
	})
}

// make makes the log name by do.
func (l *logs) make(name string, do func() (vfs.File, error)) (vfs.File, error) {
	if l.lost.Load() {
		return lostFile(name), nil
	}
	file, err := do()
	if err != nil {
		l.failed(name, "creation", err)
		return lostFile(name), nil
	}
	return &log{file, l, name}, nil
}

// log is a write-ahead log that has been made.
type log struct {
	vfs.File
	logs *logs
	name string
}

func (l *log) do(verb string, operation func() error) {
	if l.logs.lost.Load() {
		return
	}
	if err := operation(); err != nil {
		l.logs.failed(l.name, verb, err)
	}
}

// Write implements vfs.File.
func (l *log) Write(p []byte) (int, error) {
	l.do("a write", func() error {
		_, err := l.File.Write(p)
		return err
	})
	return len(p), nil
}

// Sync implements vfs.File.
func (l *log) Sync() error {
	l.do("an fsync", l.File.Sync)
	return nil
}

// SyncData implements vfs.File.
func (l *log) SyncData() error {
	l.do("an fsync", l.File.SyncData)
	return nil
}

// SyncTo implements vfs.File.
func (l *log) SyncTo(length int64) (full bool, _ error) {
	l.do("an fsync", func() (err error) {
		full, err = l.File.SyncTo(length)
		return err
	})
	return full, nil
}

// Close implements vfs.File. The file is closed whether or not a log was lost.
func (l *log) Close() error {
	if err := l.File.Close(); err != nil {
		l.logs.failed(l.name, "the close", err)
	}
	return nil
}

// lostFile is a log or MANIFEST that could not be made, by its path. Its content is lost; that was reported before.
type lostFile string

// Write implements vfs.File.
func (l lostFile) Write(p []byte) (int, error) { return len(p), nil }

// WriteAt implements vfs.File.
func (l lostFile) WriteAt(p []byte, _ int64) (int, error) { return len(p), nil }

// Read implements vfs.File.
func (l lostFile) Read([]byte) (int, error) { return 0, l.unreadable() }

// ReadAt implements vfs.File.
func (l lostFile) ReadAt([]byte, int64) (int, error) { return 0, l.unreadable() }

func (l lostFile) unreadable() error {
	return fmt.Errorf("%s was not made", filepath.Base(string(l)))
}

// Close implements vfs.File.
func (lostFile) Close() error { return nil }

// Preallocate implements vfs.File.
func (lostFile) Preallocate(int64, int64) error { return nil }

// Prefetch implements vfs.File.
func (lostFile) Prefetch(int64, int64) error { return nil }

// Stat implements vfs.File.
func (l lostFile) Stat() (vfs.FileInfo, error) { return lostInfo(l), nil }

// Sync implements vfs.File.
func (lostFile) Sync() error { return nil }

// SyncData implements vfs.File.
func (lostFile) SyncData() error { return nil }

// SyncTo implements vfs.File.
func (lostFile) SyncTo(int64) (bool, error) { return true, nil }

// Fd implements vfs.File.
func (lostFile) Fd() uintptr { return vfs.InvalidFd }

// lostInfo is the vfs.FileInfo of an empty file, by its path.
type lostInfo string

// Name implements fs.FileInfo.
func (i lostInfo) Name() string { return filepath.Base(string(i)) }

// Size implements fs.FileInfo.
func (lostInfo) Size() int64 { return 0 }

// Mode implements fs.FileInfo.
func (lostInfo) Mode() fs.FileMode { return 0o600 }

// ModTime implements fs.FileInfo.
func (lostInfo) ModTime() time.Time { return time.Time{} }

// IsDir implements fs.FileInfo.
func (lostInfo) IsDir() bool { return false }

// Sys implements fs.FileInfo.
func (lostInfo) Sys() any { return nil }

// DeviceID implements vfs.FileInfo.
func (lostInfo) DeviceID() vfs.DeviceID { return vfs.DeviceID{} }
