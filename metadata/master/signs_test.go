package master

import (
	"fmt"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/registry"
)

func TestSignsOfLife(t *testing.T) {
	var s signs
	f := func(boot lease.Boot, n uint64, want bool) {
		t.Helper()
		if got := s.news(lease.Beat{Boot: boot, N: n}); got != want {
			t.Errorf("boot %s, N %d: %t, want %t", boot, n, got, want)
		}
	}
	f("b1", 7, true)
	f("b1", 7, false)
	f("b1", 6, false)
	f("b1", 9, true)
	f("b2", 1, true) // started anew
	f("b1", 9, false)
	f("b1", 10, true) // it goes on: b2 was a row of a backup
	f("b2", 1, false)
	f("b2", 2, true)
	f("b2", 2, false)
	f("b2", 3, true)
	for i := range 3 * pastBootsMax {
		f(lease.Boot(fmt.Sprintf("c%d", i)), 1, true)
	}
	f("c40", 1, false)
	if len(s.past) != pastBootsMax {
		t.Errorf("%d runs are remembered", len(s.past))
	}
}

// TestASilentServerIsNotTakenForLive: a list of heartbeats that was older than the watch had another revision, and counted as a sign of life. And after a restore of
// the coordination store, whose revisions begin lower, the rows of servers that live count, and those of a backup do not.
func TestASilentServerIsNotTakenForLive(t *testing.T) {
	var now time.Duration
	rows := NewRows(func() time.Duration { return now }, 4*time.Second)
	servers := []registry.Server{{ID: "s1"}, {ID: "s2"}}
	beat := func(s registry.Server, boot lease.Boot, n uint64, rev coord.Revision) coord.Row {
		return coord.Row{Key: lease.BeatKey(s.ID), Value: lease.Beat{Server: s.ID, Boot: boot, Store: "d", N: n}.Encode(), Revision: rev}
	}
	at := func(to time.Duration, live1, live2 bool, read func()) {
		t.Helper()
		for now += time.Second; now < to; now += time.Second {
			rows.BeatsRead(nil) // the store answers
		}
		now = to
		read()
		var s State
		rows.FillServers(&s, servers)
		if s.Servers[0].Live != live1 || s.Servers[1].Live != live2 {
			t.Errorf("at %v: s1 live %t, s2 live %t, want %t and %t", now, s.Servers[0].Live, s.Servers[1].Live, live1, live2)
		}
	}
	s1, s2 := servers[0], servers[1]
	const s = time.Second
	list := func(rs ...coord.Row) func() { return func() { _ = rows.Listed(rs, rs[len(rs)-1].Revision) } }
	read := func(rs ...coord.Row) func() { return func() { rows.BeatsRead(rs) } }
	watch := func(r coord.Row) func() { return func() { _ = rows.Changed([]coord.Event{{Row: r}}) } }

	at(1*s, true, true, list(beat(s1, "a", 100, 1000), beat(s2, "b", 50, 1001)))
	at(2*s, true, true, watch(beat(s1, "a", 101, 1002)))
	at(5*s, true, false, watch(beat(s1, "a", 102, 1003))) // s2 is silent
	at(5*s+1, true, false, read(beat(s1, "a", 101, 1002), beat(s2, "b", 50, 1001)))
	at(9*s, false, false, read(beat(s1, "a", 100, 1000), beat(s2, "b", 49, 999))) // older than all that were seen: no server is live
	at(10*s, true, false, watch(beat(s1, "a", 103, 1004)))

	// Restored from a backup: revisions are those of long ago, and so are the rows.
	at(11*s, true, false, list(beat(s1, "a", 20, 200), beat(s2, "b", 10, 201)))
	at(14*s, false, false, read(beat(s1, "a", 20, 200), beat(s2, "b", 10, 201)))
	at(15*s, true, false, watch(beat(s1, "a", 104, 202)))
	at(16*s, true, true, watch(beat(s2, "c", 1, 203))) // s2 starts anew
	at(18*s, true, true, watch(beat(s1, "a", 105, 204)))
	at(21*s, true, false, read(beat(s2, "b", 10, 201)))
}
