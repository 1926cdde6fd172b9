package memory

import (
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Huge asks for huge pages for the memory of b, where the system leaves that to the program. The content of b stays as
// it is, and nothing changes where the system has none.
func Huge(b []byte) {
	// The system accepts whole pages only.
	skip := int(-uintptr(unsafe.Pointer(unsafe.SliceData(b))) & uintptr(os.Getpagesize()-1))
	if skip < len(b) {
		_ = unix.Madvise(b[skip:], unix.MADV_HUGEPAGE)
	}
}
