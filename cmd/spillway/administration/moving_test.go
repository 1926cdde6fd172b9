package administration

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/master"
	"github.com/spillwaydb/spillway/metadata/registry"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

// TestADrainWithoutMapsIsReported: to wait for it ended the command with a panic where no metadata server had answered.
func TestADrainWithoutMapsIsReported(t *testing.T) {
	a := &admin{lacking: map[string]error{"": fault.Errorf(fault.Unavailable, "no metadata server answers")}}
	if err := a.awaitDrained(t.Context(), "s1"); !fault.Is(err, fault.Unavailable) || !strings.Contains(err.Error(), "continues") {
		t.Error(err)
	}
}

// TestAnOrderWithoutADryRunIsRefusedWithOne: it was carried out.
func TestAnOrderWithoutADryRunIsRefusedWithOne(t *testing.T) {
	for _, what := range []string{"bump", "move", "prohibit", "allow", "offline", "online", "restore", "force-join"} {
		if _, err := steerPartition("cpu", 7, what, partitionOrder{DryRun: true, Reason: "test"}); !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), "no dry run") {
			t.Errorf("%s: %v", what, err)
		}
	}
	for _, what := range []string{"split", "merge"} {
		if _, err := steerPartition("cpu", 7, what, partitionOrder{DryRun: true}); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestAMoveThatCannotEndIsRefused: each refusal says why, and nothing is changed.
func TestAMoveThatCannotEndIsRefused(t *testing.T) {
	key := lease.Partition{Table: "cpu", ID: 7}
	server := func(id, host, zone string, change ...func(*master.Server)) master.Server {
		s := master.Server{Server: registry.Server{ID: topology.ServerID(id), Host: host, Zone: zone, Copies: registry.CopiesOn}, Live: true}
		for _, f := range change {
			f(&s)
		}
		return s
	}
	s := master.State{
		Servers: []master.Server{
			server("s1", "h1", "a"), server("s2", "h2", "b"), server("s3", "h3", "c"), server("twin", "h2", "a"), server("zone", "h4", "b"), server("same", "h5", "a"),
			server("silent", "h6", "c", func(s *master.Server) { s.Live, s.For = false, time.Minute }),
			server("drained", "h7", "c", func(s *master.Server) { s.Drain = &lease.Note{Who: "ann", Reason: "old disk"} }),
			server("full", "h8", "c", func(s *master.Server) { s.Beat.ReadOnly = "its disk is full" }),
			server("tight", "h10", "c", func(s *master.Server) { s.Beat.Room = 1 << 30 }),
			server("single", "h9", "c", func(s *master.Server) { s.Copies = registry.CopiesOff }),
		},
		Leases: map[lease.Partition]lease.Lease{key: {State: lease.Held, Holder: "s1", Epoch: 1}},
		Sizes:  map[lease.Partition]master.Size{key: {Bytes: 1 << 30, Rows: 1}},
		No:     map[lease.Partition][]topology.ServerID{key: {"same"}},
	}
	part := func(state topology.State) *topology.Partition {
		return &topology.Partition{ID: 7, State: state, Placements: []topology.Placement{{ID: 1, Server: "s1"}, {ID: 2, Server: "s2"}}}
	}
	for _, x := range []struct {
		to    topology.ServerID
		force bool
		kind  fault.Kind
		want  string // "": it is accepted
	}{
		{to: "s3"},
		{to: "", kind: fault.Invalid, want: "names no server"},
		{to: "s9", kind: fault.NotFound, want: `no server "s9"`},
		{to: "s1", kind: fault.Invalid, want: "on s1 already"},
		{to: "s2", kind: fault.Invalid, want: "on s2 already"},
		{to: "silent", kind: fault.Invalid, want: "silent for"},
		{to: "drained", kind: fault.Invalid, want: "old disk"},
		{to: "full", kind: fault.Invalid, want: "disk is full"},
		{to: "same", kind: fault.Invalid, want: "prohibited"},
		{to: "tight", kind: fault.Invalid, want: "tight has room for 1.0 GiB, and the partition of 1.0 GiB needs 1.2 GiB"},
		{to: "tight", force: true, kind: fault.Invalid, want: "needs 1.2 GiB"},
		{to: "single", kind: fault.Invalid, want: "storage.copies is off on single"},
		{to: "twin", kind: fault.Invalid, want: "same host"},
		{to: "twin", force: true},
		{to: "zone", kind: fault.Invalid, want: "same zone"},
		{to: "zone", force: true},
		{to: "s2", force: true, kind: fault.Invalid, want: "already"},
	} {
		err := movable(&s, key, part(topology.Live), "s1", x.to, x.force)
		switch {
		case x.want == "" && err != nil:
			t.Errorf("to %q, force %v: %v", x.to, x.force, err)
		case x.want != "" && (!fault.Is(err, x.kind) || !strings.Contains(err.Error(), x.want)):
			t.Errorf("to %q, force %v: %v, want %q", x.to, x.force, err, x.want)
		}
	}
	if err := movable(&s, key, part(topology.Splitting), "s1", "s3", false); !fault.Is(err, fault.Invalid) {
		t.Errorf("while it is split: %v", err)
	}
	if _, err := leaving(part(topology.Live), "", key); !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), "--from") {
		t.Errorf("from one of two servers: %v", err)
	}
	if _, err := leaving(part(topology.Live), "s3", key); !fault.Is(err, fault.NotFound) {
		t.Errorf("from a server that has no copy: %v", err)
	}
	if pl, err := leaving(part(topology.Live), "s2", key); err != nil || pl.ID != 2 {
		t.Errorf("%v %v", pl, err)
	}
}

// TestAServerKeepsABoundedNumberOfMoves: those that ended make room, and a partition that is moved again has one.
func TestAServerKeepsABoundedNumberOfMoves(t *testing.T) {
	var s registry.Server
	stands := func(m registry.Move) bool { return m.Partition != 3 }
	for i := range registry.MovesMax + 1 {
		id := point.PartitionID(i + 1)
		if err := s.Add(registry.Move{Table: "cpu", Partition: id, Placement: point.PlacementID(id), To: "s2"}, stands); err != nil {
			t.Fatalf("move %d was refused, with %d: %v", id, len(s.Moves), err)
		}
	}
	if err := s.Add(registry.Move{Table: "cpu", Partition: 900, Placement: 900, To: "s2"}, stands); !fault.Is(err, fault.Throttled) {
		t.Errorf("more moves than the bound: %v", err)
	}
	if err := s.Add(registry.Move{Table: "cpu", Partition: 1, Placement: 1, To: "s3"}, stands); err != nil {
		t.Errorf("another target for a move was refused: %v", err)
	}
	if m, ok := s.MoveOf("cpu", 1); !ok || m.To != "s3" || len(s.Moves) != registry.MovesMax {
		t.Errorf("%v %v, %d moves", m, ok, len(s.Moves))
	}
	if _, ok := s.MoveOf("cpu", 3); ok {
		t.Error("a move that ended is there")
	}
}

// TestOrdersByURLAreThoseOfTheCommands: the flag that ends a split, or a move, reaches the command that runs in the gateway.
func TestOrdersByURLAreThoseOfTheCommands(t *testing.T) {
	for _, what := range []string{"split", "move"} {
		var body partitionOrder
		if err := json.Unmarshal([]byte(`{"cancel": true, "reason": "enough"}`), &body); err != nil {
			t.Fatal(err)
		}
		got, err := steerPartition("t", 7, what, body)
		if err != nil {
			t.Fatal(err)
		}
		switch c := got.(type) {
		case *PartitionSplit:
			if !c.Cancel || c.ID != 7 || c.Reason != "enough" {
				t.Errorf("%+v", c)
			}
		case *PartitionMove:
			if !c.Cancel || c.ID != 7 || c.Reason != "enough" {
				t.Errorf("%+v", c)
			}
		default:
			t.Errorf("%s is %T", what, got)
		}
	}
}
