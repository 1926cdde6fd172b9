package processes

import (
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// claim reserves a port by a lock of one byte of a file; false: another call, of any process, has it. The descriptor stays open, and
// the lock stays with it, until the port is released or this process ends.
func claim(port int) (release func(), ok bool) {
	fd, err := unix.Open(filepath.Join(os.TempDir(), "spillway-ports"), unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC, 0o666)
	if err != nil {
		return func() {}, true // another user's file: chance decides
	}
	lock := unix.Flock_t{Type: unix.F_WRLCK, Start: int64(port), Len: 1}
	if unix.FcntlFlock(uintptr(fd), unix.F_OFD_SETLK, &lock) != nil {
		_ = unix.Close(fd)
		return nil, false
	}
	return func() { _ = unix.Close(fd) }, true
}
