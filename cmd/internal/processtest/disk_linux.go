package processtest

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// SmallDisk is a separate file system for a process's data: a tmpfs in a mount namespace that a helper keeps alive, so
// that it outlives the process.
type SmallDisk struct {
	Dir  string   // as seen by the test
	In   []string // a command that runs another, with the disk in its place
	fill string
}

// smallDiskFiles is how many files and directories a small disk has room for.
const smallDiskFiles = 16384

// NewSmallDisk mounts one of so many bytes at dir. The test is skipped where there are no mount namespaces.
func NewSmallDisk(t *testing.T, dir string, bytes int) *SmallDisk {
	holder := exec.Command("unshare", "-Urm", "sh", "-c", fmt.Sprintf("mount -t tmpfs -o size=%d,nr_inodes=%d tmpfs %s && echo ready && exec sleep 7200", bytes, smallDiskFiles, dir))
	out, err := holder.StdoutPipe()
	if err == nil {
		err = holder.Start()
	}
	if err != nil {
		t.Skipf("no mount namespaces: %v", err)
	}
	t.Cleanup(func() {
		_ = holder.Process.Kill()
		_ = holder.Wait()
	})
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "ready\n" {
		t.Skip("no mount namespaces here")
	}
	pid := strconv.Itoa(holder.Process.Pid)
	seen := filepath.Join("/proc", pid, "root", dir)
	return &SmallDisk{Dir: seen, fill: filepath.Join(seen, "fill"), In: []string{"nsenter", "-t", pid, "-U", "-m", "--preserve-credentials"}}
}

// Use allocates space until left bytes are free.
func (d *SmallDisk) Use(t *testing.T, left uint64) {
	t.Helper()
	free := FreeBytes(t, d.Dir)
	if free <= left || free > 1<<30 {
		t.Fatalf("%d bytes are free; is this the small disk?", free)
	}
	if err := os.WriteFile(d.fill, make([]byte, free-left), 0o600); err != nil {
		t.Fatal(err)
	}
}

// FillUp allocates the last byte.
func (d *SmallDisk) FillUp(t *testing.T) {
	t.Helper()
	for size := uint64(4 << 20); size > 0; size /= 2 {
		f, err := os.OpenFile(d.fill, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		for err == nil {
			_, err = f.Write(make([]byte, size))
		}
		_ = f.Close()
	}
	if free := FreeBytes(t, d.Dir); free != 0 {
		t.Fatalf("%d bytes are free", free)
	}
}

// UseFiles makes empty files until there is room for left more.
func (d *SmallDisk) UseFiles(t *testing.T, left uint64) {
	t.Helper()
	if err := os.MkdirAll(d.fill, 0o700); err != nil {
		t.Fatal(err)
	}
	var st syscall.Statfs_t
	if err := syscall.Statfs(d.Dir, &st); err != nil || st.Ffree <= left || st.Files > smallDiskFiles {
		t.Fatalf("there is room for %d files of %d (%v); is this the small disk?", st.Ffree, st.Files, err)
	}
	for i := range st.Ffree - left {
		if err := os.WriteFile(filepath.Join(d.fill, strconv.FormatUint(i, 10)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// Clear frees what Use, FillUp or UseFiles used.
func (d *SmallDisk) Clear(t *testing.T) {
	if err := os.RemoveAll(d.fill); err != nil {
		t.Fatal(err)
	}
}

// FreeBytes is the free space of the file system of a directory.
func FreeBytes(t *testing.T, dir string) uint64 {
	var st syscall.Statfs_t
	if err := syscall.Statfs(dir, &st); err != nil {
		t.Fatal(err)
	}
	return st.Bavail * uint64(st.Bsize)
}

// TreeOf lists the files of a store with their sizes, except the locks and the file that fills the disk.
func TreeOf(t *testing.T, dir string) string {
	var b strings.Builder
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() && d.Name() != "LOCK" && d.Name() != "fill" {
			st, serr := d.Info()
			if serr != nil {
				return serr
			}
			fmt.Fprintln(&b, path, st.Size(), st.ModTime())
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}
