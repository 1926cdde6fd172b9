//go:build linux || darwin

package brick

import (
	"errors"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// truncate shortens an open file, unless its bytes may be needed: by another name, perhaps one that it was given just now, or elsewhere, where a link leads.
func truncate(fd uintptr, path string, size int64) error {
	var open, named unix.Stat_t
	if err := errors.Join(unix.Fstat(int(fd), &open), unix.Lstat(path, &named)); err != nil {
		return err
	}
	if open.Dev != named.Dev || open.Ino != named.Ino || open.Mode&unix.S_IFMT != unix.S_IFREG || open.Nlink != 1 || open.Size <= size {
		return errors.ErrUnsupported
	}
	return unix.Ftruncate(int(fd), size)
}

// linked reports whether a file has other names: its bytes are also those of a backup.
func linked(info os.FileInfo) bool {
	s, ok := info.Sys().(*syscall.Stat_t)
	return ok && s.Nlink > 1
}
