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
	for _, p := range fromMakefile(t, "UNRACED") {
		for _, why := range concurrency(p) {
			t.Error(why)
		}
	}
}

// TestWhatIsRacedInPartStartsNoGoroutine: of some packages `make test` runs only those tests under the race detector whose file starts a
// goroutine. So the package starts none itself, nor do helpers of its tests that lie in one file and are called from another.
func TestWhatIsRacedInPartStartsNoGoroutine(t *testing.T) {
	for _, p := range fromMakefile(t, "RACED_IN_PART") {
		for _, why := range racedTooLittle(p) {
			t.Error(why)
		}
	}
}

// fromMakefile is the packages of a list in the Makefile.
func fromMakefile(t *testing.T, list string) (ps []pkg) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	value := regexp.MustCompile(`(?m)^` + list + ` := ((?:.*\\\n)*.*)$`).FindSubmatch(text)
	if value == nil {
		t.Fatalf("the Makefile has no %s", list)
	}
	left := map[string]bool{}
	for _, path := range strings.Fields(strings.ReplaceAll(string(value[1]), "\\\n", " ")) {
		left[path] = true
	}
	for _, p := range repository(t) {
		if left[p.path] {
			delete(left, p.path)
			ps = append(ps, p)
		}
	}
	for path := range left {
		t.Errorf("%s of the Makefile has %s, which is no package", list, path)
	}
	return ps
}

// racedTooLittle lists the goroutines of a package that no test in the same file starts.
func racedTooLittle(p pkg) (out []string) {
	starting := map[string]bool{} // helpers that start a goroutine
	var quiet []file              // tests that start none
	for _, f := range p.files {
		starts := false
		for _, d := range f.tree.Decls {
			at := startOf(d)
			if at == nil {
				continue
			}
			starts = true
			if !f.test {
				out = append(out, p.fset.Position(at.Pos()).String()+" starts a goroutine")
			}
			if fn, ok := d.(*ast.FuncDecl); ok && !strings.HasPrefix(fn.Name.Name, "Test") {
				starting[fn.Name.Name] = true
			}
		}
		if f.test && !starts {
			quiet = append(quiet, f)
		}
	}
	for _, f := range quiet {
		ast.Inspect(f.tree, func(n ast.Node) bool {
			if id, ok := n.(*ast.Ident); ok && starting[id.Name] {
				out = append(out, p.fset.Position(id.Pos()).String()+" calls "+id.Name+", which starts a goroutine")
			}
			return true
		})
	}
	return out
}

// TestWhatStartsIsSelected: the Makefile searches the text of test files for what racedTooLittle sees in their trees.
func TestWhatStartsIsSelected(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	search := regexp.MustCompile(`(?m)^RACED_TESTS = .*grep -lE '([^']*)'`).FindSubmatch(text)
	if search == nil {
		t.Fatal("the Makefile has no RACED_TESTS with grep -lE '…'")
	}
	selected := regexp.MustCompile("(?m)" + string(search[1]))
	f := func(body string, want bool) {
		t.Helper()
		body = "package a\n\nfunc TestX(t *testing.T) " + body + "\n"
		p, err := parse("a", map[string]string{"x_test.go": body})
		if err != nil {
			t.Fatal(err)
		}
		if starts := startOf(p.files[0].tree.Decls[0]) != nil; starts != want {
			t.Errorf("%s: the law says that it starts a goroutine: %v", body, starts)
		}
		if got := selected.MatchString(body); got != want {
			t.Errorf("%s: the Makefile selects it: %v", body, got)
		}
	}
	f("{\n\tgo f()\n}", true)
	f("{\n\tgo func() {}()\n}", true)
	f("{ go f() }", true)
	f("{ f(func() { go f() }) }", true)
	f("{ f(); go f() }", true)
	f("{ f(); go (*f)() }", true)
	f("{\n\tvar g sync.WaitGroup\n\tg.Go(f)\n}", true)
	f("{ t.Parallel() }", true)
	f("{ f() } // the rows go on", false)
	f("{ f(`go test`) }", false)
	f("{ goes() }", false)
}

// startOf is where a declaration starts a goroutine, or runs a test beside others; nil: nowhere.
func startOf(d ast.Node) (at ast.Node) {
	ast.Inspect(d, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			at = n
		case *ast.SelectorExpr:
			if n.Sel.Name == "Go" || n.Sel.Name == "Parallel" {
				at = n
			}
		}
		return at == nil
	})
	return at
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

func TestARaceThatIsNotLookedForIsSeen(t *testing.T) {
	f := func(product, test, other string, want int) {
		t.Helper()
		p, err := parse("a", map[string]string{"x.go": "package a\n" + product, "x_test.go": "package a\n" + test, "y_test.go": "package a\n" + other})
		if err != nil {
			t.Fatal(err)
		}
		if got := racedTooLittle(p); len(got) != want {
			t.Errorf("%s %s %s: %q", product, test, other, got)
		}
	}
	f("func f() {}", "func TestX(t *testing.T) { go f() }", "func TestY(t *testing.T) { f() }", 0)
	f("func f() { go f() }", "", "", 1)
	f("func f() { var g sync.WaitGroup; g.Go(f) }", "", "", 1)
	f("", "func beside() { go beside() }; func TestX(t *testing.T) { beside() }", "", 0)
	f("", "func beside() { go beside() }", "func TestY(t *testing.T) { beside() }", 1)
}
