package api

import (
	"context"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// TestSlowReadersOfOneTableKeepNoOtherOut: ten exports that were read a byte at a time kept remote reads of every table waiting.
func TestSlowReadersOfOneTableKeepNoOtherOut(t *testing.T) {
	g := newReadGates(2)
	var all []func()
	for range 2 {
		leave, err := g.enter(t.Context(), "slow")
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, leave)
	}
	gone, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if _, err := g.enter(gone, "slow"); !fault.Is(err, fault.Canceled) {
		t.Errorf("a third reader of the table: %v", err)
	}
	leave, err := g.enter(t.Context(), "other")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := g.enter(gone, "third"); !fault.Is(err, fault.Canceled) {
		t.Errorf("one more than all tables have places for: %v", err)
	}
	for _, leave := range append(all, leave) {
		leave()
	}
	if len(g.all) != 0 {
		t.Errorf("%d gates are kept that nobody uses", len(g.all))
	}
}
