package fault_test

import (
	"context"
	"errors"
	"io"
	"testing"

	"github.com/spillwaydb/spillway/protocols/fault"
)

func TestKindSurvivesLayers(t *testing.T) {
	inner := fault.Errorf(fault.Corrupt, "block 3: %w", io.ErrUnexpectedEOF)
	outer := fault.Annotate(inner, "segment 1/7")
	if got := outer.Error(); got != "segment 1/7: block 3: unexpected EOF" {
		t.Errorf("message %q", got)
	}
	if fault.KindOf(outer) != fault.Corrupt {
		t.Errorf("kind %v, want corrupt", fault.KindOf(outer))
	}
	if !errors.Is(outer, io.ErrUnexpectedEOF) {
		t.Error("the cause is no longer reachable")
	}
	if k := fault.KindOf(fault.Wrap(outer, fault.Unavailable, "replica 2")); k != fault.Unavailable {
		t.Errorf("the outermost kind is %v, want unavailable", k)
	}
}

func TestKindOfForeignErrors(t *testing.T) {
	f := func(err error, want fault.Kind) {
		t.Helper()
		if got := fault.KindOf(err); got != want {
			t.Errorf("KindOf(%v) = %v, want %v", err, got, want)
		}
	}
	f(io.EOF, fault.Internal)
	f(context.Canceled, fault.Canceled)
	f(context.DeadlineExceeded, fault.Canceled)
	if fault.Wrap(nil, fault.Invalid, "x") != nil || fault.Is(nil, fault.Internal) {
		t.Error("nil became an error")
	}
}

func TestEveryKindHasItsOwnName(t *testing.T) {
	seen := map[string]bool{}
	for _, k := range fault.Kinds() {
		if seen[k.String()] {
			t.Errorf("%v appears twice", k)
		}
		seen[k.String()] = true
	}
}

func TestBugPanics(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	fault.Bug("I4: segment %d changed", 7)
}
