package cluster_test

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/backup"
	"github.com/spillwaydb/spillway/storage/backup/cluster"
)

// quiet is a cluster with one table, of which every second partition never had a leader, and the others have none now.
type quiet struct{ m *topology.Map }

func (q quiet) Tables(context.Context) ([]string, error)                      { return []string{q.m.Table}, nil }
func (q quiet) Map(context.Context, string) (*topology.Map, uint64, error)    { return q.m, 1, nil }
func (q quiet) Stagers(context.Context, string) ([]topology.ServerID, error)  { return nil, nil }
func (q quiet) Server(topology.ServerID) (peer.Storage, bool)                 { return nil, false }
func (q quiet) Families(context.Context, string) ([]point.MetadataRow, error) { return nil, nil }
func (q quiet) CaughtUp(context.Context) error                                { return nil }
func (q quiet) Unled(_ string, id point.PartitionID) bool                     { return id%2 == 0 }
func (q quiet) Leader(string, *topology.Partition, int) (topology.ServerID, error) {
	return "", fault.Errorf(fault.Unavailable, "no server leads it")
}

// Many partitions are backed up at a time: each is in the manifest once, and those that could not be had are named.
func TestEveryPartitionOfATableIsInItsBackup(t *testing.T) {
	const partitions = 400
	m, err := topology.New("cpu", topology.Config{PartitionWidth: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	var made topology.Create
	for i := range point.Nanos(partitions) {
		made.Partitions = append(made.Partitions, topology.Partition{
			ID: point.PartitionID(i + 1), TimeLo: i * int64(time.Hour), TimeHi: (i + 1) * int64(time.Hour),
			Placements: []topology.Placement{{ID: point.PlacementID(i + 1), Server: "a"}},
		})
	}
	if m, err = m.Apply(made); err != nil {
		t.Fatal(err)
	}
	place := backup.Dir{FS: vfs.NewMem(), Path: "backups"}
	res, err := cluster.Write(t.Context(), quiet{m}, place, cluster.Settings{Holder: "test", Patience: time.Nanosecond, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	if len(res.Missing) != partitions/2 {
		t.Errorf("%d partitions are named as missing, want %d: %.200q", len(res.Missing), partitions/2, res.Missing)
	}
	_, got, err := backup.Load(t.Context(), place, res.Name, backup.Settings{})
	if err != nil || len(got.Tables) != 1 {
		t.Fatalf("%+v, %v", got, err)
	}
	if n := len(got.Tables[0].Partitions); n != partitions {
		t.Errorf("the manifest has %d partitions, want %d", n, partitions)
	}
	for i, p := range got.Tables[0].Partitions {
		if p.ID != point.PartitionID(i+1) {
			t.Fatalf("partition %d is number %d of the manifest", p.ID, i)
		}
	}
}

// TestABackupThatHasNoMemoryEndsAndSaysSo: what a backup lists of its partitions was in no account of the gateway that makes it. One for which there is no memory is not made, and
// does not name its partitions as missing.
func TestABackupThatHasNoMemoryEndsAndSaysSo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := several{maps: tablesOf(t, 1, 20, "well")}
		var mu sync.Mutex
		held, most := int64(0), int64(1<<20)
		set := cluster.Settings{Holder: "test", Log: slog.New(slog.DiscardHandler), Settings: backup.Settings{Memory: func(n int64) error {
			mu.Lock()
			defer mu.Unlock()
			if held+n > most {
				return fault.Errorf(fault.Throttled, "no memory is left")
			}
			held += n
			return nil
		}}}
		place := backup.Dir{FS: vfs.NewMem(), Path: "backups"}
		if _, err := cluster.Write(t.Context(), s, place, set); err != nil || held < backup.SegmentsBytes(20) {
			t.Errorf("%d bytes are booked for 20 partitions: %v", held, err)
		}
		most, held = held/2, 0
		if res, err := cluster.Write(t.Context(), s, place, set); !fault.Is(err, fault.Throttled) || !strings.Contains(err.Error(), "no memory is left") {
			t.Errorf("missing: %q, %v", res.Missing, err)
		}
	})
}
