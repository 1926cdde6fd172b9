package processtest

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// built is the program, linked once for the tests of a package; for those of the next it is linked already.
var built struct {
	once sync.Once
	dir  string
	err  error
}

// Program returns the path of the program. The etcd of cmd/etcd lies beside it. Tests that need it are skipped in a short run: the
// race detector does not see into other processes.
func Program(t testing.TB) string {
	t.Helper()
	if testing.Short() {
		t.Skip("starts processes")
	}
	built.once.Do(func() { built.dir, built.err = buildProgram() })
	if built.err != nil {
		t.Fatal(built.err)
	}
	return filepath.Join(built.dir, "spillway")
}

// buildProgram links spillway and etcd into .cache/test of the repository, where they stay: the go command links a program that has changed,
// and no other. Packages are tested at the same time, so one of them builds and the others wait.
func buildProgram() (string, error) {
	mod, err := exec.Command("go", "env", "GOMOD").Output()
	if err != nil {
		return "", err
	}
	root := filepath.Dir(strings.TrimSpace(string(mod)))
	if err := watchSources(root); err != nil {
		return "", err
	}
	dir := filepath.Join(root, ".cache", "test")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	lock, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return "", err
	}
	defer lock.Close() // releases it
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return "", err
	}
	build := exec.Command("go", "build", "-o", dir+string(filepath.Separator), "./cmd/spillway", "./cmd/etcd")
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	return dir, nil
}

// watchSources reads every directory with sources of the program. The go command repeats a test, in place of showing its last result, when
// a file has changed in a directory that the test read; it does not see which program the test starts.
func watchSources(root string) error {
	for _, part := range []string{"cmd", "gateway", "metadata", "presplit", "protocols", "smear", "storage"} {
		err := filepath.WalkDir(filepath.Join(root, part), func(_ string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() && (d.Name() == "node_modules" || d.Name() == "testdata") {
				return filepath.SkipDir
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}
