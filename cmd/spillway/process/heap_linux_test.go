package process

import (
	"bufio"
	"bytes"
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
	if !inFreshProcess(t) {
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

// TestAStartNeedsNoneOfTheMemoryThatItAdvises: where a collection came before, the advice cost 4 GiB, and seconds of a start.
func TestAStartNeedsNoneOfTheMemoryThatItAdvises(t *testing.T) {
	if !inFreshProcess(t) {
		return
	}
	const used, advised = 32 << 20, 1 << 30
	garbage := bytes.Repeat([]byte{1}, used)
	runtime.KeepAlive(garbage)
	runtime.GC() // leaves free pages that were written at the end of the heap
	adviseFresh(advised)
	if most := peakMemory(t); most > advised/2 {
		t.Errorf("the process held %d MiB after %d MiB were used and %d MiB advised", most>>20, used>>20, advised>>20)
	}
}

// peakMemory is the most bytes of memory that this process has held. Rusage would count what its parent held before.
func peakMemory(t *testing.T) (bytes int64) {
	t.Helper()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		if n, _ := fmt.Sscanf(line, "VmHWM: %d kB", &bytes); n == 1 {
			return bytes << 10
		}
	}
	t.Fatal("no VmHWM in /proc/self/status")
	return 0
}

const freshProcess = "fresh-process" // an argument of the test program

// inFreshProcess runs the test of its caller in a process of its own, and reports whether it is this one.
func inFreshProcess(t *testing.T) bool {
	t.Helper()
	if flag.Arg(0) == freshProcess {
		return true
	}
	out, err := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", freshProcess).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return false
}

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
