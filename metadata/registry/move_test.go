package registry_test

import (
	"strings"
	"testing"

	"github.com/spillwaydb/spillway/metadata/coord/mem"
	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/registry"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

// TestMovesWithLongReasonsLeaveAServerRoomForItsOwn: persons' moves filled the row of a server up to the last byte that is read. It could not note any more of which tables it stages
// rows, so that those were refused, nor be drained.
func TestMovesWithLongReasonsLeaveAServerRoomForItsOwn(t *testing.T) {
	store, ctx := mem.New(), t.Context()
	if err := registry.Register(ctx, store, s1, false, nil); err != nil {
		t.Fatal(err)
	}
	var refused error
	for id := point.PlacementID(1); refused == nil; id++ {
		m := registry.Move{Table: "cpu", Partition: 1, Placement: id, To: "s2", Note: lease.Note{Who: strings.Repeat("w", 500), Reason: strings.Repeat("r", 500)}}
		err := registry.Change(ctx, store, "s1", func(s *registry.Server) {
			before := len(s.Moves)
			if refused = s.Add(m, func(registry.Move) bool { return true }); refused != nil && len(s.Moves) != before {
				t.Errorf("a refused move leaves %d of %d", len(s.Moves), before)
			}
		})
		if err != nil {
			t.Fatalf("move %d makes a row that is not written: %v", id, err)
		}
	}
	if !fault.Is(refused, fault.TooLarge) || !strings.Contains(refused.Error(), "shorter reasons") {
		t.Errorf("the last one: %v", refused)
	}
	err := registry.Change(ctx, store, "s1", func(s *registry.Server) {
		s.Staging = registry.StagingOf([]string{strings.Repeat("t", 16<<10)})
		s.Drain = &lease.Note{Who: strings.Repeat("w", 500), Reason: strings.Repeat("r", 500)}
	})
	if err != nil {
		t.Error(err)
	}
}
