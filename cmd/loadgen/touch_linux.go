package main

import (
	"golang.org/x/sys/unix"

	"github.com/spillwaydb/spillway/protocols/memory"
)

// touchMemory takes memory from the system and gives it back, so that the server that starts next gets it. Some hosts take
// what a virtual machine has left free for two seconds, and who touches it then waits for the host: 14 µs for 4 KiB where
// this was written, ten to sixty times what the machine itself needs. That is nothing to compare servers by.
//
// It takes huge pages: given back, they serve for small ones too, and small ones seldom for huge ones.
func touchMemory(n int) {
	m, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return // then the servers wait for the host, and all of them do
	}
	memory.Huge(m)
	memory.Touch(m)
	_ = unix.Munmap(m)
}
