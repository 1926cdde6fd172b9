package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// built is the program, linked once for all tests: that lasts longer than most tests.
var built struct {
	once sync.Once
	dir  string
	err  error
}

// program returns the path of the program. The etcd of cmd/etcd lies beside it. Tests that need it are skipped in a short run: the
// race detector does not see into other processes.
func program(t testing.TB) string {
	t.Helper()
	if testing.Short() {
		t.Skip("starts processes")
	}
	built.once.Do(func() {
		if built.dir, built.err = os.MkdirTemp("", "spillway-test-"); built.err != nil {
			return
		}
		if out, err := exec.Command("go", "build", "-o", built.dir+string(filepath.Separator), ".", "../etcd").CombinedOutput(); err != nil {
			built.err = fmt.Errorf("%w: %s", err, out)
		}
	})
	if built.err != nil {
		t.Fatal(built.err)
	}
	return filepath.Join(built.dir, "spillway")
}

func TestMain(m *testing.M) {
	code := m.Run()
	if built.dir != "" {
		_ = os.RemoveAll(built.dir)
	}
	os.Exit(code)
}
