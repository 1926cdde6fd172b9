package standalonetest

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
	"github.com/spillwaydb/spillway/cmd/internal/processtest"
)

// changing is what differs from run to run in the output of commands.
var changing = []struct {
	pattern *regexp.Regexp
	with    string
}{
	{regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z`), "TIME"},
	{regexp.MustCompile(`\d{8}T\d{6}\.\d{3}Z`), "BACKUP"},
	{regexp.MustCompile(`\[\d{10}(\.\d+)?,`), "[SECONDS,"},
	{regexp.MustCompile(`\b\d{19}\b`), "NANOSECONDS"},
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
			all := processtest.Consoles(t, page)
			if len(all) < least {
				t.Fatalf("the page has %d commands, and had %d", len(all), least)
			}
			runPage(t, all)
		})
	}
}

func runPage(t *testing.T, all []processtest.Shown) {
	p := processtest.New(t)
	admin, err := processes.FreeAddr()
	if err != nil {
		t.Fatal(err)
	}
	p.More = []string{"--admin.listen=" + admin}
	dir := t.TempDir()
	env := append(p.Env, "SPILLWAY_URL=http://"+p.Addr, "SPILLWAY_ADMIN_URL=http://"+admin, "PATH="+filepath.Dir(p.Bin)+":"+os.Getenv("PATH"), "NO_PROXY=127.0.0.1")
	for _, s := range all {
		if s.Command == "make run" {
			p.Start()
			want := strings.ReplaceAll(s.Prints, "./spillway-data", filepath.Join(p.Dir, "data"))
			for end := time.Now().Add(time.Minute); !strings.Contains(settled(p.Log.String()), settled(want)); time.Sleep(10 * time.Millisecond) { // it is ready before it says so
				if time.Now().After(end) {
					t.Fatalf("$ %s\n%s\nthe page says\n%s", s.Command, &p.Log, s.Prints)
				}
			}
			continue
		}
		c := exec.Command("bash", "-c", strings.ReplaceAll(s.Command, "127.0.0.1:8428", p.Addr))
		c.Dir, c.Env = dir, env
		out, err := c.Output()
		said := ""
		if e, ok := err.(*exec.ExitError); ok {
			said = fmt.Sprintf("%v: %s", err, e.Stderr)
		} else if err != nil {
			t.Fatal(err)
		}
		if got, want := settled(strings.ReplaceAll(string(out), p.Addr, "127.0.0.1:8428")), settled(s.Prints); err != nil || got != want {
			t.Errorf("$ %s\n%s%s\nthe page says\n%s", s.Command, out, said, s.Prints)
		}
	}
}
