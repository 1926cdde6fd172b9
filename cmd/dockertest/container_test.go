//go:build docker

package dockertest

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// container is the state of a container, by the names of the engine.
type container struct {
	ID           string
	RestartCount int
	State        struct {
		Status    string // created, running, exited, …
		Pid       int    // as this process counts them: engine and tests share a namespace
		ExitCode  int
		OOMKilled bool
		StartedAt string
		Health    struct {
			Status string // starting, healthy, unhealthy
			Log    []struct{ Output string }
		}
	}
	Config struct {
		User        string
		Entrypoint  []string
		Healthcheck struct{ Test []string }
	}
	NetworkSettings struct {
		Networks map[string]struct{ IPAddress string }
	}
}

func inspect(t *testing.T, id string) (c container) {
	t.Helper()
	if err := json.Unmarshal([]byte(run(t, "", "docker", "inspect", "--format={{json .}}", id)), &c); err != nil {
		t.Fatal(err)
	}
	return c
}

// address is the container's on its network.
func (c container) address(t *testing.T) string {
	t.Helper()
	for _, n := range c.NetworkSettings.Networks {
		return n.IPAddress
	}
	t.Fatalf("container %s has no network", c.ID)
	return ""
}

// healthy waits until the engine's check of a container passes.
func healthy(t *testing.T, id string) container {
	t.Helper()
	var c container
	eventually(t, func() error {
		if c = inspect(t, id); c.State.Status == "exited" || c.State.Status == "dead" {
			logs, _ := try("", "docker", "logs", "--tail=50", id)
			t.Fatalf("container %s ended with %d:\n%s", id, c.State.ExitCode, logs)
		}
		if c.State.Health.Status != "healthy" {
			return fmt.Errorf("container %s is %s: %v", id, c.State.Health.Status, c.State.Health.Log)
		}
		return nil
	})
	return c
}

var users = regexp.MustCompile(`(?m)^(Uid|Gid|CapEff|NoNewPrivs):\s+(\S+)`)

// rights are those of a running process, by the names of the kernel: the user's and the group's number, and its capabilities.
func rights(t *testing.T, pid int) map[string]string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("/proc", fmt.Sprint(pid), "status"))
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for _, m := range users.FindAllStringSubmatch(string(text), -1) {
		all[m[1]] = m[2]
	}
	return all
}

var filesLimit = regexp.MustCompile(`(?m)^Max open files\s+(\S+)\s+(\S+)`)

// openFiles are the limits of open files of a running process: the one in force, and the one up to which it may raise that.
func openFiles(t *testing.T, pid int) (soft, hard string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("/proc", fmt.Sprint(pid), "limits"))
	if err != nil {
		t.Fatal(err)
	}
	m := filesLimit.FindSubmatch(text)
	if m == nil {
		t.Fatalf("process %d has no limit of open files:\n%s", pid, text)
	}
	return string(m[1]), string(m[2])
}

// start runs the image in the background until the end of the test, with the port for writes and queries published, and returns its name.
func start(t *testing.T, args ...string) string {
	t.Helper()
	name := strings.ToLower(t.Name())
	run(t, "", "docker", append([]string{"run", "--detach", "--name=" + name, "--publish=127.0.0.1:8428:8428"}, args...)...)
	t.Cleanup(func() {
		if t.Failed() {
			logs, _ := try("", "docker", "logs", "--tail=50", name)
			t.Logf("%s printed last:\n%s", name, logs)
		}
		run(t, "", "docker", "rm", "--force", "--volumes", name)
	})
	return name
}
