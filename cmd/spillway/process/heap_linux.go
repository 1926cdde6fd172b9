package process

import (
	"bytes"
	"os"
	"runtime"
	"runtime/debug"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/spillwaydb/spillway/protocols/memory"
)

// hugeHeap asks for huge pages for the first n bytes of the collector's heap, where the system gives them on request.
// They come 512 small ones at a time, which makes a new series a quarter cheaper, and a look-up in a large table misses
// less; docs/proofs/speed.md has the figures.
//
// The advice belongs to addresses: they are reserved as one piece, never written to, and released. The heap then grows
// into them.
func hugeHeap(n int64) {
	if mode, _ := os.ReadFile("/sys/kernel/mm/transparent_hugepage/enabled"); !bytes.Contains(mode, []byte("[madvise]")) {
		return // always: they come without asking
	}
	if strings.Contains(os.Getenv("GODEBUG"), "disablethp=1") {
		return // the user switched them off
	}
	// Where addresses are bounded, and not memory, there is no room for a reserve.
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

// adviseFresh gives the advice for the n bytes that the heap uses next. They are garbage when it returns.
//
//go:noinline
func adviseFresh(n int64) {
	defer func(rate int) { runtime.MemProfileRate = rate }(runtime.MemProfileRate)
	runtime.MemProfileRate = 0 // a profile should not show this allocation
	debug.FreeOSMemory()
	pieces := make([][]byte, 0, n/advisedPiece+1)
	for ; n > 0; n -= advisedPiece {
		pieces = append(pieces, untouched(min(n, advisedPiece)))
		memory.Huge(pieces[len(pieces)-1])
	}
	runtime.KeepAlive(pieces) // each lies behind the one before
}

// advisedPiece bounds how much Go clears, of one allocation: all, where one of its pages was in use before and the system does not have it back (untouched). Behind the first
// pieces no page was.
const advisedPiece = 32 << 20
