package archtest

import (
	"fmt"
	"go/ast"
	"go/token"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"
)

// linesMax is how long a file of product code may be: more than one noun lies in a longer one.
const linesMax = 800

// top is all that lies at the top of the repository, besides files with a leading dot.
const top = "gateway storage metadata smear presplit protocols cmd grafana docker docs go.mod go.sum Makefile README.md LICENSE CHANGELOG.md CONTRIBUTING.md SECURITY.md"

// untidy lists the unmet duties of a package: a promise that begins as such, in doc.go or its only file, once; files
// that are not too long; names of metrics that show the package, or the machine's if the package is its runner.
func untidy(p pkg) []string {
	var out []string
	say := func(form string, args ...any) { out = append(out, p.path+": "+fmt.Sprintf(form, args...)) }
	var product, promised []file
	for _, f := range p.files {
		if f.test {
			continue
		}
		product = append(product, f)
		if f.tree.Doc != nil {
			promised = append(promised, f)
		}
		if f.lines > linesMax && !strings.HasSuffix(f.name, ".pb.go") { // protoc's are never read
			say("%s has %d lines, more than %d", f.name, f.lines, linesMax)
		}
		for _, name := range metrics(f.tree) {
			if want := "spillway_" + path.Base(strings.TrimSuffix(p.path, "/runner")) + "_"; !strings.HasPrefix(p.path, "cmd/") && !strings.HasPrefix(name, want) {
				say("%s: the metric %s should begin with %s", f.name, name, want)
			}
		}
	}
	switch {
	case len(product) == 0: // tests only, of a command
	case len(promised) != 1:
		say("%d files begin with a promise, one should", len(promised))
	case len(product) > 1 && promised[0].name != "doc.go":
		say("the promise lies in %s, not in doc.go", promised[0].name)
	default:
		name := promised[0].tree.Name.Name
		want := "Package " + name + " "
		if name == "main" {
			want = "Command " + path.Base(p.path) + " "
		}
		first, _, _ := strings.Cut(promised[0].tree.Doc.Text(), "\n\n")
		if rest, ok := strings.CutPrefix(first, want); !ok || len(strings.Fields(rest)) < 4 || !strings.ContainsAny(rest, ".:") {
			say("the promise should be a sentence that begins with %q, and is %q", want, first)
		}
	}
	return out
}

// metrics gives the strings of a file that name our metrics.
func metrics(tree *ast.File) []string {
	var out []string
	ast.Inspect(tree, func(n ast.Node) bool {
		if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
			if s, err := strconv.Unquote(lit.Value); err == nil && strings.HasPrefix(s, "spillway_") {
				out = append(out, s)
			}
		}
		return true
	})
	return out
}

func TestPackagesAreTidy(t *testing.T) {
	var all []string
	for _, p := range repository(t) {
		all = append(all, untidy(p)...)
	}
	report(t, all)
}

func TestUntidyIsSeen(t *testing.T) {
	f := func(path string, texts map[string]string, want string) {
		t.Helper()
		p, err := parse(path, texts)
		if err != nil {
			t.Fatal(err)
		}
		got := strings.Join(untidy(p), "; ")
		if want == "" && got != "" || !strings.Contains(got, want) {
			t.Errorf("%s %v: %q, want %q", path, texts, got, want)
		}
	}
	const good = "// Package x says what it promises, in a sentence.\npackage x\n"
	f("storage/x", map[string]string{"x.go": good}, "")
	f("storage/x", map[string]string{"doc.go": good, "y.go": "package x"}, "")
	f("storage/x", map[string]string{"x.go": "package x"}, "0 files begin")
	f("storage/x", map[string]string{"doc.go": good, "y.go": good}, "2 files begin")
	f("storage/x", map[string]string{"y.go": good, "z.go": "package x"}, "not in doc.go")
	f("storage/x", map[string]string{"x.go": "// Package y says what it promises, in a sentence.\npackage x\n"}, "should be a sentence")
	f("storage/x", map[string]string{"x.go": "// Package x holds rows.\npackage x\n"}, "should be a sentence")
	f("cmd/x", map[string]string{"main.go": "// Command x says what it promises, in a sentence.\npackage main\n"}, "")
	f("cmd/x", map[string]string{"main.go": "// Command main says what it promises, in a sentence.\npackage main\n"}, "should be a sentence")
	f("storage/x", map[string]string{"x.go": good + strings.Repeat("\n", linesMax)}, "lines, more than")
	f("storage/x", map[string]string{"x.go": good, "x_test.go": "package x" + strings.Repeat("\n", linesMax+1)}, "")
	f("storage/x", map[string]string{"x.go": good + "const c = `spillway_x_rows_total`"}, "")
	f("storage/x", map[string]string{"x.go": good + "const c = `spillway_y_rows_total`"}, "should begin with spillway_x_")
	f("storage/x/runner", map[string]string{"x.go": "// Package runner says what it promises, in a sentence.\npackage runner\nconst c = `spillway_x_rows_total`"}, "")
}

// strays lists the files at the top that are not agreed.
func strays(names []string) []string {
	var out []string
	for _, name := range names {
		if name[0] != '.' && !matchAny(top, name) {
			out = append(out, name+" lies at the top of the repository, which is for: "+top)
		}
	}
	return out
}

// TestTop looks at files under version control; all others are ignored.
func TestTop(t *testing.T) {
	names := tracked(t)
	report(t, strays(names))
	if got := strays([]string{"gateway", ".ci", "go.mod", "util", "main.go"}); len(got) != 2 {
		t.Errorf("strays: %q", got)
	}
}

// tracked gives the names at the top that are under version control, or all where there is none.
func tracked(t *testing.T) []string {
	t.Helper()
	if out, err := gitLs(); err == nil {
		seen := map[string]bool{}
		for _, name := range strings.Fields(out) {
			seen[strings.Split(name, "/")[0]] = true
		}
		return sortedKeys(seen)
	}
	entries, err := os.ReadDir(root)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		if name := e.Name(); name != "bin" && name != "spillway-data" { // the output of make
			names = append(names, name)
		}
	}
	return names
}

// columnsMax is how long a line of a document may be.
const columnsMax = 140

// TestDocumentsFitTheScreen: lines of documents have columnsMax characters at most, but for rows of tables and for drawings, commands and output.
func TestDocumentsFitTheScreen(t *testing.T) {
	texts, err := trackedTexts()
	if err != nil {
		t.Skip("the list of files is not to be had: ", err) // a tree without version control
	}
	var all []string
	seen := 0
	for name, text := range texts {
		if path.Ext(name) != ".md" {
			continue
		}
		seen++
		for _, wide := range wideLines(text) {
			all = append(all, name+":"+wide)
		}
	}
	if seen < 100 {
		t.Errorf("only %d documents were seen", seen)
	}
	slices.Sort(all)
	report(t, all)
}

// wideLines gives the lines of a document that are too long.
func wideLines(text string) (all []string) {
	block, at := false, 0
	for line := range strings.Lines(text) {
		at++
		if strings.HasPrefix(strings.TrimSpace(line), "```") {
			block = !block
		}
		if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > columnsMax && !block && !strings.HasPrefix(strings.TrimSpace(line), "|") {
			all = append(all, fmt.Sprintf("%d has %d characters, want %d at most", at, n, columnsMax))
		}
	}
	return all
}

func TestWideLinesAreSeen(t *testing.T) {
	long := strings.Repeat("x", columnsMax+1)
	for text, want := range map[string]int{
		long[1:] + "\n":                            0,
		long + "\n" + long:                         2,
		strings.Repeat("é", columnsMax):            0,
		"| " + long + " |\n":                       0,
		"```\n" + long + "\n```\n":                 0,
		"```\nx\n```\n" + long + "\n":              1,
		"- x\n  ```\n  " + long + "\n  ```\n- y\n": 0,
	} {
		if got := wideLines(text); len(got) != want {
			t.Errorf("%q: %q, want %d", text, got, want)
		}
	}
}

// TestFormatsAreProven: a format that is drawn has example files, and a test that tries to break it.
func TestFormatsAreProven(t *testing.T) {
	var all []string
	seen := 0
	for _, p := range repository(t) {
		dir := filepath.Join(root, p.path)
		if _, err := os.Stat(filepath.Join(dir, "FORMAT.md")); err != nil {
			continue
		}
		seen++
		golden, err := os.ReadDir(filepath.Join(dir, "testdata"))
		all = append(all, unproven(p, err == nil && len(golden) > 0)...)
	}
	if seen < 4 {
		t.Errorf("only %d formats seen", seen)
	}
	report(t, all)
}

func unproven(p pkg, golden bool) []string {
	var out []string
	if !golden {
		out = append(out, p.path+": FORMAT.md draws a format without files in testdata")
	}
	for _, f := range p.files {
		for _, d := range f.tree.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && f.test && strings.HasPrefix(fn.Name.Name, "Fuzz") {
				return out
			}
		}
	}
	return append(out, p.path+": FORMAT.md draws a format that no fuzz target tries")
}

func TestUnprovenIsSeen(t *testing.T) {
	for text, want := range map[string]int{"package x": 2, "package x; func FuzzDecode(f *testing.F) {}": 1} {
		p, err := parse("storage/x", map[string]string{"x_test.go": text})
		if err != nil {
			t.Fatal(err)
		}
		if got := unproven(p, false); len(got) != want {
			t.Errorf("%s: %q", text, got)
		}
	}
}
