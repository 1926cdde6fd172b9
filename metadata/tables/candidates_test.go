package tables_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/spillwaydb/spillway/metadata/tables"
	"github.com/spillwaydb/spillway/metadata/topology"
)

// TestEveryTableIsMadeWhileAMinorityOfServersIsAway: the name decided which servers keep a new table's map, silent or not, so that of two dead servers of five every third
// name could not be used until they were back: each of its rows was answered with 503.
func TestEveryTableIsMadeWhileAMinorityOfServersIsAway(t *testing.T) {
	t.Parallel()
	for _, x := range []struct{ live, silent int }{{3, 2}, {2, 1}, {2, 5}, {1, 2}, {4, 0}} {
		s := newSite(t, x.live+x.silent)
		var live, silent []topology.ServerID
		for i := range x.live + x.silent {
			if id := topology.ServerID(fmt.Sprint("s", i+1)); i < x.silent {
				silent = append(silent, id)
			} else {
				live = append(live, id)
			}
		}
		s.setAway(true, silent...)
		d := s.deps()
		d.Servers = func() []topology.ServerID { return tables.MetadataCandidates(live, silent, 3) }
		tb := s.openWith(d, tables.Settings{CreateOnWrite: true, NewPerSecond: 1000})
		for i := range 20 {
			if _, err := tb.Ensure(t.Context(), fmt.Sprint("t", i)); err != nil {
				t.Fatalf("%d of %d servers are away: %v", x.silent, x.live+x.silent, err)
			}
		}
	}
	if got, all := tables.MetadataCandidates(nil, []topology.ServerID{"s1", "s2"}, 3), []topology.ServerID{"s1", "s2"}; !slices.Equal(got, all) {
		t.Errorf("a process that just started knows of no live server, and may ask %v", got)
	}
}
