package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/alecthomas/kong"

	"github.com/spillwaydb/spillway/cmd/internal/processtest"
	"github.com/spillwaydb/spillway/cmd/spillway/settings"
)

// TestCommandsOfTheFirstHour: write, look, ask, in the ways that docs/commands.md shows, with its exit codes.
func TestCommandsOfTheFirstHour(t *testing.T) {
	p := processtest.New(t)
	url := "--url=http://" + p.Addr
	if _, said, code := p.Run("health", url); code != 2 || !strings.Contains(said, "no answer") {
		t.Errorf("%d %s", code, said)
	}
	if out, said, code := p.Run("health", "-q", url); code != 2 || out+said != "" {
		t.Errorf("%d %s%s", code, out, said)
	}
	p.Start()
	wants := func(code int, want string, args ...string) {
		t.Helper()
		out, said := p.Must(code, args...)
		if !strings.Contains(out+said, want) {
			t.Errorf("spillway %s:\n%s%swant %q", strings.Join(args, " "), out, said, want)
		}
	}
	rows := filepath.Join(p.Dir, "rows")
	if err := os.WriteFile(rows, []byte("cpu,host=a usage=42 1790000000000000000\ncpu,host=b usage=4x\ncpu,host=c usage=1 1790000000000000000\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	wants(0, "200 OK: ", "health", url)
	wants(1, "unable to parse", "write", rows, url)
	wants(0, "", "write", "--format=prometheus", "--table=other", url, mustWrite(t, p.Dir, "up{job=\"x\"} 1 1790000000000\n"))
	wants(0, `cpu_usage{host="a"}  2026-09-21T14:13:20Z  42`, "query", "cpu_usage", "--time=1790000000", url)
	wants(0, "__name__,host,time,value\ncpu_usage,a,2026-09-21T14:13:20Z,42\ncpu_usage,c,2026-09-21T14:13:20Z,1\n", "query", "cpu_usage", "--time=1790000000", "--output=csv", url)
	wants(0, `"resultType":"matrix"`, "query", "sum(cpu_usage)", "--start=1790000000", "--end=1790000060", "--step=30s", "--output=json", url)
	wants(0, "{}      2026-09-21T14:13:50Z  43", "query", "sum(cpu_usage)", "--start=1790000000", "--end=1790000060", "--step=30s", url)
	wants(0, "up{job=\"x\"}", "query", "up", "--table=other", "--time=1790000000", url)
	wants(0, "2\n", "query", "1+1", url)
	wants(0, "{\n  ", "query", "sum(cpu_usage)", "--explain", url)
	wants(1, "parse error", "query", "sum(", url)
	wants(1, "--step go with --start", "query", "up", "--step=1m", url)
	wants(1, "is no time", "query", "up", "--time=yesterday", url)
	wants(0, "well: 1 servers, 2 tables, 2 partitions, 0 findings", "doctor", url)
	wants(0, `"status": "well"`, "doctor", "--output=json", url)
	wants(2, "no answer", "doctor", "--url=http://127.0.0.1:1")
	wants(0, "p1         2026-09-21T00:00:00Z  2026-09-22T00:00:00Z  all   live   local   2 ", "partition", "list", "default", url)
	wants(1, "no table", "partition", "list", "nowhere", url)
	wants(80, "unexpected argument", "nonsense")
}

func mustWrite(t *testing.T, dir, text string) string {
	t.Helper()
	f, err := os.CreateTemp(dir, "rows")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString(text); err != nil {
		t.Fatal(err)
	}
	return f.Name()
}

// TestVariablesOfCommandsStopNoProcess: a shell may have them set when a process is started from it.
func TestVariablesOfCommandsStopNoProcess(t *testing.T) {
	processtest.NoSettings(t)
	c := newCLI()
	k, err := kong.New(&c)
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	var walk func(*kong.Node)
	walk = func(n *kong.Node) {
		for _, f := range n.Flags {
			for _, name := range f.Envs {
				seen++
				t.Setenv(name, "x")
				if _, err := settings.Load(""); err != nil && strings.Contains(err.Error(), "means no setting") {
					t.Errorf("--%s of %s: %v", f.Name, n.Path(), err)
				}
				os.Unsetenv(name)
			}
		}
		for _, child := range n.Children {
			walk(child)
		}
	}
	walk(k.Model.Node)
	if seen < 10 {
		t.Errorf("only %d variables were seen", seen)
	}
}
