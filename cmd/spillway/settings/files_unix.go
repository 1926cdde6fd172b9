//go:build unix

package settings

import "golang.org/x/sys/unix"

// fileLimit raises the limit of open files as far as the process may, and returns it; a number that never limits if it
// cannot be read.
func fileLimit() uint64 {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err != nil {
		return 1 << 20
	}
	if l.Cur < l.Max {
		raised := unix.Rlimit{Cur: l.Max, Max: l.Max}
		if unix.Setrlimit(unix.RLIMIT_NOFILE, &raised) == nil { // macOS refuses more than its kernel can hold
			return uint64(raised.Cur)
		}
	}
	return uint64(l.Cur)
}
