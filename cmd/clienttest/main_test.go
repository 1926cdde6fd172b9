//go:build clients

package clienttest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// Set by TestMain, constant afterwards.
var (
	spillwayBinary string
	// missing says why a client is not there; its tests are skipped with these words.
	missing = map[string]string{}
)

// TestMain builds the spillway of this tree, and the clients where they are not yet.
func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "clienttest-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	spillwayBinary = filepath.Join(dir, "spillway")
	code := 1
	if err := told("go", "build", "-o", spillwayBinary, "../spillway"); err != nil {
		fmt.Fprintln(os.Stderr, "clienttest: spillway does not build:", err)
	} else {
		for _, name := range []string{"telegraf", "prometheus"} {
			if err := told("./install.sh", name); err != nil {
				missing[name] = fmt.Sprintf("there is no %s: install.sh: %v (what it said stands above)", name, err)
			}
		}
		code = m.Run()
	}
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// told runs a command whose words people may read.
func told(name string, args ...string) error {
	cmd := exec.Command(name, args...)
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	return cmd.Run()
}

// client finds a client's binary, or skips the test.
func client(t *testing.T, name string) string {
	t.Helper()
	if why, ok := missing[name]; ok {
		t.Skip(why)
	}
	dir := os.Getenv("CLIENTS_DIR")
	if dir == "" {
		dir = filepath.Join("..", "..", ".cache", "bin")
	}
	binary, err := filepath.Abs(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return binary
}
