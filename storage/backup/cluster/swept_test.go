package cluster_test

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/backup"
	"github.com/spillwaydb/spillway/storage/backup/cluster"
)

// splitting is a cluster that splits the partition of its last table during the backup. The records of the partition's leaders are deleted then, so that Unled reports
// that no server ever led it.
type splitting struct {
	several
	t     *testing.T
	table string
	asked func() // before Unled answers

	mu    *sync.Mutex
	split *bool
}

func (s splitting) Stagers(context.Context, string) ([]topology.ServerID, error) { return nil, nil }

func (s splitting) Map(ctx context.Context, table string) (*topology.Map, uint64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.several.Map(ctx, table)
}

func (s splitting) Unled(table string, id point.PartitionID) bool {
	if s.asked != nil && table == s.table && id == 1 {
		s.asked()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return *s.split && table == s.table && id == 1
}

func (s splitting) sweep() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if *s.split {
		return
	}
	*s.split = true
	child := func(id uint64) topology.Child {
		return topology.Child{ID: point.PartitionID(id), Placements: []topology.Placement{{ID: point.PlacementID(1000 + id), Server: "well"}}}
	}
	m := s.maps[s.table]
	low := uint64(m.NextID)
	m, err := m.Apply(topology.SplitBegin{Partition: 1, Split: topology.Split{At: topology.AtTime(int64(time.Hour / 2)), Low: child(low), High: child(low + 1)}},
		topology.SplitFinalize{Partition: 1, Low: point.PartitionID(low)}, topology.UnloadFinal{Partition: 1})
	if err != nil {
		s.t.Error(err)
		return
	}
	s.maps[s.table] = m
}

// TestRowsOfAPartitionThatIsSplitDuringABackupAreInIt: the backup read the maps of all tables at its start. A partition was split, and the records of its leaders were deleted.
// The backup took it for a partition that was never led. Its rows were not in the backup, and were not reported as missing.
func TestRowsOfAPartitionThatIsSplitDuringABackupAreInIt(t *testing.T) {
	for _, moment := range []string{"while an earlier table is copied", "before the answer"} {
		t.Run(moment, func(t *testing.T) { synctest.Test(t, func(t *testing.T) { splitDuringABackup(t, moment) }) })
	}
}

func splitDuringABackup(t *testing.T, moment string) {
	s := splitting{several: several{maps: tablesOf(t, 2, 1, "well")}, t: t, table: "t01", mu: new(sync.Mutex), split: new(bool)}
	s.maps["t00"] = tablesOf(t, 1, 20, "well")["t00"]
	if moment == "before the answer" {
		s.asked = s.sweep
	} else {
		s.opened = func() error { s.sweep(); return nil }
	}
	place := backup.Dir{FS: vfs.NewMem(), Path: "backups"}
	res, err := cluster.Write(t.Context(), s, place, cluster.Settings{Holder: "test", Log: slog.New(slog.DiscardHandler)})
	if err != nil || len(res.Missing) > 0 {
		t.Fatalf("missing: %q, %v", res.Missing, err)
	}
	_, m, err := backup.Load(t.Context(), place, res.Name, backup.Settings{})
	if err != nil || len(m.Tables) != 2 {
		t.Fatalf("%d tables, %v", len(m.Tables), err)
	}
	if parts := m.Tables[1].Partitions; len(parts) != 2 || parts[0].ID == 1 || parts[0].Server == "" || parts[1].Server == "" {
		t.Errorf("the backup has of the table that was split: %+v", parts)
	}
	if len(m.Segments) != 22 {
		t.Errorf("%d segments, want those of 22 partitions", len(m.Segments))
	}
}

// TestAPartitionThatWasMadeDuringABackupIsNotMissing: no server led it when the backup asked which ones are empty, nor since.
func TestAPartitionThatWasMadeDuringABackupIsNotMissing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := growing{several: several{maps: tablesOf(t, 1, 1, "well")}, reads: new(int), m: tablesOf(t, 1, 2, "well", "frozen")["t00"]}
		res, err := cluster.Write(t.Context(), s, backup.Dir{FS: vfs.NewMem(), Path: "backups"}, cluster.Settings{Holder: "test", Log: slog.New(slog.DiscardHandler)})
		if err != nil || len(res.Missing) > 0 {
			t.Errorf("missing: %q, %v", res.Missing, err)
		}
	})
}

// growing is a cluster whose table gets a second partition before its map is read for the third time, at the table's turn. No server ever led that partition.
type growing struct {
	several
	reads *int
	m     *topology.Map
}

func (s growing) Stagers(context.Context, string) ([]topology.ServerID, error) { return nil, nil }

func (s growing) Map(ctx context.Context, table string) (*topology.Map, uint64, error) {
	if *s.reads++; *s.reads > 2 {
		return s.m, 1, nil
	}
	return s.several.Map(ctx, table)
}

func (s growing) Unled(_ string, id point.PartitionID) bool { return id == 2 }

// TestABackupGoesOnWhereMapsCannotBeReadForAMoment: one change of etcd's leader at a table's turn ended a backup of hours.
func TestABackupGoesOnWhereMapsCannotBeReadForAMoment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := failingMaps{several: several{maps: tablesOf(t, 1, 1, "well")}, reads: new(int)}
		res, err := cluster.Write(t.Context(), s, backup.Dir{FS: vfs.NewMem(), Path: "backups"}, cluster.Settings{Holder: "test", Log: slog.New(slog.DiscardHandler)})
		if err != nil || len(res.Missing) > 0 || *s.reads < 6 {
			t.Errorf("after %d reads of maps, missing: %q, %v", *s.reads, res.Missing, err)
		}
	})
}

// failingMaps is a cluster in which reads 3 to 5 of a map fail. They are those at a table's turn.
type failingMaps struct {
	several
	reads *int
}

func (s failingMaps) Stagers(context.Context, string) ([]topology.ServerID, error) { return nil, nil }

func (s failingMaps) Map(ctx context.Context, table string) (*topology.Map, uint64, error) {
	if *s.reads++; *s.reads > 2 && *s.reads < 6 {
		return nil, 0, fault.Errorf(fault.Unavailable, "etcd has no leader")
	}
	return s.several.Map(ctx, table)
}
