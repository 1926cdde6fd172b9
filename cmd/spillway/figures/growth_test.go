package figures

import (
	"testing"
	"time"

	"github.com/spillwaydb/spillway/gateway/ui"
)

// TestGrowthShowsWhichServersTakeTheLoad: a new partition counts whole, one that was unknown or lost rows does not, and a look that came late changes
// nothing.
func TestGrowthShowsWhichServersTakeTheLoad(t *testing.T) {
	var g Growth
	at := time.Date(2026, 11, 24, 0, 0, 0, 0, time.UTC)
	type part struct {
		id     uint64
		leader string
		rows   int // -1: unknown
	}
	look := func(seconds int, a, b uint64, parts ...part) {
		t.Helper()
		s := &ui.Status{Now: at.Add(time.Duration(seconds) * time.Second), Servers: []ui.Server{{ID: "a"}, {ID: "b"}}, Tables: []ui.Table{{Name: "t"}}}
		for _, p := range parts {
			one := ui.Partition{ID: p.id, Leader: p.leader}
			if rows := uint64(p.rows); p.rows >= 0 {
				one.Rows = &rows
			}
			s.Tables[0].Partitions = append(s.Tables[0].Partitions, one)
		}
		g.Count(s)
		if s.GrownSince == nil || !s.GrownSince.Equal(at) {
			t.Errorf("counted since %v", s.GrownSince)
		}
		if got := [2]uint64{*s.Servers[0].Grown, *s.Servers[1].Grown}; got != [2]uint64{a, b} {
			t.Errorf("after %d s the servers grew by %v, not by %d and %d", seconds, got, a, b)
		}
	}
	look(0, 0, 0, part{1, "a", 1000}, part{2, "b", -1}, part{3, "a", 50})
	look(5, 100, 0, part{1, "a", 1100}, part{2, "b", 7000}, part{3, "a", 40})
	look(2, 100, 0, part{1, "a", 1050}, part{2, "b", 7000}, part{3, "a", 40}) // asked before, answered later
	look(10, 100, 330, part{1, "a", 1100}, part{2, "b", 7030}, part{3, "a", 40}, part{4, "b", 300})
	look(15, 100, 335, part{2, "b", -1}, part{4, "b", 305}, part{5, "", 10})
	look(20, 100, 335, part{2, "b", 9000}, part{4, "b", 305}, part{5, "", 10})
}
