package archtest

import (
	"go/ast"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// notListed are variables that tests read and that are not set by hand.
var notListed = []string{
	"CORRUPT_WORKER", "SPILLWAY_TEST_ETCD_DIR", "SPILLWAY_TEST_ETCD_URL", // by a test, for its helper process
	"CLUSTER_BIN", "CLUSTER_PREVIOUS", "CHAOS_FAULTS", "PROGRAM_SIZE", "SMEAR_COST", "UNLOAD_COST", "MOVE_COST", "EDGES_COST", "SMEAR_SVG", // by make
}

// testVariables gives the environment variables that the tests of a package read: by os.Getenv and os.LookupEnv, by those of processtest, or by a
// function of the package that passes its own parameter to these.
func testVariables(p pkg) []string {
	readers := map[string]int{"os.Getenv": 0, "os.LookupEnv": 0, "processtest.EnvInt": 1, "processtest.EnvDuration": 1} // function → place of the name among its arguments
	for _, f := range p.files {
		for _, d := range f.tree.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && f.test && fn.Body != nil {
				if i := passedOn(fn); i >= 0 {
					readers[fn.Name.Name] = i
				}
			}
		}
	}
	var names []string
	for _, f := range p.files {
		if !f.test {
			continue
		}
		ast.Inspect(f.tree, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			if i, ok := readers[dotted(call.Fun)]; ok && i < len(call.Args) {
				if lit, ok := call.Args[i].(*ast.BasicLit); ok && lit.Kind == token.STRING {
					name, _ := strconv.Unquote(lit.Value)
					names = append(names, name)
				}
			}
			return true
		})
	}
	return names
}

// passedOn gives the place of the parameter that a function reads as a variable; -1: none.
func passedOn(fn *ast.FuncDecl) int {
	found := -1
	ast.Inspect(fn.Body, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok || len(call.Args) == 0 || dotted(call.Fun) != "os.Getenv" && dotted(call.Fun) != "os.LookupEnv" {
			return true
		}
		name, ok := call.Args[0].(*ast.Ident)
		if !ok {
			return true
		}
		at := 0
		for _, field := range fn.Type.Params.List {
			for _, param := range field.Names {
				if param.Name == name.Name {
					found = at
				}
				at++
			}
		}
		return true
	})
	return found
}

// dotted is the name of a called function, with its package if it has one.
func dotted(fun ast.Expr) string {
	switch f := fun.(type) {
	case *ast.Ident:
		return f.Name
	case *ast.SelectorExpr:
		if x, ok := f.X.(*ast.Ident); ok {
			return x.Name + "." + f.Sel.Name
		}
	}
	return ""
}

// TestVariablesOfTestsAreListed: CONTRIBUTING.md has a table of them.
func TestVariablesOfTestsAreListed(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "CONTRIBUTING.md"))
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	var all []string
	for _, p := range repository(t) {
		for _, name := range testVariables(p) {
			ours := strings.Contains(name, "_") || name == "CLUSTER"
			if seen++; ours && !slices.Contains(notListed, name) && !strings.Contains(string(text), "`"+name+"`") {
				all = append(all, p.path+": its tests read "+name+", which CONTRIBUTING.md does not list")
			}
		}
	}
	if seen < 30 {
		t.Errorf("only %d variables seen", seen)
	}
	report(t, all)
}

func TestVariablesAreSeen(t *testing.T) {
	p, err := parse("x", map[string]string{"x_test.go": `package x
		func number(t *testing.T, name string) string { return os.Getenv(name) }
		func a() { _ = os.Getenv("A_B"); _, _ = os.LookupEnv("C_D"); number(nil, "E_F"); processtest.EnvInt(nil, "I_J", 1); f("G_H") }`})
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(testVariables(p), " "); got != "A_B C_D E_F I_J" {
		t.Errorf("seen: %s", got)
	}
}
