package main

import (
	"bytes"
	"os"
	"runtime"
	"runtime/debug"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/spillwaydb/spillway/protocols/memory"
)

// hugeHeap asks for huge pages for the first so many bytes that the collector's heap will take, where the system gives
// them to those who ask. They come 512 small ones at a time, which makes a new series a quarter cheaper, and a look-up in
// a large table misses less; docs/proofs/speed.md has the figures.
//
// The advice belongs to addresses: they are taken as one piece that nobody writes to, and given back. What the heap then
// grows by lies in them.
func hugeHeap(n int64) {
	if mode, _ := os.ReadFile("/sys/kernel/mm/transparent_hugepage/enabled"); !bytes.Contains(mode, []byte("[madvise]")) {
		return // always: they come without asking
	}
	if strings.Contains(os.Getenv("GODEBUG"), "disablethp=1") {
		return // a user who wants none
	}
	// Whoever bounds addresses, and not memory, has no room for a reserve.
	if policy, err := os.ReadFile("/proc/sys/vm/overcommit_memory"); err != nil || bytes.HasPrefix(policy, []byte("2")) {
		return
	}
	var addresses unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_AS, &addresses); err != nil || addresses.Cur != unix.RLIM_INFINITY {
		return
	}
	adviseFresh(n)
	debug.FreeOSMemory()
}

// adviseFresh gives the advice for n bytes that the heap has not had yet. Nothing of them is alive after it.
//
//go:noinline
func adviseFresh(n int64) {
	defer func(rate int) { runtime.MemProfileRate = rate }(runtime.MemProfileRate)
	runtime.MemProfileRate = 0 // it is no allocation that a profile should show
	memory.Huge(make([]byte, n))
}
