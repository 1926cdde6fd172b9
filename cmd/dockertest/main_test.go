//go:build docker

package dockertest

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// image is the one that compose files build and run when no variable names another.
const image = "spillway:local"

// TestMain refuses to run without engine.sh, whose engine lies in DOCKER_WORK: the tests would use, and clean up, the machine's own Docker.
func TestMain(m *testing.M) {
	if work := os.Getenv("DOCKER_WORK"); work == "" || os.Getenv("DOCKER_HOST") != "unix://"+work+"/run/docker.sock" {
		fmt.Fprintln(os.Stderr, "dockertest: run make test-docker: these tests need an engine of their own")
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// checkout copies the files of the repository that a clone would have, changes that are not committed included, and returns the directory.
func checkout(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	list := exec.Command("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--deduplicate")
	list.Dir = filepath.Join("..", "..")
	names, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	for name := range strings.SplitSeq(strings.TrimRight(string(names), "\x00"), "\x00") {
		from := filepath.Join("..", "..", name)
		info, err := os.Stat(from)
		if os.IsNotExist(err) {
			continue // deleted, and not committed yet
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		to := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(to, text, info.Mode().Perm()); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// commandMax bounds a command: an engine or a compose that hangs fails the test with its output. Builds on a busy machine need minutes.
const commandMax = 15 * time.Minute

// bounded runs a command in a directory, with its output into out and its errors into said. A command that does not end within commandMax is killed.
func bounded(out, said *bytes.Buffer, dir, name string, args ...string) error {
	ctx, done := context.WithTimeoutCause(context.Background(), commandMax, fmt.Errorf("it did not end within %s", commandMax))
	defer done()
	c := exec.CommandContext(ctx, name, args...)
	c.Dir, c.WaitDelay, c.Stdout, c.Stderr = dir, time.Second, out, said
	err := c.Run()
	if cause := context.Cause(ctx); err != nil && cause != nil {
		err = fmt.Errorf("%w: %w", cause, err) // by itself it says that the command was killed
	}
	return err
}

// try runs a command in a directory. out is all that it printed.
func try(dir, name string, args ...string) (out string, err error) {
	var text bytes.Buffer
	err = bounded(&text, &text, dir, name, args...)
	return text.String(), err
}

// run runs a command that must not fail, and returns its standard output.
func run(t *testing.T, dir, name string, args ...string) string {
	t.Helper()
	var out, said bytes.Buffer
	if err := bounded(&out, &said, dir, name, args...); err != nil {
		t.Fatalf("%s %s: %v\n%s%s", name, strings.Join(args, " "), err, &out, tail(said.String(), 8000))
	}
	return out.String()
}

func tail(s string, n int) string { return s[max(0, len(s)-n):] }

// eventually repeats a check until it holds. The bound is for a test that would hang: no check is right because it was quick. Some wait for an
// image that is built meanwhile.
func eventually(t *testing.T, check func() error) {
	t.Helper()
	for end := time.Now().Add(commandMax); ; time.Sleep(200 * time.Millisecond) {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("not after %s either: %v", commandMax, err)
		}
	}
}
