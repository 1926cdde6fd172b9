package administration

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/master"
	"github.com/spillwaydb/spillway/metadata/registry"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
)

// TestThePlanShowsMovesByLoad: one that would begin, one that is under way, and one that was given up, after which its partition and target rest. The last two were not shown, so that
// it was not clear why nothing more was moved. Where the clock was ahead when a move was given up, only the master knows how long they rest: half an hour was shown until that time.
func TestThePlanShowsMovesByLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Until(time.Date(2026, 11, 27, 12, 0, 0, 0, time.UTC)))
		tw := newTown(t)
		tw.server([]string{"s1", "copies=on"})
		for _, line := range []string{"table create cpu --replicas 1", "table create net --replicas 1"} {
			tw.command(words(line))
		}
		for _, table := range []string{"cpu", "net"} {
			tw.row("cover", []string{table, "2026-11-27T12:00:00Z"})
			tw.row("lease", []string{table, "p1", "held", "s1", "s1"})
		}
		tw.server([]string{"s2", "copies=on"})
		tw.damaged = map[string]peer.PartitionStats{"s1:8430": {ID: 1, Rows: 1 << 20, Bytes: 16 << 20, MaxTime: time.Now().UnixNano()}}
		tw.writes = map[topology.ServerID]*lease.Writes{"s1": {Hot: []lease.Hot{{Partition: "cpu/1", Rows: 9000, Seconds: 60}, {Partition: "net/1", Rows: 9000, Seconds: 60}}}, "s2": {}}
		shows := func(want ...string) {
			t.Helper()
			text := tw.command([]string{"master", "plan"})
			for _, s := range want {
				if !strings.Contains(text, s) {
					t.Errorf("it lacks %q:\n%s", s, text)
				}
			}
		}
		shows("have p1 move from s1 to s2      s1 accepts 18000 rows/s")
		move := func(table string, placement point.PlacementID, ago time.Duration) registry.Move {
			return registry.Move{Table: table, Partition: 1, Placement: placement, To: "s2", Note: lease.Note{Who: master.Fencer, When: time.Now().Add(-ago), Reason: "of " + table}}
		}
		change := func(f func(*registry.Server)) {
			if err := registry.Change(t.Context(), tw.store, "s1", f); err != nil {
				t.Fatal(err)
			}
		}
		change(func(s *registry.Server) { s.Moves = []registry.Move{move("cpu", 7, 5*time.Minute)} })
		shows("cpu/1         s1    s2  under way for 5m0s  of cpu")
		change(func(s *registry.Server) {
			s.Moves, s.Unfilled = nil, []registry.Move{move("net", 7, 10*time.Minute), move("cpu", 8, 40*time.Minute)}
		})
		shows("net/1         s1    s2  given up 10m0s ago; no other of it or to s2 for 19m59s  of net")
		if text := tw.command([]string{"master", "plan"}); strings.Contains(text, "move from") || strings.Contains(text, "of cpu") {
			t.Errorf("what rests is moved, or what rested is shown:\n%s", text)
		}
		change(func(s *registry.Server) { s.Unfilled = []registry.Move{move("net", 7, -2*time.Hour)} })
		shows("net/1         s1    s2  given up, by a clock that is ahead  of net")
		change(func(s *registry.Server) { s.Moves, s.Unfilled = []registry.Move{move("cpu", 7, -2*time.Hour)}, nil })
		shows("cpu/1         s1    s2  under way, by a clock that is ahead  of cpu")
		change(func(s *registry.Server) {
			s.Moves = nil
			for i := range registry.MovesMax {
				s.Moves = append(s.Moves, registry.Move{Table: "mem", Partition: 1, Placement: point.PlacementID(i + 1), To: "s2", Note: lease.Note{Who: "ann", Reason: "hot"}})
			}
		})
		shows("cpu/1         s1    s2  passed over: 64 partitions are being moved away from s1", "s1 accepts 18000 rows/s")
		change(func(s *registry.Server) { s.Moves = []registry.Move{move("cpu", 7, -2*time.Hour)} })
		if text := tw.command([]string{"master", "plan", "--alarms"}); strings.Contains(text, "MOVE") {
			t.Errorf("besides alarms:\n%s", text)
		}
	})
}
