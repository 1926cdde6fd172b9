//go:build clients

package clienttest

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/cmd/internal/processes"
)

// process is a program under way. Its output goes to a file, and into the test's log when the test fails.
type process struct {
	t    *testing.T
	name string
	cmd  *exec.Cmd
	log  string // file
	done chan error
}

// run starts a program that ends with the test at the latest.
func run(t *testing.T, name, binary string, args ...string) *process {
	t.Helper()
	p := &process{t: t, name: name, cmd: exec.Command(binary, args...), done: make(chan error, 1)}
	// Our variables are settings to a spillway; those that are here are sizes of tests.
	p.cmd.Env = slices.DeleteFunc(os.Environ(), func(e string) bool { return strings.HasPrefix(e, "SPILLWAY_") })
	p.cmd.Env = append(p.cmd.Env, "SPILLWAY_SELF_SCRAPE_INTERVAL=0") // tests list the tables that clients made
	out, err := os.CreateTemp(t.TempDir(), name+"-*.log")
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close() // the program has its own handle
	p.log, p.cmd.Stdout, p.cmd.Stderr = out.Name(), out, out
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { p.done <- p.cmd.Wait() }()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		if t.Failed() {
			t.Logf("%s said last:\n%s", name, tail(p.said(), 4000))
		}
	})
	return p
}

// wait waits for the program's own end.
func (p *process) wait(timeout time.Duration) error {
	select {
	case err := <-p.done:
		p.done <- err
		return err
	case <-time.After(timeout):
		return fmt.Errorf("%s still runs after %v", p.name, timeout)
	}
}

// stop asks the program to end and expects it to do so in peace.
func (p *process) stop() {
	p.t.Helper()
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	if err := p.wait(time.Minute); err != nil {
		p.t.Fatalf("%s after SIGTERM: %v", p.name, err)
	}
}

// kill gives the program no time for a last word.
func (p *process) kill() {
	p.t.Helper()
	_ = p.cmd.Process.Kill()
	var killed *exec.ExitError
	if err := p.wait(time.Minute); !errors.As(err, &killed) {
		p.t.Fatalf("%s after SIGKILL: %v", p.name, err)
	}
}

func (p *process) said() string {
	text, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// lines gives the lines of the program's log that hold any of the words.
func (p *process) lines(words ...string) []string {
	var found []string
	for line := range strings.Lines(p.said()) {
		for _, w := range words {
			if strings.Contains(line, w) {
				found = append(found, strings.TrimSpace(line))
				break
			}
		}
	}
	return found
}

func tail(s string, n int) string { return s[max(0, len(s)-n):] }

// spillway is a server on its own data directory. It can be stopped, killed and started again at the same address.
type spillway struct {
	api
	t    *testing.T
	dir  string
	addr string
	args []string
	now  *process
}

func startSpillway(t *testing.T, args ...string) *spillway {
	t.Helper()
	addr := freeAddr(t)
	s := &spillway{t: t, api: api{t: t, name: "spillway", url: "http://" + addr}, dir: filepath.Join(t.TempDir(), "data"), addr: addr, args: args}
	s.start()
	return s
}

func (s *spillway) start() {
	s.t.Helper()
	args := append([]string{"standalone", "--data-dir", s.dir, "--http.listen", s.addr, "--admin.listen", ""}, s.args...)
	s.now = run(s.t, "spillway", spillwayBinary, args...)
	s.ready(s.now)
}

// of is the API of one table.
func (s *spillway) of(table string) api {
	return api{t: s.t, name: "spillway, table " + table, url: s.url + "/t/" + table}
}

// ready waits until a server answers.
func (a api) ready(p *process) {
	a.t.Helper()
	eventually(a.t, time.Minute, func() error {
		select {
		case err := <-p.done:
			p.done <- err
			a.t.Fatalf("%s ended at its start: %v\n%s", p.name, err, tail(p.said(), 4000))
		default:
		}
		resp, err := http.Get(a.url + "/-/ready")
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return errors.New(resp.Status)
		}
		return nil
	})
}

// freeAddr finds an address that is free now.
func freeAddr(t *testing.T) string {
	t.Helper()
	addr, err := processes.FreeAddr()
	if err != nil {
		t.Fatal(err)
	}
	return addr
}

// eventually repeats a check until it holds, and fails the test with the last reason why it did not.
func eventually(t *testing.T, timeout time.Duration, check func() error) {
	t.Helper()
	deadline := time.Now().Add(timeout)
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("not after %v either: %v", timeout, err)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// write puts a file into a directory of the test.
func write(t *testing.T, name, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// writeBeside puts a file into the directory of another.
func writeBeside(file, name, text string) error {
	return os.WriteFile(filepath.Join(filepath.Dir(file), name), []byte(text), 0o600)
}
