package processtest

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/spillwaydb/spillway/cmd/internal/pages"
)

// Scripts are the command lines in a page's blocks of the language sh.
func Scripts(t *testing.T, page string) []string {
	t.Helper()
	blocks, err := pages.Commands(page)
	if err != nil {
		t.Fatal(err)
	}
	return slices.Concat(blocks...)
}

// Shown is a command of a page, with its output on the page.
type Shown struct{ Command, Prints string }

// Consoles finds the commands in a page's blocks of the language console: lines that begin with "$ ". What stands below is
// their output.
func Consoles(t *testing.T, page string) (all []Shown) {
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
			all = append(all, Shown{Command: strings.TrimSpace(command)})
		case inside && len(all) == 0:
			t.Fatalf("%s: a block begins with %q, not with a command", page, line)
		case inside:
			all[len(all)-1].Prints += line
		}
	}
	return all
}
