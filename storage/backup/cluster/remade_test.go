package cluster_test

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/backup"
	"github.com/spillwaydb/spillway/storage/backup/cluster"
)

// remaking is a cluster in which one of two tables is dropped, and made anew, while they are backed up.
type remaking struct {
	several
	t     *testing.T
	table string
	when  string

	mu    *sync.Mutex
	begun *uint64 // of the table
}

func (s remaking) Stagers(context.Context, string) ([]topology.ServerID, error) {
	if s.when == "before its turn" {
		s.remake()
	}
	return []topology.ServerID{"well"}, nil
}

// Leader is called once the newest map of the table was read: that of t01 after the map of t00.
func (s remaking) Leader(table string, p *topology.Partition, try int) (topology.ServerID, error) {
	if s.when == "after its partitions" && table != s.table {
		s.remake()
	}
	return s.several.Leader(table, p, try)
}

func (s remaking) Map(ctx context.Context, table string) (*topology.Map, uint64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m, begun, err := s.several.Map(ctx, table)
	if table != s.table {
		return m, begun, err
	}
	if s.when == "before its turn" && *s.begun == 1 {
		return nil, 0, fault.Errorf(fault.NotFound, "table %q was dropped", table)
	}
	return m, *s.begun, err
}

func (s remaking) CaughtUp(context.Context) error { // called once the staged rows are there
	if s.when == "after the staged rows" {
		s.remake()
	}
	return nil
}

// remake drops the table and makes it anew, once.
func (s remaking) remake() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if *s.begun > 1 {
		return
	}
	was := s.maps[s.table]
	made, err := topology.New(s.table, topology.Config{PartitionWidth: time.Hour})
	if err != nil {
		s.t.Error(err)
		return
	}
	made.Seq, made.NextID = was.Seq+2, was.NextID
	made, err = made.Apply(topology.Create{Partitions: []topology.Partition{{ID: made.NextID, TimeHi: int64(time.Hour),
		Placements: []topology.Placement{{ID: point.PlacementID(1000), Server: "well"}}}}})
	if err != nil {
		s.t.Error(err)
		return
	}
	s.maps[s.table], *s.begun = made, made.Seq
}

// TestRowsOfADroppedTableDoNotComeBackInATableOfItsName: rows of a table waited for their leaders when its backup began. It was dropped, and made anew, before the backup ended, and a
// restore wrote the rows of the table that was dropped into the new one.
func TestRowsOfADroppedTableDoNotComeBackInATableOfItsName(t *testing.T) {
	for _, when := range []string{"before its turn", "after the staged rows"} {
		src := remaking{several{maps: tablesOf(t, 2, 1, "well")}, t, "t01", when, &sync.Mutex{}, new(uint64)}
		tables := src.backUp()
		for i, files := range []int{1, 0} {
			table := &tables[i]
			if len(table.Staged) != files || len(table.Partitions) != 1 || int(table.Partitions[0].ID) != i+1 {
				t.Errorf("%s: table %s has %d files of staged rows, not %d, and partitions %+v", when, table.Name, len(table.Staged), files, table.Partitions)
			}
		}
	}
}

// TestABackupOfATableHasItsStagedRowsWhenItIsDroppedLater: the partitions of a table were backed up, and it was dropped, and made anew, while those of another one were. The backup has
// the table that was dropped, and had it without the rows that waited for their leaders; none were named as missing.
func TestABackupOfATableHasItsStagedRowsWhenItIsDroppedLater(t *testing.T) {
	src := remaking{several{maps: tablesOf(t, 2, 1, "well")}, t, "t00", "after its partitions", &sync.Mutex{}, new(uint64)}
	for _, table := range src.backUp() {
		if len(table.Staged) != 1 || len(table.Partitions) != 1 || table.Partitions[0].ID != 1 {
			t.Errorf("table %s has %d files of staged rows, not 1, and partitions %+v", table.Name, len(table.Staged), table.Partitions)
		}
	}
}

// backUp returns the tables of a backup, which lacks nothing.
func (s remaking) backUp() []backup.Table {
	s.t.Helper()
	*s.begun = 1
	place := backup.Dir{FS: vfs.NewMem(), Path: "backups"}
	res, err := cluster.Write(s.t.Context(), s, place, cluster.Settings{Holder: "test", Log: slog.New(slog.DiscardHandler)})
	if err != nil || len(res.Missing) > 0 {
		s.t.Fatal(res, err)
	}
	_, m, err := backup.Load(s.t.Context(), place, res.Name, backup.Settings{})
	if err != nil || len(m.Tables) != 2 {
		s.t.Fatal(m, err)
	}
	return m.Tables
}
