package use

import "testing"

func TestTests(t *testing.T) {
	byTests()
	var g *guarded
	if g == nil {
		t.Fatal("nil")
	}
	_ = g.n
	go func() { t.Fatal("of another goroutine") }() // want SA2002 testinggoroutine
	t.Errorf("%d", "x")                             // want printf
}

func Testlower(t *testing.T) {} // want tests

func helper() {} // want U1000
