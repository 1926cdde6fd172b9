package archtest

import (
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestTheTableOfFoldersIsComplete: every package stands in the table of docs/design.md by its name, except runners, tests' helpers and stores
// in memory, which stand by the folder that they lie in.
func TestTheTableOfFoldersIsComplete(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "docs", "design.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, table, ok := strings.Cut(string(text), "\n## Folders\n")
	if !ok {
		t.Fatal("docs/design.md has no table of folders")
	}
	named := map[string]bool{}
	row := regexp.MustCompile(`(?m)^\| ([a-z0-9/ ·]+) \|`)
	for _, m := range row.FindAllStringSubmatch(table, -1) {
		for _, name := range strings.Split(m[1], " · ") {
			named[path.Base(name)] = true
		}
	}
	for _, p := range repository(t) {
		base := path.Base(p.path)
		within := strings.HasPrefix(p.path, "cmd/internal/") || matchAny("docs/... docker/... metadata/coord/...", p.path)
		if within || base == "runner" || base == "mem" || strings.HasSuffix(base, "test") && p.path != "cmd/"+base || named[base] {
			continue
		}
		t.Errorf("%s is not in the table of folders of docs/design.md", p.path)
	}
}
