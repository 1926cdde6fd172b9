package database

import (
	"errors"
	"io/fs"
	"strings"
	"syscall"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// LockError says why the file that locks a directory could not be locked, given the error of vfs.FS.Lock; nil stays nil. Only
// of a lock that is held it says that it is, with the sentence held; for one that this process may not write it has an advice.
// The Kind is Unavailable.
func LockError(err error, file, held, advice string) error {
	switch {
	case lockHeld(err):
		return fault.Wrap(err, fault.Unavailable, "%s", held)
	case errors.Is(err, fs.ErrPermission):
		return fault.Wrap(err, fault.Unavailable, "this process has no permission to write %s; %s", file, advice)
	}
	return fault.Wrap(err, fault.Unavailable, "lock %s", file)
}

// lockHeld reports whether a lock is held, by another process or by this one. A file that cannot even be opened has an error
// with its path. POSIX lets fcntl answer either number for a lock that is held.
func lockHeld(err error) bool {
	var opening *fs.PathError
	if err == nil || errors.As(err, &opening) {
		return false
	}
	return errors.Is(err, syscall.EAGAIN) || errors.Is(err, syscall.EACCES) || strings.Contains(err.Error(), "lock held by current process")
}
