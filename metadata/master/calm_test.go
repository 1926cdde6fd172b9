package master

import (
	"testing"
	"time"

	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/registry"
	"github.com/spillwaydb/spillway/metadata/topology"
)

// TestRoundsWithoutNewsArePassedOver: for an unchanged state a plan is made every minute; after a change, while one is awaited, or after a plan
// with steps the next round plans at once.
func TestRoundsWithoutNewsArePassedOver(t *testing.T) {
	var set Settings
	set.SetDefaults()
	m, err := topology.New("cpu", topology.Config{PartitionWidth: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	state := func() State {
		return State{Tables: []*topology.Map{m}, Metadata: map[string][]topology.ServerID{"cpu": {"s1"}},
			Servers: []Server{{Server: registry.Server{ID: "s1"}, Live: true, For: time.Hour}, {Server: registry.Server{ID: "s2"}, Live: true, For: time.Hour}}}
	}
	var c calm
	at := int64(0)
	round := func(s State, rows uint64, sizes int, steps ...Step) (planned bool) {
		at += int64(5 * time.Second)
		now := calmOf(s, set, rows, sizes)
		if c.passes(now, at) {
			return false
		}
		c.planned(now, at, steps)
		return true
	}
	f := func(what string, got, want bool) {
		t.Helper()
		if got != want {
			t.Errorf("%s: planned %t", what, got)
		}
	}
	f("the first", round(state(), 1, 1), true)
	for range 11 {
		s := state()
		s.Servers[0], s.Servers[1] = s.Servers[1], s.Servers[0]
		s.Servers[0].For += time.Second
		s.Servers[0].Beat.N, s.Servers[0].Beat.Held = 7, 3
		f("nothing is new", round(s, 1, 1), false)
	}
	f("a minute later", round(state(), 1, 1), true)
	f("a lease row", round(state(), 2, 1), true)
	f("sizes", round(state(), 2, 2), true)
	f("again nothing", round(state(), 2, 2), false)
	s := state()
	s.Metadata["cpu"] = []topology.ServerID{"s2"}
	f("who keeps METADATA", round(s, 2, 2), true)
	f("and back", round(state(), 2, 2), true)
	s = state()
	s.Servers[1].Live, s.Servers[1].For = false, 0
	f("a server is silent", round(s, 2, 2), true)
	f("and still", round(s, 2, 2), true)
	s = state()
	s.Servers[1].For = time.Second
	f("it is back", round(s, 2, 2), true)
	f("and has to settle", round(s, 2, 2), true)
	f("settled", round(state(), 2, 2), true)
	f("again nothing", round(state(), 2, 2), false)
	s = state()
	s.Servers[1].Drain = &lease.Note{}
	f("a drain, and there is something to do", round(s, 2, 2, Step{}), true)
	f("once more until nothing is", round(s, 2, 2), true)
	f("then not", round(s, 2, 2), false)
	next, err := m.Apply(topology.SetConfig{Config: topology.Config{PartitionWidth: 2 * time.Hour}})
	if err != nil {
		t.Fatal(err)
	}
	m = next
	f("a map", round(state(), 2, 2), true)
}
