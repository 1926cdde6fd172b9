package master

import (
	"testing"
	"time"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/registry"
)

// TestAServerWhoseRowWasDeletedCountsAsLiveUntilItIsSilent: a person may delete the heartbeat row of a server that lives. The deletion is no sign of death, and a row that another
// server wrote in its place is no sign of life.
func TestAServerWhoseRowWasDeletedCountsAsLiveUntilItIsSilent(t *testing.T) {
	var now time.Duration
	rows := NewRows(func() time.Duration { return now }, 4*time.Second)
	servers := []registry.Server{{ID: "s1"}, {ID: "s2"}}
	f := func(what string, at time.Duration, live bool, since time.Duration, e coord.Event) {
		t.Helper()
		for now < at {
			now += time.Second
			rows.BeatsRead(nil) // the store answers
		}
		e.Key = lease.BeatKey("s1")
		if err := rows.Changed([]coord.Event{e}); err != nil {
			t.Fatal(err)
		}
		var s State
		rows.FillServers(&s, servers)
		if one := s.Servers[0]; one.Live != live || one.For != since || one.Beat.Missing {
			t.Errorf("%s: live %t for %v, want %t for %v", what, one.Live, one.For, live, since)
		}
	}
	beat := func(n uint64) coord.Event {
		return coord.Event{Row: coord.Row{Value: lease.Beat{Server: "s1", Boot: "b1", Store: "d1", N: n}.Encode(), Revision: coord.Revision(n)}}
	}
	deleted := func(rev coord.Revision) coord.Event { return coord.Event{Row: coord.Row{Revision: rev}, Deleted: true} }
	const s = time.Second
	f("a heartbeat", 0, true, 0, beat(1))
	f("deleted", 1*s, true, 1*s, deleted(2))
	f("back", 2*s, true, 2*s, beat(3))
	f("deleted again", 3*s, true, 3*s, deleted(4))
	f("one in its place", 5*s, true, 5*s, coord.Event{Row: coord.Row{Value: lease.InPlace("s1", "b0", time.Time{}).Encode(), Revision: 5}})
	f("and no other", 6*s, false, 4*s, deleted(6))
	f("still none", 9*s, false, 7*s, deleted(7))
	f("back after that", 10*s, true, 0, beat(8))
}

// TestRowInTheirPlaceIsNoSignOfLife where no row of the server itself was ever seen.
func TestRowInTheirPlaceIsNoSignOfLife(t *testing.T) {
	rows := NewRows(func() time.Duration { return 0 }, time.Second)
	if err := rows.Listed([]coord.Row{{Key: lease.BeatKey("s1"), Value: lease.InPlace("s1", "b0", time.Time{}).Encode(), Revision: 3}}, 3); err != nil {
		t.Fatal(err)
	}
	var s State
	rows.FillServers(&s, []registry.Server{{ID: "s1"}})
	if one := s.Servers[0]; one.Live || one.Beat.Missing || rows.changed(one.Server) {
		t.Errorf("%+v", one)
	}
	beat := lease.Beat{Server: "s1", Boot: "b1", Store: "d1", N: 1}
	if err := rows.Changed([]coord.Event{{Row: coord.Row{Key: lease.BeatKey("s1"), Value: beat.Encode(), Revision: 4}}}); err != nil {
		t.Fatal(err)
	}
	if rows.FillServers(&s, []registry.Server{{ID: "s1"}}); !s.Servers[0].Live {
		t.Errorf("it lives: %+v", s.Servers[0])
	}
}
