package archtest

import (
	"bytes"
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

// module begins the import path of everything that is ours.
const module = "github.com/spillwaydb/spillway/"

// root is the repository, seen from this folder, in which its tests run.
const root = "../.."

// pkg is a folder with Go files, whatever their build tags.
type pkg struct {
	path  string // from the repository's root: gateway/intake
	fset  *token.FileSet
	files []file
}

// file is one Go file.
type file struct {
	name  string // imports.go
	lines int
	test  bool
	tree  *ast.File
}

// parse makes a pkg of files' texts by name.
func parse(path string, texts map[string]string) (pkg, error) {
	p := pkg{path: path, fset: token.NewFileSet()}
	for _, name := range sortedKeys(texts) {
		tree, err := parser.ParseFile(p.fset, path+"/"+name, texts[name], parser.ParseComments)
		if err != nil {
			return p, err
		}
		p.files = append(p.files, file{
			name: name, lines: strings.Count(texts[name], "\n"), test: strings.HasSuffix(name, "_test.go"), tree: tree,
		})
	}
	return p, nil
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// parsed is the repository, which a dozen laws read and none changes: it is parsed once.
var parsed = sync.OnceValues(parseRepository)

// repository is every package of the repository, parsed.
func repository(t *testing.T) []pkg {
	t.Helper()
	pkgs, err := parsed()
	if err != nil {
		t.Fatal(err)
	}
	if len(pkgs) < 20 {
		t.Fatalf("only %d packages seen in %s", len(pkgs), root)
	}
	return pkgs
}

func parseRepository() (pkgs []pkg, err error) {
	texts := map[string]map[string]string{}
	err = filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if base := d.Name(); d.IsDir() && name != root && (base == "testdata" || base == "bin" || base[0] == '.' || base[0] == '_') {
			return fs.SkipDir
		}
		if d.IsDir() || path.Ext(name) != ".go" {
			return nil
		}
		text, err := os.ReadFile(name)
		if errors.Is(err, fs.ErrNotExist) {
			return nil // an editor's file that came and went
		}
		dir, err2 := filepath.Rel(root, filepath.Dir(name))
		if err := errors.Join(err, err2); err != nil {
			return err
		}
		dir = filepath.ToSlash(dir)
		if texts[dir] == nil {
			texts[dir] = map[string]string{}
		}
		texts[dir][d.Name()] = string(text)
		return nil
	})
	if err != nil {
		return nil, err
	}
	for _, dir := range sortedKeys(texts) {
		p, err := parse(dir, texts[dir])
		if err != nil {
			return nil, err
		}
		pkgs = append(pkgs, p)
	}
	return pkgs, nil
}

// inBinary lists the packages linked into the product, by import path.
func inBinary(t *testing.T) []string {
	t.Helper()
	cmd := exec.Command("go", "list", "-deps", "-json=ImportPath", "./cmd/spillway")
	cmd.Dir = root
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, stderr.Bytes())
	}
	var paths []string
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p struct{ ImportPath string }
		if err := d.Decode(&p); err == io.EOF {
			return paths
		} else if err != nil {
			t.Fatal(err)
		}
		paths = append(paths, p.ImportPath)
	}
}

// match reports whether path matches pattern: itself, with /... at the end also all below it; "..." is everything.
func match(pattern, path string) bool {
	below, ok := strings.CutSuffix(pattern, "...")
	if !ok {
		return pattern == path
	}
	return strings.HasPrefix(path+"/", below)
}

// matchAny reports whether path matches any of the patterns, which stand apart by spaces.
func matchAny(patterns, path string) bool {
	for _, p := range strings.Fields(patterns) {
		if match(p, path) {
			return true
		}
	}
	return false
}

// report fails the test with all violations.
func report(t *testing.T, violations []string) {
	t.Helper()
	slices.Sort(violations)
	for _, v := range slices.Compact(violations) {
		t.Error(v)
	}
}

func TestMatch(t *testing.T) {
	for _, c := range []struct {
		pattern, path string
		want          bool
	}{
		{"storage/...", "storage", true},
		{"storage/...", "storage/head", true},
		{"storage/...", "storages", false},
		{"storage", "storage/head", false},
		{"math/rand", "math/rand/v2", false},
		{"...", "smear", true},
		{"...", "cmd/sim", true},
		{"cmd/... storage/head", "storage/head", true},
		{"", "storage", false},
	} {
		if got := matchAny(c.pattern, c.path); got != c.want {
			t.Errorf("%q takes %q: %v", c.pattern, c.path, got)
		}
	}
}

// gitLs gives the names of files under version control, one a line.
func gitLs() (string, error) {
	cmd := exec.Command("git", "ls-files")
	cmd.Dir = root
	out, err := cmd.Output()
	return string(out), err
}
