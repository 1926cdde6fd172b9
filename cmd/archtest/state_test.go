package archtest

import (
	"errors"
	"fmt"
	"go/ast"
	"go/token"
	"go/types"
	"strings"
	"testing"
)

// A variable of a package is a constant that the language cannot spell: an error, a table, a compiled expression, a
// pool. Anything else is state that two servers in one process would share, and that a test cannot start afresh.

// variables may exist although their form says nothing of the kind; * at the end matches all that begin so. An entry that
// is needed no more is a violation.
var variables = map[string]string{
	"cmd/spillway.version":           "the linker sets it",
	"cmd/internal/processtest.built": "the program is linked once for all tests of a package, which hand each other nothing",
	"protocols/peer/peerpb.*":        "protoc writes them",
	"gateway/intake.door*":           "rows of the table of routes, known by their addresses and never written",
	"cmd/spillway/diagram.glyphText": "letters as they are embedded: never written",
	"gateway/ui.dist":                "the page as it is embedded: never written",
	"docs.files":                     "the OpenAPI document as it is embedded: never written",
	"protocols/peer/rpc.bufferPool":  "a pool with several sizes, as gRPC makes them",
	"protocols/columns.LastValue":    "a row of the table of functions that has no name of its own, never written",
}

// makers give immutable values.
var makers = map[string]bool{
	"errors.New": true, "fmt.Errorf": true, "fault.Errorf": true,
	"regexp.MustCompile": true, "crc32.MakeTable": true, "strings.NewReplacer": true,
	"math.Float64frombits": true, "math.NaN": true, "math.Inf": true,
}

// keeps gives the package's init functions and its variables that are not constants in disguise, except listed
// ones, which it notes in met.
func keeps(p pkg, known map[string]string, met map[string]bool) []string {
	var trees []*ast.File
	for _, f := range p.files {
		if !f.test {
			trees = append(trees, f.tree)
		}
	}
	// Imports are left unresolved: the package's own variables can be found without them, and fast.
	info := &types.Info{Defs: map[*ast.Ident]types.Object{}, Uses: map[*ast.Ident]types.Object{}}
	conf := types.Config{Importer: noImports{}, Error: func(error) {}, DisableUnusedImportCheck: true}
	self, _ := conf.Check(p.path, p.fset, trees, info)

	own := func(id *ast.Ident) types.Object {
		for _, obj := range []types.Object{info.Uses[id], info.Defs[id]} {
			if v, ok := obj.(*types.Var); ok && v.Parent() == self.Scope() {
				return v
			}
		}
		return nil
	}
	pools := map[types.Object]bool{} // their address is how they are used
	var out []string
	say := func(at token.Pos, id, what string) {
		name := p.path + "." + id
		for k := range known {
			if begin, ok := strings.CutSuffix(k, "*"); k == name || ok && strings.HasPrefix(name, begin) {
				met[k] = true
				return
			}
		}
		out = append(out, fmt.Sprintf("%s: %s %s", p.fset.Position(at), name, what))
	}
	for _, tree := range trees {
		for _, d := range tree.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if d.Name.Name == "init" && d.Recv == nil {
					say(d.Pos(), "init", "runs before it is needed: call it where it is needed")
				}
			case *ast.GenDecl:
				for _, s := range d.Specs {
					if v, ok := s.(*ast.ValueSpec); ok && d.Tok == token.VAR {
						for i, id := range v.Names {
							if id.Name != "_" && (i >= len(v.Values) || !constant(v.Values[i])) {
								say(id.Pos(), id.Name, "is a variable of a package, and not a table, an error or a pool: keep it in a struct")
							} else if i < len(v.Values) && isPool(v.Values[i]) {
								pools[info.Defs[id]] = true
							}
						}
					}
				}
			}
		}
	}
	for _, tree := range trees {
		written(tree, func(id *ast.Ident, address bool) {
			if v := own(id); v != nil && !(address && pools[v]) {
				say(id.Pos(), id.Name, "is a variable of a package and changes here: keep it in a struct")
			}
		})
	}
	return out
}

type noImports struct{}

func (noImports) Import(string) (*types.Package, error) { return nil, errors.New("not needed") }

// constant reports whether the value has a form that is not changed by using it.
func constant(e ast.Expr) bool {
	switch e := e.(type) {
	case *ast.CompositeLit:
		if t, ok := e.Type.(*ast.ArrayType); ok && t.Len != nil {
			return true
		}
		return len(e.Elts) > 0 // an empty list or map is there to be filled
	case *ast.CallExpr:
		switch fun := e.Fun.(type) {
		case *ast.ArrayType: // []byte("…")
			return true
		case *ast.SelectorExpr:
			x, ok := fun.X.(*ast.Ident)
			return ok && makers[x.Name+"."+fun.Sel.Name]
		case *ast.FuncLit: // a table that is computed
			if res := fun.Type.Results; res != nil && len(res.List) == 1 {
				t, ok := res.List[0].Type.(*ast.ArrayType)
				return ok && t.Len != nil
			}
		}
	}
	return false
}

func isPool(e ast.Expr) bool {
	lit, ok := e.(*ast.CompositeLit)
	if !ok {
		return false
	}
	t, ok := lit.Type.(*ast.SelectorExpr)
	return ok && t.Sel.Name == "Pool"
}

// written calls f with the first name of everything in the functions of a file that is assigned to, counted, deleted
// from, cleared, or has its address used.
func written(tree *ast.File, f func(id *ast.Ident, address bool)) {
	hit := func(e ast.Expr, address bool) {
		for {
			switch x := e.(type) {
			case *ast.Ident:
				f(x, address)
				return
			case *ast.IndexExpr:
				e = x.X
			case *ast.SelectorExpr:
				e = x.X
			case *ast.StarExpr:
				e = x.X
			case *ast.ParenExpr:
				e = x.X
			case *ast.SliceExpr:
				e = x.X
			default:
				return
			}
		}
	}
	ast.Inspect(tree, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.AssignStmt:
			if n.Tok != token.DEFINE {
				for _, e := range n.Lhs {
					hit(e, false)
				}
			}
		case *ast.IncDecStmt:
			hit(n.X, false)
		case *ast.RangeStmt:
			if n.Tok == token.ASSIGN {
				hit(n.Key, false)
				if n.Value != nil {
					hit(n.Value, false)
				}
			}
		case *ast.UnaryExpr:
			if n.Op == token.AND {
				hit(n.X, true)
			}
		case *ast.CallExpr:
			if id, ok := n.Fun.(*ast.Ident); ok && len(n.Args) > 0 && (id.Name == "delete" || id.Name == "clear" || id.Name == "copy") {
				hit(n.Args[0], false)
			}
		}
		return true
	})
}

func TestPackagesKeepNothing(t *testing.T) {
	met, seen := map[string]bool{}, map[string]bool{}
	var all []string
	for _, p := range repository(t) {
		seen[p.path] = true
		all = append(all, keeps(p, variables, met)...)
	}
	for name := range variables {
		if seen[name[:strings.LastIndexByte(name, '.')]] && !met[name] {
			all = append(all, name+" needs no exception: take it off the list")
		}
	}
	report(t, all)
}

func TestKeptStateIsSeen(t *testing.T) {
	f := func(text string, want int) {
		t.Helper()
		p, err := parse("storage/planted", map[string]string{"x.go": "package planted\n" + text})
		if err != nil {
			t.Fatal(err)
		}
		if got := keeps(p, nil, nil); len(got) != want {
			t.Errorf("%s: %q, want %d", text, got, want)
		}
	}
	f("func init() {}", 1)
	f("type t struct{}; func (t) init() {}", 0)
	f("var n int", 1)
	f("var n = 0", 1)
	f("var mu sync.Mutex", 1)
	f("var now = time.Now", 1)
	f("var seen = map[string]bool{}", 1)
	f("var list []string", 1)
	f("var p = &point{1}", 1)
	f("var p = new(int)", 1)
	f("var c = prometheus.NewCounter(o)", 1)
	f("var _ io.Reader = (*t)(nil)", 0)
	f(`var errX = errors.New("x")`, 0)
	f(`var errX = errors.New("x"); func f() { errX = nil }`, 1)
	f("var table = [2]int{1, 2}; func f() int { return table[0] }", 0)
	f("var table = [2]int{1, 2}; func f() { table[0]++ }", 1)
	f("var table = [2]int{1, 2}; func f() { table[0] = 1 }", 1)
	f("var table = [2]int{1, 2}; func f() { table := [2]int{}; table[0] = 1 }", 0)
	f("var table = [2]int{1, 2}; func f() *int { return &table[0] }", 1)
	f("var table = [2]int{1, 2}; func f() { for table[0] = range 3 {} }", 1)
	f("var words = map[string]int{`a`: 1}; func f() { delete(words, `a`) }", 1)
	f("var words = map[string]int{`a`: 1}; func f() { words[`b`] = 2 }", 1)
	f("var words = map[string]int{`a`: 1}; func f() int { return words[`a`] }", 0)
	f("var sums = func() (t [256]int) { t[1] = 1; return t }()", 0)
	f("var pool = sync.Pool{New: func() any { return new(int) }}; func f() { pool.Put(pool.Get()) }", 0)
	f("var pool = sync.Pool{New: func() any { return new(int) }}; func f() *sync.Pool { return &pool }", 0)
	f("var pool = sync.Pool{New: func() any { return new(int) }}; func f() { pool = sync.Pool{} }", 1)
	f("type t struct{ n int }; func (v *t) f() { v.n = 1 }", 0)

	p, err := parse("storage/planted", map[string]string{"x.go": "package planted; var n, doorA, doorB int"})
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]string{"storage/planted.n": "because", "storage/planted.door*": "because", "storage/planted.m": "because"}
	met := map[string]bool{}
	if got := keeps(p, known, met); len(got) != 0 || len(met) != 2 || met["storage/planted.m"] {
		t.Errorf("known variables: %q, met %v", got, met)
	}
}
