package memory_test

import (
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/spillwaydb/spillway/protocols/memory"
)

// Every page of fresh memory is there after Touch, and none was before.
func TestTouchMakesPagesPresent(t *testing.T) {
	const pages, page = 37, 4096
	if unix.Getpagesize() != page {
		t.Skip("pages are larger here")
	}
	m, err := unix.Mmap(-1, 0, pages*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Munmap(m) }()
	_ = unix.Madvise(m, unix.MADV_NOHUGEPAGE) // a kernel without huge pages needs no advice
	present := func() (n int) {
		var there [pages]byte
		if _, _, err := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(&m[0])), pages*page, uintptr(unsafe.Pointer(&there[0]))); err != 0 {
			t.Fatal(err)
		}
		for _, b := range there {
			n += int(b & 1)
		}
		return n
	}
	if n := present(); n != 0 {
		t.Fatalf("%d pages are there before anybody touched one", n)
	}
	memory.Touch(m)
	if n := present(); n != pages {
		t.Errorf("%d of %d pages are there", n, pages)
	}
}
