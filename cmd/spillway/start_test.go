package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/cmd/internal/processes"
)

// shown is a command of a page, with its output on the page.
type shown struct{ command, prints string }

// consoles finds the commands in a page's blocks of the language console: lines that begin with "$ ". What stands below is
// what they print.
func consoles(t *testing.T, page string) (all []shown) {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	inside := false
	for line := range strings.Lines(string(text)) {
		command, isCommand := strings.CutPrefix(line, "$ ")
		switch {
		case strings.HasPrefix(line, "```"):
			inside = strings.TrimSpace(line) == "```console"
		case inside && isCommand:
			all = append(all, shown{command: strings.TrimSpace(command)})
		case inside && len(all) == 0:
			t.Fatalf("%s: a block begins with %q, not with a command", page, line)
		case inside:
			all[len(all)-1].prints += line
		}
	}
	return all
}

// changing is what differs from run to run in the output of commands.
var changing = []struct {
	pattern *regexp.Regexp
	with    string
}{
	{regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z`), "TIME"},
	{regexp.MustCompile(`\d{8}T\d{6}\.\d{3}Z`), "BACKUP"},
	{regexp.MustCompile(`\[\d{10}(\.\d+)?,`), "[SECONDS,"},
	{regexp.MustCompile(`spwt_[\w-]+`), "TOKEN"},
	{regexp.MustCompile(`\b[0-9a-f]{64}\b`), "HASH"},
	{regexp.MustCompile(`\b\d+(\.\d+)? (B|KiB|MiB)\b`), "SIZE"},
	{regexp.MustCompile(`\b\d+ (files|partitions|segments)\b`), "N $1"}, // rows of two days, around midnight
	{regexp.MustCompile(`Spillway \S+ is ready;`), "Spillway VERSION is ready;"},
	{regexp.MustCompile(`in \S*/(backups|restored)\b`), "in DIR/$1"},
	{regexp.MustCompile(`to \S*/(backups|restored)\b`), "to DIR/$1"},
	{regexp.MustCompile(` +`), " "}, // columns are as wide as what changes
}

func settled(text string) string {
	for _, c := range changing {
		text = c.pattern.ReplaceAllString(text, c.with)
	}
	return strings.TrimSpace(text)
}

// TestTheFirstHourIsAsItsPageSays runs every command of docs/start.md and of the README's beginning, and compares what it
// prints. The process runs on other ports; everything else is as on the pages.
func TestTheFirstHourIsAsItsPageSays(t *testing.T) {
	for _, tool := range []string{"bash", "curl"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("the pages use %s: %v", tool, err)
		}
	}
	for page, least := range map[string]int{"../../docs/start.md": 18, "../../README.md": 3} {
		t.Run(filepath.Base(page), func(t *testing.T) {
			all := consoles(t, page)
			if len(all) < least {
				t.Fatalf("the page has %d commands, and had %d", len(all), least)
			}
			runPage(t, all)
		})
	}
}

func runPage(t *testing.T, all []shown) {
	p := newProcess(t)
	admin, err := processes.FreeAddr()
	if err != nil {
		t.Fatal(err)
	}
	p.more = []string{"--admin.listen=" + admin}
	dir := t.TempDir()
	env := append(p.env, "SPILLWAY_URL=http://"+p.addr, "SPILLWAY_ADMIN_URL=http://"+admin, "PATH="+filepath.Dir(p.bin)+":"+os.Getenv("PATH"), "NO_PROXY=127.0.0.1")
	for _, s := range all {
		if s.command == "make run" {
			p.start()
			want := strings.ReplaceAll(s.prints, "./spillway-data", filepath.Join(p.dir, "data"))
			for end := time.Now().Add(time.Minute); !strings.Contains(settled(p.log.String()), settled(want)); time.Sleep(10 * time.Millisecond) { // it is ready before it says so
				if time.Now().After(end) {
					t.Fatalf("$ %s\n%s\nthe page says\n%s", s.command, &p.log, s.prints)
				}
			}
			continue
		}
		c := exec.Command("bash", "-c", strings.ReplaceAll(s.command, "127.0.0.1:8428", p.addr))
		c.Dir, c.Env = dir, env
		out, err := c.Output()
		said := ""
		if e, ok := err.(*exec.ExitError); ok {
			said = fmt.Sprintf("%v: %s", err, e.Stderr)
		} else if err != nil {
			t.Fatal(err)
		}
		if got, want := settled(strings.ReplaceAll(string(out), p.addr, "127.0.0.1:8428")), settled(s.prints); err != nil || got != want {
			t.Errorf("$ %s\n%s%s\nthe page says\n%s", s.command, out, said, s.prints)
		}
	}
}
