package tables

import (
	"fmt"
	"testing"
)

// TestATableIsMadeWithoutAListOfTheOthers: each creation sorted the names of all tables, so that to make 10,000 of them was more than half
// a billion comparisons.
func TestATableIsMadeWithoutAListOfTheOthers(t *testing.T) {
	const names = 2000 // of tables that were dropped: they count for nothing
	tb := &Tables{}
	tb.mu.tables = map[string]*table{}
	for i := range names {
		tb.mu.tables[fmt.Sprint("t", i)] = &table{}
	}
	for _, most := range []int{1, names, names + 1} {
		tb.settings.TablesMax = most
		allocs := testing.AllocsPerRun(10, func() {
			if n, full := tb.full(); full {
				t.Errorf("%d tables are said to be all that may be made of %d", n, most)
			}
		})
		if allocs > 0 {
			t.Errorf("at most %d tables: %v allocations", most, allocs)
		}
	}
}
