package master

import (
	"testing"
	"time"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/registry"
)

// TestRowInTheirPlaceIsNoSignOfLife: a server that waits for another to be silent writes a row in the place of a heartbeat row that a person deleted. The server is no more alive by it.
func TestRowInTheirPlaceIsNoSignOfLife(t *testing.T) {
	rows := NewRows(func() time.Duration { return 0 }, time.Second)
	servers := []registry.Server{{ID: "s1"}}
	f := func(what string, live bool, e coord.Event) {
		t.Helper()
		e.Key = lease.BeatKey("s1")
		if err := rows.Changed([]coord.Event{e}); err != nil {
			t.Fatal(err)
		}
		var s State
		rows.FillServers(&s, servers)
		if s.Servers[0].Live != live || s.Servers[0].Beat.Missing {
			t.Errorf("%s: %+v", what, s.Servers[0])
		}
	}
	beat := lease.Beat{Server: "s1", Boot: "b1", Store: "d1", N: 1}
	f("a heartbeat", true, coord.Event{Row: coord.Row{Value: beat.Encode(), Revision: 1}})
	f("deleted", false, coord.Event{Row: coord.Row{Revision: 2}, Deleted: true})
	f("one in its place", false, coord.Event{Row: coord.Row{Value: lease.Beat{Server: "s1", Boot: "b0", Missing: true}.Encode(), Revision: 3}})
	beat.N = 2
	f("back", true, coord.Event{Row: coord.Row{Value: beat.Encode(), Revision: 4}})
}
