package fault_test

import (
	"errors"
	"io"
	"testing"

	"github.com/spillwaydb/spillway/protocols/fault"
)

func TestOneLine(t *testing.T) {
	f := func(err error, want string) {
		t.Helper()
		got := fault.OneLine(err)
		if got.Error() != want || !errors.Is(got, err) {
			t.Errorf("%q became %q, want %q, of the same chain", err, got, want)
		}
	}
	f(io.EOF, "EOF")
	f(errors.New("first:\n  second\nthird"), "first")
	f(fault.Errorf(fault.Corrupt, "bad\n%w", io.EOF), "bad")
	if fault.OneLine(nil) != nil {
		t.Error("nil became an error")
	}
	if !fault.Is(fault.OneLine(fault.Errorf(fault.Corrupt, "a\nb")), fault.Corrupt) {
		t.Error("the kind is gone")
	}
}
