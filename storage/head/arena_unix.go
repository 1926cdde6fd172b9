//go:build unix

package head

import "golang.org/x/sys/unix"

// mapMemory gives zeroed anonymous memory, or nil if the system has none to give.
func mapMemory(size int) []byte {
	m, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return nil
	}
	return m
}

func unmapMemory(m []byte) { _ = unix.Munmap(m) } // fails only for memory that is not mapped
