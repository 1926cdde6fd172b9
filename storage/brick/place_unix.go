//go:build unix

package brick

import (
	"os"
	"syscall"
)

// inodeOf distinguishes files of a device; 0: unknown, as of a file in memory.
func inodeOf(info os.FileInfo) uint64 {
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		return uint64(s.Ino)
	}
	return 0
}
