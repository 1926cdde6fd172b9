package archtest

import (
	"fmt"
	"go/ast"
	"maps"
	"slices"
	"testing"
)

// sleepsLeft is how many sleeps outside a loop the tests of a package still have. A test that sleeps once and then looks is wrong on a busy
// machine, or slower than it must be; one that looks in a loop, with a pause, waits for its condition. In a bubble of testing/synctest
// a sleep takes no time. Numbers only fall: a package with fewer than listed fails too, so that its number is lowered.
// Most of what is left is the pace of a load, the latency of a fake server, or in a bubble that a helper opens.
var sleepsLeft = map[string]int{
	"cmd/clienttest":         7,
	"cmd/spillway":           34,
	"gateway/forward":        2,
	"gateway/intake":         1,
	"gateway/intake/kafka":   4,
	"gateway/query":          2,
	"gateway/query/fanout":   4,
	"metadata/coord/etcd":    2,
	"metadata/lease/leaders": 3,
	"metadata/tables":        1,
	"storage/lead":           1,
	"storage/partition":      1,
	"storage/server":         4,
}

// sleeps returns the places of a test file where time.Sleep is called outside loops and bubbles.
func sleeps(p pkg, f file) (at []string) {
	ast.Inspect(f.tree, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ForStmt, *ast.RangeStmt:
			return false
		case *ast.CallExpr:
			if isCall(n, "synctest", "Test") {
				return false
			}
			if isCall(n, "time", "Sleep") {
				at = append(at, p.fset.Position(n.Pos()).String())
			}
		}
		return true
	})
	return at
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
				found[p.path] = append(found[p.path], sleeps(p, f)...)
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
		p, err := parse("p", map[string]string{"p_test.go": "package p\nfunc TestX(t *testing.T) {" + body + "}"})
		if err != nil {
			t.Fatal(err)
		}
		if at := sleeps(p, p.files[0]); len(at) != want {
			t.Errorf("%s: sleeps at %v, want %d", body, at, want)
		}
	}
	f("time.Sleep(1)", 1)
	f("go func() { time.Sleep(1) }()", 1)
	f("for !done() { time.Sleep(1) }", 0)
	f("for range 3 { time.Sleep(1) }", 0)
	f("synctest.Test(t, func(t *testing.T) { time.Sleep(1) })", 0)
	f("synctest.Test(t, func(t *testing.T) {}); time.Sleep(1)", 1)
}
