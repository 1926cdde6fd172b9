package archtest

import (
	"go/ast"
	"go/build"
	"go/importer"
	"go/token"
	"go/types"
	"os/exec"
	"reflect"
	"strconv"
	"strings"
	"testing"
)

// A setting that nothing reads is a promise without effect: each field of a struct that a configuration file fills, and of each struct Settings by which one package
// configures another, is read by code that is no test, and more than to check or to complete it.

// checkers are functions whose reading is not enough: they check settings, or set those that are not set.
var checkers = map[string]bool{"Validate": true, "validate": true, "SetDefaults": true, "setDefaults": true, "withDefaults": true}

// copied are types whose fields are copied by their names into those of another type.
var copied = map[string]string{"gateway/limits.Set.": "gateway/limits.Values."}

// ignored are settings that nothing reads on purpose. One that is read is a violation.
var ignored = map[string]string{"gateway/access.webTLS.PreferServer": "files of Prometheus' exporters may have it; Go has ignored it since 1.17"}

// unread finds the settings in packages that nothing reads, except known ones.
func unread(pkgs []pkg, known map[string]string) (found []string) {
	if root, err := exec.Command("go", "env", "GOROOT").Output(); err == nil {
		build.Default.GOROOT = strings.TrimSpace(string(root)) // which a program compiled with -trimpath does not know
	}
	w := &typed{library: importer.ForCompiler(token.NewFileSet(), "source", nil), pkgs: map[string]pkg{}, done: map[string]*types.Package{}, reads: map[string]bool{}}
	for _, p := range pkgs {
		w.pkgs[module+p.path] = p
	}
	for _, p := range pkgs {
		_, _ = w.Import(module + p.path)
	}
	for _, s := range w.settings {
		key := s.key
		for from, to := range copied {
			if name, ok := strings.CutPrefix(key, from); ok {
				key = to + name
			}
		}
		switch _, except := known[s.key]; {
		case !w.reads[key] && !except:
			found = append(found, s.at+": "+s.key+" is a setting, and nothing reads it")
		case w.reads[key] && except:
			found = append(found, s.at+": "+s.key+" is read: take it off the list")
		}
	}
	return found
}

// typed gives types to the repository's packages. Imports from elsewhere stay unknown: settings are ours.
type typed struct {
	library  types.Importer
	pkgs     map[string]pkg
	done     map[string]*types.Package
	settings []declared
	reads    map[string]bool // by declared.key
}

// declared is a setting: package.Type.Field.
type declared struct{ key, at string }

// Import implements types.Importer.
func (w *typed) Import(path string) (*types.Package, error) {
	if path == "sync/atomic" { // settings that are reloaded lie behind its pointers
		return w.library.Import(path)
	}
	p, ok := w.pkgs[path]
	if !ok {
		return noImports{}.Import(path)
	}
	if done, ok := w.done[path]; ok {
		return done, nil
	}
	var trees []*ast.File
	for _, f := range p.files {
		if !f.test {
			trees = append(trees, f.tree)
		}
	}
	info := &types.Info{Selections: map[*ast.SelectorExpr]*types.Selection{}, Defs: map[*ast.Ident]types.Object{}, Uses: map[*ast.Ident]types.Object{}}
	conf := types.Config{Importer: w, Error: func(error) {}, DisableUnusedImportCheck: true}
	w.done[path], _ = conf.Check(path, p.fset, trees, info)
	for _, tree := range trees {
		w.declare(p, tree)
		w.read(tree, info)
	}
	return w.done[path], nil
}

// declare notes the settings that a file declares: fields with a key of YAML, and those of a type Settings.
func (w *typed) declare(p pkg, tree *ast.File) {
	ast.Inspect(tree, func(n ast.Node) bool {
		spec, ok := n.(*ast.TypeSpec)
		if !ok {
			return true
		}
		st, ok := spec.Type.(*ast.StructType)
		if !ok {
			return true
		}
		for _, f := range st.Fields.List {
			tag := ""
			if f.Tag != nil {
				tag, _ = strconv.Unquote(f.Tag.Value) // the parser read it
			}
			key, keyed := reflect.StructTag(tag).Lookup("yaml")
			if !(keyed && key != "-") && !strings.HasSuffix(spec.Name.Name, "Settings") {
				continue
			}
			for _, name := range f.Names {
				if name.IsExported() {
					w.settings = append(w.settings, declared{p.path + "." + spec.Name.Name + "." + name.Name, p.fset.Position(name.Pos()).String()})
				}
			}
		}
		return true
	})
}

// read notes the fields that the functions of a file read.
func (w *typed) read(tree *ast.File, info *types.Info) {
	for _, d := range tree.Decls {
		f, ok := d.(*ast.FuncDecl)
		if ok && checkers[f.Name.Name] {
			continue
		}
		set := map[ast.Expr]bool{}
		ast.Inspect(d, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.AssignStmt:
				if n.Tok == token.ASSIGN {
					for _, e := range n.Lhs {
						set[e] = true
					}
				}
			case *ast.SelectorExpr:
				if sel := info.Selections[n]; sel != nil && sel.Kind() == types.FieldVal && !set[n] {
					w.reads[keyOf(sel)] = true
				}
			}
			return true
		})
	}
}

// keyOf names a selected field by the struct that declares it.
func keyOf(sel *types.Selection) string {
	t := sel.Recv()
	for i, at := range sel.Index() {
		if p, ok := t.Underlying().(*types.Pointer); ok {
			t = p.Elem()
		}
		st, ok := t.Underlying().(*types.Struct)
		if !ok {
			return ""
		}
		field := st.Field(at)
		if i == len(sel.Index())-1 {
			if named, ok := types.Unalias(t).(*types.Named); ok && named.Obj().Pkg() != nil {
				return strings.TrimPrefix(named.Obj().Pkg().Path(), module) + "." + named.Obj().Name() + "." + field.Name()
			}
			return ""
		}
		t = field.Type()
	}
	return ""
}

func TestEachSettingIsRead(t *testing.T) {
	report(t, unread(repository(t), ignored))
}

func TestUnreadSettingsAreSeen(t *testing.T) {
	texts := func(more string) map[string]string {
		return map[string]string{"x.go": "package planted\ntype config struct {\n\tLimit int `yaml:\"limit\"`\n\tInner inner `yaml:\"inner\"`\n}\ntype inner struct { Deep int `yaml:\"deep\"` }\n" +
			"type Settings struct { Max int }\n" + more}
	}
	for text, want := range map[string]int{
		"": 4,
		"func f(c *config, s Settings) int { return c.Limit + c.Inner.Deep + s.Max }":              0,
		"func f(c *config, s Settings) { c.Limit, s.Max = 1, 2 }":                                  4,
		"func (s Settings) Validate() bool { return s.Max > 0 }":                                   4,
		"func f(s Settings) { c := config{Limit: s.Max}; _ = c }":                                  3,
		"type all struct { *config; Settings }\nfunc f(a all) int { return a.Limit + a.Max }":      2,
		"func f[T any](c *config, x T) { if c.Inner.Deep > 0 { panic(x) } }":                       2,
		"import \"elsewhere.example/x\"\nfunc f(c config, s *Settings) { x.Call(c.Limit, s.Max) }": 2,
	} {
		p, err := parse("storage/planted", texts(text))
		if err != nil && !strings.HasPrefix(text, "import") {
			t.Fatal(err)
		} else if err != nil {
			if p, err = parse("storage/planted", map[string]string{"x.go": texts("")["x.go"], "y.go": "package planted\n" + text}); err != nil {
				t.Fatal(err)
			}
		}
		if got := unread([]pkg{p}, nil); len(got) != want {
			t.Errorf("%s: %q, want %d", text, got, want)
		}
	}
}
