//go:build clients

package clienttest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// spillwayBinary is set by TestMain, constant afterwards.
var spillwayBinary string

// TestMain builds the spillway of this tree.
func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "clienttest-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	spillwayBinary = filepath.Join(dir, "spillway")
	code := 1
	if err := runInstaller("go", "build", "-o", spillwayBinary, "../spillway"); err != nil {
		fmt.Fprintln(os.Stderr, "clienttest: spillway does not build:", err)
	} else {
		code = m.Run()
	}
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// runInstaller runs a command with its output on stderr.
func runInstaller(name string, args ...string) error {
	cmd := exec.Command(name, args...)
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	return cmd.Run()
}

// installers build the clients of a test, when the first test needs them.
var installers = map[string]func() error{
	"telegraf":   sync.OnceValue(func() error { return runInstaller("./install.sh", "telegraf") }),
	"prometheus": sync.OnceValue(func() error { return runInstaller("./install.sh", "prometheus") }),
	"python":     sync.OnceValue(func() error { return runInstaller("./install.sh", "python") }),
	"npm":        sync.OnceValue(func() error { return runInstaller("./install.sh", "npm") }),
	"kafka":      sync.OnceValue(func() error { return runInstaller("./install.sh", "kafka") }),
}

// install installs one client, or skips the test.
func install(t *testing.T, name string) {
	t.Helper()
	if err := installers[name](); err != nil {
		t.Skipf("there is no %s: install.sh: %v (what it said stands above)", name, err)
	}
}

// client finds a client's binary, or the folder of a language's libraries, or skips the test.
func client(t *testing.T, name string) string {
	t.Helper()
	install(t, name)
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
