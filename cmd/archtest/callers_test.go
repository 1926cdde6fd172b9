package archtest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// uncalled are exported functions and methods that only tests call, each with the reason why it stays.
var uncalled = map[string]string{
	"(*gateway/api.API).Routes":           "one test in cmd/spillway/process lists the routes of all packages with the permission that each needs",
	"gateway/intake.Routes":               "the same",
	"(*gateway/query.Engine).Waiting":     "a test of gateway/api waits until a query is queued",
	"(*metadata/mapstore.Server).Map":     "tests of storage/metafile read the map of one server",
	"(*metadata/mapstore.Server).Only":    "tests of gateways run one process with its own METADATA",
	"metadata/mapstore/mem.NewServer":     "the same",
	"(*metadata/tables.Tables).Dropped":   "tests of a cluster wait until a process knows that a table is gone",
	"(*metadata/tables.Tables).SetConfig": "tests of gateway/forward change tables",
	"(*metadata/topology.Map).Cover":      "tests of eight packages make maps by it",
	"(*protocols/budget.Account).Free":    "tests of gateway/query and cmd/spillway/process measure what is lent",
	"(*protocols/budget.Account).Used":    "the same",
	"(*protocols/lane.Lane).InUse":        "tests of gateway/query and storage/partition wait until a turn is in use",
	"protocols/peer/rpc.JoinLinks":        "tests of storage/chain and storage/replica link two servers of one process",
	"smear.Simulate":                      "the figures of docs/smear.md, and a test of metadata/master, are computed by it",
	"(smear.Loads).Busiest":               "the same",
	"(*storage/brick.Brick).Rewrite":      "moves records of few live bytes out of old log files; the runner that decides when is not built",
	"(*storage/series.Index).Intern":      "tests of storage/partition, chain and replica add single series",
	"(*storage/server.Server).FlushAll":   "tests of queries want segments at once",
	"(*storage/staging.Machine).Deleting": "a test of its runner waits until a deletion has begun",
}

// isLibrary is false for commands, and for packages that serve tests: tests call their exported functions.
func isLibrary(path string) bool {
	return !strings.HasPrefix(path, "cmd/") && !strings.HasSuffix(path, "test") && !strings.HasSuffix(path, "suite")
}

// program is the repository's product code with its types. Packages of ours are checked from their sources, in the order of their imports, so that
// a function is one object wherever it is called; all others come from the compiler's export data.
type program struct {
	fset  *token.FileSet
	ours  map[string]*types.Package
	other types.Importer
	files map[string][]*ast.File // by import path
	info  types.Info
}

// Import implements types.Importer.
func (p *program) Import(path string) (*types.Package, error) {
	if own := p.ours[path]; own != nil {
		return own, nil
	}
	return p.other.Import(path)
}

func newProgram(lookup importer.Lookup) *program {
	p := &program{fset: token.NewFileSet(), ours: map[string]*types.Package{}, files: map[string][]*ast.File{}}
	p.other = importer.ForCompiler(p.fset, "gc", lookup)
	p.info = types.Info{Defs: map[*ast.Ident]types.Object{}, Uses: map[*ast.Ident]types.Object{}, Types: map[ast.Expr]types.TypeAndValue{}}
	return p
}

// add checks a package of ours.
func (p *program) add(path string, files []*ast.File) error {
	checked, err := (&types.Config{Importer: p}).Check(path, p.fset, files, &p.info)
	p.ours[path], p.files[path] = checked, files
	return err
}

// loadProgram checks all packages of the repository without their tests. Without cmd/vet, too, which uses none of the others: staticcheck would be
// compiled for it, a twentieth of all that is.
func loadProgram(t *testing.T) *program {
	t.Helper()
	packages := slices.DeleteFunc(goList(t, "./..."), func(path string) bool { return path == module+"cmd/vet" })
	c := exec.Command("go", append([]string{"list", "-export", "-deps", "-json=ImportPath,Export,Dir,GoFiles"}, packages...)...)
	c.Dir = root
	out, err := c.Output()
	if err != nil {
		t.Fatal(err)
	}
	exports := map[string]string{}
	p := newProgram(func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var l struct {
			ImportPath, Export, Dir string
			GoFiles                 []string
		}
		if err := d.Decode(&l); errors.Is(err, io.EOF) {
			return p
		} else if err != nil {
			t.Fatal(err)
		}
		if exports[l.ImportPath] = l.Export; !strings.HasPrefix(l.ImportPath, module) {
			continue
		}
		var files []*ast.File
		for _, name := range l.GoFiles {
			f, err := parser.ParseFile(p.fset, filepath.Join(l.Dir, name), nil, parser.ParseComments)
			if err != nil {
				t.Fatal(err)
			}
			files = append(files, f)
		}
		if err := p.add(l.ImportPath, files); err != nil {
			t.Fatal(err)
		}
	}
}

// called returns all functions that product code mentions outside of their own declarations.
func (p *program) called() map[*types.Func]bool {
	called := map[*types.Func]bool{}
	for _, files := range p.files {
		for _, f := range files {
			for _, decl := range f.Decls {
				var itself types.Object
				if fd, ok := decl.(*ast.FuncDecl); ok {
					itself = p.info.Defs[fd.Name]
				}
				ast.Inspect(decl, func(n ast.Node) bool {
					if id, ok := n.(*ast.Ident); ok {
						if fn, ok := p.info.Uses[id].(*types.Func); ok && fn.Origin() != itself {
							called[fn.Origin()] = true
						}
					}
					return true
				})
			}
		}
	}
	return called
}

// interfaces returns the interfaces that have a method of each name: those that our sources spell out, and those of packages they import.
func (p *program) interfaces() map[string][]*types.Interface {
	found, seen := map[string][]*types.Interface{}, map[*types.Package]bool{}
	add := func(t types.Type) {
		i, ok := t.Underlying().(*types.Interface)
		for k := 0; ok && k < i.NumMethods(); k++ {
			name := i.Method(k).Name()
			found[name] = append(found[name], i)
		}
	}
	var walk func(pkg *types.Package)
	walk = func(pkg *types.Package) {
		if seen[pkg] {
			return
		}
		seen[pkg] = true
		for _, name := range pkg.Scope().Names() {
			if o, ok := pkg.Scope().Lookup(name).(*types.TypeName); ok {
				add(o.Type())
			}
		}
		for _, next := range pkg.Imports() {
			walk(next)
		}
	}
	for _, own := range p.ours {
		walk(own)
	}
	for expr, t := range p.info.Types {
		if _, ok := expr.(*ast.InterfaceType); ok {
			add(t.Type)
		}
	}
	add(types.Universe.Lookup("error").Type())
	return found
}

// byItself are methods that the standard library finds by assertions inside of its functions.
const byItself = "Is As Unwrap"

// onlyTested lists exported functions and methods without a caller in product code. A method may be called through an interface that its type has.
func (p *program) onlyTested() (names map[string]token.Position) {
	called, interfaces := p.called(), p.interfaces()
	names = map[string]token.Position{}
	for path, files := range p.files {
		if !isLibrary(strings.TrimPrefix(path, module)) {
			continue
		}
		for _, f := range files {
			for _, decl := range f.Decls {
				fd, ok := decl.(*ast.FuncDecl)
				if !ok || !fd.Name.IsExported() || ast.IsGenerated(f) {
					continue
				}
				fn := p.info.Defs[fd.Name].(*types.Func)
				if called[fn] || isAsked(fn, interfaces[fn.Name()]) {
					continue
				}
				names[strings.ReplaceAll(fn.FullName(), module, "")] = p.fset.Position(fd.Pos())
			}
		}
	}
	return names
}

// isAsked reports whether one of the interfaces, which have a method of that name, is implemented by the method's type.
func isAsked(fn *types.Func, interfaces []*types.Interface) bool {
	recv := fn.Signature().Recv()
	if recv == nil {
		return false
	}
	if matchAny(byItself, fn.Name()) {
		return true
	}
	t := recv.Type()
	if p, ok := t.(*types.Pointer); ok {
		t = p.Elem()
	}
	generic := false
	if n, ok := t.(*types.Named); ok {
		generic = n.TypeParams().Len() > 0
	}
	for _, i := range interfaces {
		if generic || types.Implements(types.NewPointer(t), i) {
			return true
		}
	}
	return false
}

// TestEveryExportedFunctionHasACaller keeps code that only its tests call out of packages: it is read, kept right and trusted for nothing.
func TestEveryExportedFunctionHasACaller(t *testing.T) {
	found := loadProgram(t).onlyTested()
	for name, at := range found {
		if uncalled[name] == "" {
			t.Errorf("%s: %s is called by tests alone: remove it, move it into a test, or unexport it", at, name)
		}
	}
	for name := range uncalled {
		if _, ok := found[name]; !ok {
			t.Errorf("%s is called, or gone: take it off the list", name)
		}
	}
}

// TestCallersAreFound plants functions with and without callers.
func TestCallersAreFound(t *testing.T) {
	p := newProgram(nil)
	for _, text := range []string{
		"package a; type T struct{}; func (T) Called() {}; func (T) Alone() {}; func (*T) Close() error { return nil }; func Again() { Again() }; func Used() {}; " +
			"type G[K any] struct{}; func (G[K]) Get() {}; func (G[K]) Put() {}; type pair struct{}; func (pair) Less() bool { return true }",
		"package b; import \"" + module + "a\"; type closer interface { Close() error }; func main() { var c closer = new(a.T); c.Close(); a.T{}.Called(); a.Used(); a.G[int]{}.Get() }",
	} {
		f, err := parser.ParseFile(p.fset, "x.go", text, 0)
		if err != nil {
			t.Fatal(err)
		}
		if err := p.add(module+f.Name.Name, []*ast.File{f}); err != nil {
			t.Fatal(err)
		}
	}
	if got := fmt.Sprint(sortedKeys(p.onlyTested())); got != "[(a.G[K]).Put (a.T).Alone (a.pair).Less a.Again]" {
		t.Error(got)
	}
}
