package settings

import (
	"math"

	"golang.org/x/sys/unix"
)

// addressLimit is the most address space that the process may have; a number that never limits if it cannot be read.
func addressLimit() uint64 {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_AS, &l); err != nil {
		return math.MaxUint64
	}
	return l.Cur
}
