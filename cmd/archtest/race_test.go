package archtest

import (
	"go/ast"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestWhatIsNotRacedHasOneGoroutine: a package that `make test` leaves out of the pass of the race detector starts no goroutine and
// uses no lock, its tests included.
func TestWhatIsNotRacedHasOneGoroutine(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	line := regexp.MustCompile(`(?m)^UNRACED := (.*)$`).FindSubmatch(text)
	if line == nil {
		t.Fatal("the Makefile has no UNRACED")
	}
	left := map[string]bool{}
	for _, path := range strings.Fields(string(line[1])) {
		left[path] = true
	}
	for _, p := range repository(t) {
		if !left[p.path] {
			continue
		}
		delete(left, p.path)
		for _, why := range concurrency(p) {
			t.Error(why)
		}
	}
	for path := range left {
		t.Errorf("the Makefile leaves out %s, which is no package", path)
	}
}

// concurrency lists the uses of goroutines, locks and channels.
func concurrency(p pkg) (out []string) {
	for _, f := range p.files {
		for _, spec := range f.tree.Imports {
			if path := strings.Trim(spec.Path.Value, `"`); matchAny("sync/... golang.org/x/sync/... github.com/oklog/run net/... os/exec", path) {
				out = append(out, p.path+"/"+f.name+" imports "+path)
			}
		}
		ast.Inspect(f.tree, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.GoStmt:
				out = append(out, p.fset.Position(n.Pos()).String()+" starts a goroutine")
			case *ast.CallExpr:
				if s, ok := n.Fun.(*ast.SelectorExpr); ok && s.Sel.Name == "Parallel" {
					out = append(out, p.fset.Position(n.Pos()).String()+" runs in parallel")
				}
			}
			return true
		})
	}
	return out
}

func TestConcurrencyIsSeen(t *testing.T) {
	f := func(text string, want int) {
		t.Helper()
		p, err := parse("a", map[string]string{"x_test.go": "package a\n" + text})
		if err != nil {
			t.Fatal(err)
		}
		if got := concurrency(p); len(got) != want {
			t.Errorf("%s: %q", text, got)
		}
	}
	f(`import "sync/atomic"`, 1)
	f(`import "strings"`, 0)
	f("func f() { go f() }", 1)
	f("func TestX(t *testing.T) { t.Parallel() }", 1)
	f("func f() { f() }", 0)
}
