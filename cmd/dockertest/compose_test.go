//go:build docker

package dockertest

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/spillwaydb/spillway/cmd/internal/pages"
)

const composeFile = "docker/compose.yaml"

// row writes a line, query reads it back at any time of this day.
const (
	row   = "cpu,host=a usage=42"
	query = "last_over_time(cpu_usage[1d])"
)

// composed is compose.yaml with its secrets, and the ways in that these give.
type composed struct {
	*project
	stranger, writer, reader api
}

func newComposed(t *testing.T) *composed {
	t.Helper()
	return &composed{project: newProject(t, composeFile), stranger: api{url: "http://127.0.0.1:8428"}}
}

// secrets runs docker/secrets.sh, or the line of a page that does.
func (c *composed) secrets(line string) {
	c.t.Helper()
	run(c.t, c.dir, "bash", "-c", line)
	token := func(name string) api {
		text, err := os.ReadFile(filepath.Join(c.dir, "docker/secrets", name))
		check(c.t, err)
		return api{url: c.stranger.url, token: string(text)}
	}
	c.writer, c.reader = token("telegraf_token"), token("grafana_token")
}

// TestComposeRunsAsTheREADMESays runs the README's lines for Docker, as a new user would in a clone, and then lives with the services: stop,
// up, down, up again, a process that is killed.
func TestComposeRunsAsTheREADMESays(t *testing.T) {
	blocks, err := pages.Commands(filepath.Join("..", "..", "README.md"))
	check(t, err)
	var lines []string
	for _, b := range blocks {
		if strings.Contains(b[0], "docker/") {
			lines = append(lines, b...)
		}
	}
	if len(lines) != 4 || !strings.HasPrefix(lines[0], "docker/secrets.sh") || !strings.HasSuffix(lines[1], " up --build") ||
		!strings.HasPrefix(lines[2], "curl ") || !strings.HasSuffix(lines[2], "'"+row+"'") || !strings.HasSuffix(lines[3], " down") {
		t.Fatalf("the README's lines for Docker are %q", lines)
	}
	c := newComposed(t)
	c.secrets(lines[0])
	up := c.foreground(lines[1])
	eventually(t, func() error {
		if err := up.runs(); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(c.compose("ps", "--format={{.Service}}"), "spillway") {
			return fmt.Errorf("spillway is not started yet")
		}
		return nil
	})
	c.healthy("spillway")

	if status, answer := c.stranger.do("POST", "/write?db=default", row); status != 401 {
		t.Errorf("a write without a token: %d %s, want 401: the secrets are not used", status, answer)
	}
	run(t, c.dir, "bash", "-c", lines[2])
	check(t, c.reader.has(query, "42"))
	if r := rights(t, c.container("spillway").State.Pid); r["Uid"] != "65532" {
		t.Errorf("it has the rights %v", r)
	}
	c.company()

	up.end(c.project)
	c.stopped("after stop")
	c.up()
	c.healthy("spillway")
	check(t, c.reader.has(query, "42"))

	before := c.container("spillway")
	c.up() // once more: nothing changes
	if now := c.container("spillway"); now.ID != before.ID || now.State.StartedAt != before.State.StartedAt {
		t.Errorf("a second up started it again: %+v, then %+v", before.State, now.State)
	}

	c.compose("stop")
	c.stopped("after stop")
	run(t, c.dir, "bash", "-c", lines[3])
	c.up()
	c.healthy("spillway")
	check(t, c.reader.has(query, "42"))

	c.killed("spillway")
	check(t, c.reader.has(query, "42"))
}

// company looks at the services around: Prometheus scrapes and writes, Telegraf writes.
func (c *composed) company() {
	c.t.Helper()
	for _, service := range c.runs {
		switch service {
		case "prometheus":
			p := api{url: "http://" + c.container(service).address(c.t) + ":9090"}
			eventually(c.t, func() error { return p.watched(2) })
			for _, job := range []string{"spillway", "prometheus"} {
				eventually(c.t, func() error { return c.reader.has(fmt.Sprintf("up{job=%q}", job), "1") })
			}
			check(c.t, p.has("sum(prometheus_remote_storage_samples_failed_total)", "0"))
		case "telegraf":
			eventually(c.t, func() error {
				if got, err := c.reader.values(`cpu_usage_idle{cpu="cpu-total"}`); err != nil || len(got) != 1 {
					return fmt.Errorf("Telegraf's cpu_usage_idle: %q %v", got, err)
				}
				return nil
			})
		}
	}
}

// stopped: the process ended by itself, within the grace that the file gives it. On a machine that gives it no time it ends with 1 when its
// own time is over, and says so; no engine has to kill it (137).
func (p *project) stopped(when string) {
	p.t.Helper()
	for _, s := range p.runs {
		c := p.container(s)
		if ours := c.Config.User == "nonroot" && len(c.Config.Entrypoint) == 1 && c.Config.Entrypoint[0] == "/spillway"; ours && (c.State.Status != "exited" || c.State.ExitCode != 0) {
			logs, _ := try("", "docker", "logs", "--tail=20", c.ID)
			if c.State.Status == "exited" && c.State.ExitCode == 1 && strings.Contains(logs, "not everything could be closed within") {
				p.t.Logf("%s: %s had no time to close everything:\n%s", when, s, logs)
				continue
			}
			p.t.Errorf("%s: %s is %s, with exit code %d (killed for its memory: %t):\n%s", when, s, c.State.Status, c.State.ExitCode, c.State.OOMKilled, logs)
		}
	}
}

// killed kills the process of a service, as the kernel does when memory lacks, and waits until it serves again.
func (p *project) killed(service string) {
	p.t.Helper()
	before := p.container(service)
	check(p.t, syscall.Kill(before.State.Pid, syscall.SIGKILL))
	eventually(p.t, func() error {
		if now := p.container(service); now.RestartCount != before.RestartCount+1 || now.State.Status != "running" {
			return fmt.Errorf("%s was killed: it is %s after %d restarts", service, now.State.Status, now.RestartCount)
		}
		return nil
	})
	p.healthy(service)
}

// TestComposeSaysWhatLacks: without secrets, or with a port in use, compose's error names the file or the port.
func TestComposeSaysWhatLacks(t *testing.T) {
	c := newComposed(t)
	out, err := try(c.dir, "docker", "compose", "--file="+c.file, "up", "--build", "--detach", "spillway")
	if err == nil || !strings.Contains(out, "secrets/tokens.yml") {
		t.Errorf("without secrets: %v\n%s", err, out)
	}
	t.Logf("without secrets it prints:\n%s", tail(out, 500))
	c.compose("down")
	c.secrets("docker/secrets.sh")

	l, err := net.Listen("tcp", "127.0.0.1:8428")
	check(t, err)
	out, err = try(c.dir, "docker", "compose", "--file="+c.file, "up", "--detach", "spillway")
	if err == nil || !strings.Contains(out, "8428") {
		t.Errorf("with a port in use: %v\n%s", err, out)
	}
	t.Logf("with a port in use it prints:\n%s", tail(out, 500))
	check(t, l.Close())
	c.compose("up", "--detach", "spillway")
	c.healthy("spillway")
	check(t, c.writer.write(row))
}
