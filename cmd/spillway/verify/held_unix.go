//go:build unix

package verify

import (
	"io"
	"os"
	"syscall"
)

// held reports whether another process holds the lock on a file. It neither makes the file nor acquires the lock.
func held(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false // no file, no holder
	}
	defer f.Close()
	lock := syscall.Flock_t{Type: syscall.F_WRLCK, Whence: io.SeekStart}
	return syscall.FcntlFlock(f.Fd(), syscall.F_GETLK, &lock) == nil && lock.Type != syscall.F_UNLCK
}
