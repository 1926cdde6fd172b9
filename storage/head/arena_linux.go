package head

import "golang.org/x/sys/unix"

// adviseHuge asks for huge pages, where the system leaves that to the program.
func adviseHuge(m []byte) { _ = unix.Madvise(m, unix.MADV_HUGEPAGE) } // a kernel without them has small ones
