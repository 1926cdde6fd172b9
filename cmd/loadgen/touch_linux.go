package main

import (
	"golang.org/x/sys/unix"

	"github.com/spillwaydb/spillway/protocols/memory"
)

// touchMemory allocates memory from the system and returns it, so that the server that starts next gets it. Some hosts
// reclaim memory that a virtual machine has left free for two seconds, and the next touch waits for the host: 14 µs
// for 4 KiB where this was written, ten to sixty times the machine's own cost. Servers must not be compared by that.
//
// It uses huge pages: once given back, they also serve small allocations, while small pages seldom serve huge ones.
func touchMemory(n int) {
	m, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return // then all servers wait for the host alike
	}
	memory.Huge(m)
	memory.Touch(m)
	_ = unix.Munmap(m)
}
