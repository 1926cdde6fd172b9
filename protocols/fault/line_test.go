package fault_test

import (
	"errors"
	"io"
	"strings"
	"testing"
	"unicode/utf8"

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
	long := fault.OneLine(errors.New("opened: " + strings.Repeat("é", 5000) + " has a wrong end")).Error()
	if len(long) > fault.LineMax || !utf8.ValidString(long) || !strings.HasPrefix(long, "opened: é") || !strings.HasSuffix(long, " has a wrong end") || !strings.Contains(long, " bytes left out ") {
		t.Errorf("a message of 10,000 bytes became %q", long)
	}
	if fault.OneLine(nil) != nil {
		t.Error("nil became an error")
	}
	if !fault.Is(fault.OneLine(fault.Errorf(fault.Corrupt, "a\nb")), fault.Corrupt) {
		t.Error("the kind is gone")
	}
}
