//go:build docker

package dockertest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// project is a compose file in a copy of the repository. Its services end with the test.
type project struct {
	t    *testing.T
	dir  string
	file string // from dir
	runs []string
}

func newProject(t *testing.T, file string) *project {
	t.Helper()
	p := &project{t: t, dir: checkout(t), file: file}
	var services struct {
		Services map[string]struct{ Image string }
	}
	if err := json.Unmarshal([]byte(p.compose("config", "--format=json")), &services); err != nil {
		t.Fatal(err)
	}
	absent, err := os.ReadFile(filepath.Join(os.Getenv("DOCKER_WORK"), "ABSENT"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range slices.Sorted(maps.Keys(services.Services)) {
		if slices.Contains(strings.Fields(string(absent)), services.Services[name].Image) {
			t.Logf("%s: the service %s is LEFT OUT: its image %s cannot be had here", file, name, services.Services[name].Image)
			continue
		}
		p.runs = append(p.runs, name)
	}
	t.Cleanup(func() {
		if t.Failed() {
			logs, _ := try(p.dir, "docker", "compose", "--file="+file, "logs", "--tail=40")
			t.Logf("%s: the services printed last:\n%s", file, logs)
		}
		p.compose("down", "--volumes")
	})
	return p
}

// compose runs a command of docker compose, and returns its standard output.
func (p *project) compose(args ...string) string {
	p.t.Helper()
	return run(p.t, p.dir, "docker", append([]string{"compose", "--file=" + p.file}, args...)...)
}

// up starts the services in the background.
func (p *project) up() {
	p.t.Helper()
	p.compose(append([]string{"up", "--detach", "--quiet-pull"}, p.runs...)...)
}

// container finds the container of a service, running or not.
func (p *project) container(service string) container {
	p.t.Helper()
	id := strings.TrimSpace(p.compose("ps", "--all", "--quiet", service))
	if id == "" {
		p.t.Fatalf("%s: no container runs %s", p.file, service)
	}
	return inspect(p.t, id)
}

// healthy waits until the engine's checks of services pass.
func (p *project) healthy(services ...string) {
	p.t.Helper()
	for _, s := range services {
		var id string
		eventually(p.t, func() error {
			if id = strings.TrimSpace(p.compose("ps", "--all", "--quiet", s)); id == "" {
				return fmt.Errorf("%s: no container for %s yet", p.file, s)
			}
			return nil
		})
		healthy(p.t, id)
	}
}

// foreground is a command that runs until ctrl-C.
type foreground struct {
	t    *testing.T
	line string
	cmd  *exec.Cmd
	done chan struct{}
	err  error // good once done is closed

	mu  sync.Mutex
	out bytes.Buffer // guarded by mu
}

func (f *foreground) Write(b []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.out.Write(b)
}

func (f *foreground) String() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.out.String()
}

// foreground starts a line of a page that ends with `up` and options. Services without an image are left out: the others are named.
func (p *project) foreground(line string) *foreground {
	p.t.Helper()
	var all map[string]any
	if err := json.Unmarshal([]byte(p.compose("config", "--format=json")), &all); err != nil {
		p.t.Fatal(err)
	}
	if services, ok := all["services"].(map[string]any); !ok || len(services) > len(p.runs) {
		line += " " + strings.Join(p.runs, " ")
	}
	f := &foreground{t: p.t, line: line, cmd: exec.Command("bash", "-c", "exec "+line), done: make(chan struct{})}
	f.cmd.Dir, f.cmd.Stdout, f.cmd.Stderr = p.dir, f, f
	f.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // so that docker and its plug-in are killed together
	if err := f.cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	go func() {
		f.err = f.cmd.Wait()
		close(f.done)
	}()
	p.t.Cleanup(func() {
		_ = syscall.Kill(-f.cmd.Process.Pid, syscall.SIGKILL)
		<-f.done
		if p.t.Failed() {
			p.t.Logf("%s printed last:\n%s", f.line, tail(f.String(), 6000))
		}
	})
	return f
}

// runs returns an error once the command has ended.
func (f *foreground) runs() error {
	select {
	case <-f.done:
		return fmt.Errorf("%s: %v\n%s", f.line, f.err, tail(f.String(), 6000))
	default:
		return nil
	}
}

// end stops the services from another terminal; the command ends with the last of them. Ctrl-C without a terminal is no test: docker passes
// the signal on to compose, which then has it twice, and kills.
func (f *foreground) end(p *project) {
	f.t.Helper()
	p.compose("stop")
	<-f.done
}
