//go:build linux || darwin

package brick

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// truncate shortens an open file.
func truncate(fd uintptr, size int64) error { return unix.Ftruncate(int(fd), size) }

// linked reports whether a file has other names: its bytes are also those of a backup.
func linked(info os.FileInfo) bool {
	s, ok := info.Sys().(*syscall.Stat_t)
	return ok && s.Nlink > 1
}
