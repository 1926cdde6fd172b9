package server

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// TestALoopOverAllTablesSortsNone: each of the loops of a server copied the list of its tables and sorted it, every quarter of a second. With 10,000
// tables that was a third of what the process used at rest.
func TestALoopOverAllTablesSortsNone(t *testing.T) {
	s, stop := openWithIndex(t, vfs.NewMem(), 1)
	defer stop()
	for i := range 500 {
		before := s.tables()
		held := slices.Clone(before)
		s.tableOrNew(fmt.Sprint("table-", i*7%500))
		if !slices.Equal(before, held) {
			t.Fatal("a list that a loop goes over was changed")
		}
	}
	all := s.tables()
	if len(all) != 500 || !slices.IsSortedFunc(all, func(a, b *table) int { return cmpString(a.name, b.name) }) {
		t.Errorf("%d tables, or not in the order of their names", len(all))
	}
	if allocs := testing.AllocsPerRun(10, func() { s.tables() }); allocs > 0 {
		t.Errorf("%v allocations for a list of the tables", allocs)
	}
	// Nor does one whose series are within their bound gather those that it might forget.
	now := time.Now()
	if allocs := testing.AllocsPerRun(10, func() { s.coolUnderPressure(t.Context(), now) }); allocs > 0 {
		t.Errorf("%v allocations although nothing must be forgotten", allocs)
	}
}
