package process

import (
	"bufio"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"
	"unsafe"
)

// TestHeapGrowsInHugePages: after the advice the heap grows into memory that was advised. It runs in a separate process: where other tests have left a large heap, that
// is used first.
func TestHeapGrowsInHugePages(t *testing.T) {
	if _, err := os.Stat("/sys/kernel/mm/transparent_hugepage/enabled"); err != nil {
		t.Skip("this kernel has no transparent huge pages")
	}
	if flag.Arg(0) != freshProcess {
		out, err := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestHeapGrowsInHugePages$", freshProcess).CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return
	}
	adviseFresh(1 << 30)
	debug.FreeOSMemory()
	var grown [][]byte // first memory that was free before, then memory that was advised
	for advised := 0; advised < 20; {
		if len(grown) == 1<<10 {
			t.Fatalf("of %d MiB that the heap grew by, %d are advised to be of huge pages", len(grown), advised)
		}
		b := make([]byte, 1<<20)
		grown = append(grown, b)
		if strings.Contains(flagsAt(t, uintptr(unsafe.Pointer(unsafe.SliceData(b)))), " hg") {
			advised++
		}
	}
	runtime.KeepAlive(grown)
}

const freshProcess = "fresh-process" // an argument of the test program

// flagsAt is the line VmFlags of the mapping that holds an address.
func flagsAt(t *testing.T, at uintptr) string {
	t.Helper()
	f, err := os.Open("/proc/self/smaps")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	in := false
	for s := bufio.NewScanner(f); s.Scan(); {
		var from, to uintptr
		if n, _ := fmt.Sscanf(s.Text(), "%x-%x ", &from, &to); n == 2 {
			in = from <= at && at < to
		} else if in && strings.HasPrefix(s.Text(), "VmFlags:") {
			return s.Text()
		}
	}
	return ""
}
