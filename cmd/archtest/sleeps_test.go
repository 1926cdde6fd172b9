package archtest

import (
	"fmt"
	"go/ast"
	"maps"
	"slices"
	"strings"
	"testing"
)

// sleepsLeft is how many sleeps outside a loop the tests of a package still have. A test that sleeps once and then looks is wrong on a busy
// machine, or slower than it must be; one that looks in a loop, with a pause, waits for its condition. In a bubble of testing/synctest
// a sleep needs no time. Numbers only fall: a package with fewer than listed fails too, so that its number is lowered.
// Each of them says in a comment why it is no wait for a condition: it is the pace of a load, the latency of a fake server, a time in which
// something is measured or must not happen.
var sleepsLeft = map[string]int{
	"cmd/clustertest":      21,
	"cmd/pathtest":         1,
	"cmd/standalonetest":   2,
	"gateway/forward":      2,
	"gateway/intake":       1,
	"gateway/intake/kafka": 4,
	"gateway/query":        2,
	"metadata/coord/etcd":  2,
	"metadata/tables":      1,
	"storage/lead":         1,
	"storage/partition":    1,
	"storage/server":       4,
}

// bubbles returns the functions of a package's tests that run a function they are given in a bubble.
func bubbles(p pkg) map[string]bool {
	names := map[string]bool{}
	for _, f := range p.files {
		for _, d := range f.tree.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok || !f.test || fn.Body == nil || !slices.ContainsFunc(fn.Type.Params.List, func(x *ast.Field) bool { _, ok := x.Type.(*ast.FuncType); return ok }) {
				continue
			}
			ast.Inspect(fn.Body, func(n ast.Node) bool {
				if c, ok := n.(*ast.CallExpr); ok && isCall(c, "synctest", "Test") {
					names[fn.Name.Name] = true
				}
				return true
			})
		}
	}
	return names
}

// sleeps returns the places of a test file where time.Sleep is called outside loops and bubbles, and those of them without a comment on their line.
func sleeps(p pkg, f file) (at, silent []string) {
	inBubble, comments := bubbles(p), map[int]bool{}
	for _, g := range f.tree.Comments {
		comments[p.fset.Position(g.Pos()).Line] = true
	}
	ast.Inspect(f.tree, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ForStmt, *ast.RangeStmt:
			return false
		case *ast.CallExpr:
			if name, ok := n.Fun.(*ast.Ident); isCall(n, "synctest", "Test") || ok && inBubble[name.Name] {
				return false
			}
			if isCall(n, "time", "Sleep") {
				pos := p.fset.Position(n.Pos())
				if at = append(at, pos.String()); !comments[pos.Line] {
					silent = append(silent, pos.String())
				}
			}
		}
		return true
	})
	return at, silent
}

func isCall(c *ast.CallExpr, pkg, name string) bool {
	s, ok := c.Fun.(*ast.SelectorExpr)
	if !ok || s.Sel.Name != name {
		return false
	}
	x, ok := s.X.(*ast.Ident)
	return ok && x.Name == pkg
}

func TestTestsWaitForConditions(t *testing.T) {
	found := map[string][]string{}
	for _, p := range repository(t) {
		for _, f := range p.files {
			if f.test {
				at, silent := sleeps(p, f)
				found[p.path] = append(found[p.path], at...)
				for _, s := range silent {
					t.Errorf("%s: a sleep without a comment that says why it is no wait for a condition", s)
				}
			}
		}
	}
	for _, path := range slices.Sorted(maps.Keys(found)) {
		if at, want := found[path], sleepsLeft[path]; len(at) > want {
			t.Errorf("tests of %s sleep %d times outside a loop, want %d at most: wait for a condition instead\n%s", path, len(at), want, fmt.Sprint(at))
		} else if len(at) < want {
			t.Errorf("tests of %s sleep only %d times outside a loop: lower its number in sleepsLeft from %d", path, len(at), want)
		}
	}
}

func TestSleepsAreSeen(t *testing.T) {
	f := func(body string, want int) {
		t.Helper()
		p, err := parse("p", map[string]string{
			"p_test.go": "package p\nfunc TestX(t *testing.T) {" + body + "}",
			"q_test.go": "package p\nfunc inWorld(t *testing.T, f func()) { synctest.Test(t, func(*testing.T) { f() }) }",
		})
		if err != nil {
			t.Fatal(err)
		}
		at, silent := sleeps(p, p.files[0])
		if len(at) != want {
			t.Errorf("%s: sleeps at %v, want %d", body, at, want)
		}
		if says := strings.Contains(body, "//"); says && len(silent) > 0 || !says && len(silent) < len(at) {
			t.Errorf("%s: without a comment: %v", body, silent)
		}
	}
	f("time.Sleep(1) // why\n", 1)
	f("inWorld(t, func() { time.Sleep(1) })", 0)
	f("time.Sleep(1)", 1)
	f("go func() { time.Sleep(1) }()", 1)
	f("for !done() { time.Sleep(1) }", 0)
	f("for range 3 { time.Sleep(1) }", 0)
	f("synctest.Test(t, func(t *testing.T) { time.Sleep(1) })", 0)
	f("synctest.Test(t, func(t *testing.T) {}); time.Sleep(1)", 1)
}
