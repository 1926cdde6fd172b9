package registry_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/coord/mem"
	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/registry"
	"github.com/spillwaydb/spillway/metadata/topology"
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

// TestAMoveOfALongRowIsReplacedByAShorterOne: a build before filled the row beyond what moves are to leave free. A move there was refused also where it made the row shorter.
func TestAMoveOfALongRowIsReplacedByAShorterOne(t *testing.T) {
	s, stands := s1, func(registry.Move) bool { return true }
	for id := point.PlacementID(1); id <= 60; id++ {
		s.Moves = append(s.Moves, registry.Move{Table: "cpu", Partition: 1, Placement: id, To: "s2", Note: lease.Note{Who: "ann", Reason: strings.Repeat("r", 900)}})
	}
	to := func(server topology.ServerID, reason int) registry.Move {
		return registry.Move{Table: "cpu", Partition: 1, Placement: 7, To: server, Note: lease.Note{Who: "ann", Reason: strings.Repeat("r", reason)}}
	}
	for _, reason := range []int{900, 10} {
		if err := s.Add(to("s3", reason), stands); err != nil {
			t.Errorf("a reason of %d bytes: %v", reason, err)
		}
	}
	if err := s.Add(to("s3", 11), stands); !fault.Is(err, fault.TooLarge) {
		t.Errorf("a longer one: %v", err)
	}
	if m, _ := s.MoveOf("cpu", 7); m.To != "s3" || len(m.Note.Reason) != 10 {
		t.Errorf("it has %v", m)
	}
}

// TestARowRemembersTargetsThatWereNotFilled: the newest few, one for each target, also when the server registers again. Rows of builds before have none.
func TestARowRemembersTargetsThatWereNotFilled(t *testing.T) {
	store, ctx := mem.New(), t.Context()
	old := `{"v":1,"id":"s1","addr":"a:1","host":"h","store":"x","since":"2026-11-21T12:00:00Z","moves":[{"table":"cpu","partition":1,"placement":7,"to":"s2","note":{"who":"ann","when":"2026-11-21T12:00:00Z","reason":"hot"}}]}`
	if _, ok, err := store.Commit(ctx, nil, []coord.Write{{Key: "servers/s1", Value: []byte(old)}}); err != nil || !ok {
		t.Fatal(ok, err)
	}
	noon := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	for i, to := range []topology.ServerID{"s2", "s3", "s2", "s4", "s5", "s6"} {
		err := registry.Change(ctx, store, "s1", func(s *registry.Server) {
			s.AddUnfilled(registry.Move{Table: "cpu", Partition: point.PartitionID(i + 1), To: to, Note: lease.Note{When: noon.Add(time.Duration(i) * time.Minute)}}, noon.Add(-time.Hour))
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := registry.Register(ctx, store, registry.Server{ID: "s1", Addr: "a:2", Host: "h", Store: "x"}, false, nil); err != nil {
		t.Fatal(err)
	}
	shown := func() (out string) {
		all, err := registry.List(ctx, store)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range all[0].Unfilled {
			out += fmt.Sprintf(" p%d to %s", m.Partition, m.To)
		}
		return out
	}
	if got := shown(); got != " p3 to s2 p4 to s4 p5 to s5 p6 to s6" {
		t.Errorf("it has%s", got)
	}
	if err := registry.Change(ctx, store, "s1", func(s *registry.Server) {
		s.AddUnfilled(registry.Move{Partition: 9, To: "s7"}, noon.Add(5*time.Minute))
	}); err != nil {
		t.Fatal(err)
	}
	if got := shown(); got != " p6 to s6 p9 to s7" {
		t.Errorf("later it has%s", got)
	}
}
