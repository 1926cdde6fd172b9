package cluster_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/backup"
	"github.com/spillwaydb/spillway/storage/backup/cluster"
	"github.com/spillwaydb/spillway/storage/partition"
	"github.com/spillwaydb/spillway/storage/segment"
)

// silence is how long a call to a server that does not answer lasts.
const silence = 2 * time.Second

// several is a cluster with some tables. Server "frozen" leads the partitions with odd numbers, and has staged rows; it does not answer. Server "well" leads the others.
type several struct {
	maps   map[string]*topology.Map
	opened func() error // called before a file of "well" is opened
	well   *atomic.Int64
}

func (s several) Tables(context.Context) (names []string, _ error) {
	for n := range s.maps {
		names = append(names, n)
	}
	return names, nil
}
func (s several) Map(_ context.Context, table string) (*topology.Map, uint64, error) {
	return s.maps[table], 1, nil
}
func (s several) Stagers(context.Context, string) ([]topology.ServerID, error) {
	return []topology.ServerID{"frozen", "well"}, nil
}
func (s several) Leader(_ string, p *topology.Partition, _ int) (topology.ServerID, error) {
	return p.Placements[0].Server, nil
}
func (s several) CaughtUp(context.Context) error       { return nil }
func (s several) Unled(string, point.PartitionID) bool { return false }
func (s several) Families(context.Context, string) ([]point.MetadataRow, error) {
	return nil, nil
}
func (s several) Server(id topology.ServerID) (peer.Storage, bool) {
	if id == "frozen" {
		return frozenServer{}, true
	}
	return wellServer{s: s}, true
}

// frozenServer gives up each call after the silence, as a connection without a sign of life does.
type frozenServer struct{ peer.Storage }

func (frozenServer) silent(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(silence):
		return fault.Errorf(fault.Unavailable, "it sent nothing")
	}
}
func (f frozenServer) Stats(ctx context.Context, _ string, _ int) (*peer.Stats, error) {
	return nil, f.silent(ctx)
}
func (f frozenServer) OpenSnapshot(ctx context.Context, _ string, _ point.PartitionID) (peer.Snapshot, error) {
	return nil, f.silent(ctx)
}
func (f frozenServer) StagedFrames(ctx context.Context, _ string, _ func([]byte) error) error {
	return f.silent(ctx)
}

// wellServer has one segment in each partition, and a frame that waits in each table.
type wellServer struct {
	peer.Storage
	s several
}

func (wellServer) Stats(context.Context, string, int) (*peer.Stats, error) { return &peer.Stats{}, nil }
func (w wellServer) StagedFrames(_ context.Context, table string, give func([]byte) error) error {
	return give([]byte("a frame of " + table))
}
func (w wellServer) OpenSnapshot(_ context.Context, table string, id point.PartitionID) (peer.Snapshot, error) {
	body := bytes.Repeat(fmt.Appendf(nil, "%s/%d ", table, id), 1000)
	st := partition.State{Identity: partition.Identity{Table: table, Partition: id, Placement: point.PlacementID(xxhash.Sum64(body)), TimeHi: 1}}
	st.Segments = []partition.SegmentState{{Info: segment.Info{Meta: segment.Meta{ID: point.SegmentID{Epoch: 1, Seq: 1}, Major: true}, Size: int64(len(body)), Checksum: xxhash.Sum64(body)}}}
	_, entry := st.Entry()
	return wellSnapshot{w.s, entry, body}, nil
}

type wellSnapshot struct {
	s     several
	entry []byte
	body  []byte
}

func (s wellSnapshot) Entry() []byte { return s.entry }
func (s wellSnapshot) Open(point.SegmentID) (io.ReadCloser, error) {
	if s.s.opened != nil {
		if err := s.s.opened(); err != nil {
			return nil, err
		}
	}
	if s.s.well != nil {
		s.s.well.Add(int64(len(s.body)))
	}
	return io.NopCloser(bytes.NewReader(s.body)), nil
}
func (s wellSnapshot) Close() error { return nil }

// tablesOf makes tables with so many partitions each; every one is led by a server of the list, in turn.
func tablesOf(t *testing.T, tables, partitions int, servers ...topology.ServerID) map[string]*topology.Map {
	t.Helper()
	out := map[string]*topology.Map{}
	for n := range tables {
		name := fmt.Sprintf("t%02d", n)
		m, err := topology.New(name, topology.Config{PartitionWidth: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		var made topology.Create
		for i := range point.Nanos(partitions) {
			made.Partitions = append(made.Partitions, topology.Partition{
				ID: point.PartitionID(i + 1), TimeLo: i * int64(time.Hour), TimeHi: (i + 1) * int64(time.Hour),
				Placements: []topology.Placement{{ID: point.PlacementID(n*partitions) + point.PlacementID(i+1), Server: servers[int(i)%len(servers)]}},
			})
		}
		if out[name], err = m.Apply(made); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

// TestABackupIsMadeInMinutesWhileAServerIsFrozen: it waited a minute for each partition that the server led, and for its staged rows of each table, and the others waited
// with them.
func TestABackupIsMadeInMinutesWhileAServerIsFrozen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const tables, partitions = 5, 40
		src := several{maps: tablesOf(t, tables, partitions, "frozen", "well")}
		place := backup.Dir{FS: vfs.NewMem(), Path: "backups"}
		began := time.Now()
		res, err := cluster.Write(t.Context(), src, place, cluster.Settings{Holder: "test", Patience: time.Minute, Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took > 6*time.Minute {
			t.Errorf("the backup took %v", took)
		}
		staged, missing := 0, 0
		for _, text := range res.Missing {
			if strings.Contains(text, "wait on server frozen") {
				staged++
			} else if strings.Contains(text, "partition t") {
				missing++
			}
		}
		if staged != tables || missing != tables*partitions/2 || len(res.Missing) != staged+missing {
			t.Errorf("missing are %d tables' staged rows and %d partitions, want %d and %d: %.300q", staged, missing, tables, tables*partitions/2, res.Missing)
		}
		_, m, err := backup.Load(t.Context(), place, res.Name, backup.Settings{})
		if err != nil || len(m.Tables) != tables || len(m.Segments) != tables*partitions/2+tables {
			t.Fatalf("%d tables and %d segments, %v", len(m.Tables), len(m.Segments), err)
		}
		for i, table := range m.Tables {
			if table.Name != fmt.Sprintf("t%02d", i) || len(table.Partitions) != partitions || len(table.Staged) != 1 {
				t.Errorf("table %d: %s with %d partitions and %d files of staged rows", i, table.Name, len(table.Partitions), len(table.Staged))
			}
		}
	})
}

// TestABackupDoesNotWaitForAFrozenServerPerTable: each round asked it for the staged rows of every table, and each call lasts until the server is given up.
func TestABackupDoesNotWaitForAFrozenServerPerTable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const tables = 300
		began := time.Now()
		res, err := cluster.Write(t.Context(), several{maps: tablesOf(t, tables, 1, "well")}, backup.Dir{FS: vfs.NewMem(), Path: "backups"},
			cluster.Settings{Holder: "test", Patience: time.Minute, Log: slog.New(slog.DiscardHandler)})
		if err != nil || len(res.Missing) != tables {
			t.Errorf("%d tables' staged rows are missing, want %d, %v", len(res.Missing), tables, err)
		}
		if lasted := time.Since(began); lasted > 2*time.Minute {
			t.Errorf("the backup lasted %v", lasted)
		}
	})
}

// TestABackupGoesOnWhenAServerCannotOpenAFile: its error passed for one of the place with the backups, and there was no backup at all.
func TestABackupGoesOnWhenAServerCannotOpenAFile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var fails atomic.Int32
		src := several{maps: tablesOf(t, 1, 6, "well"), opened: func() error {
			if fails.Add(1) == 2 {
				return fault.Errorf(fault.Unavailable, "too many open files")
			}
			return nil
		}}
		res, err := cluster.Write(t.Context(), src, backup.Dir{FS: vfs.NewMem(), Path: "backups"}, cluster.Settings{Holder: "test", Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		if len(res.Missing) != 1 || !strings.Contains(res.Missing[0], "frozen") { // its staged rows
			t.Errorf("missing: %q", res.Missing)
		}
	})
}

// endingPlace is a directory in a process that ends after some files: the lock is gone with the process, and nothing is tidied.
type endingPlace struct {
	backup.Dir
	mu    sync.Mutex
	left  int
	ended context.CancelFunc
}

func (p *endingPlace) Put(ctx context.Context, name string, size int64, r io.Reader) error {
	p.mu.Lock()
	p.left--
	last := p.left < 0
	p.mu.Unlock()
	if last { // half of it is written under its temporary name
		f, err := p.FS.Create(p.Path+"/"+name+".tmp", vfs.WriteCategoryUnspecified)
		if err == nil {
			_, err = io.CopyN(f, r, size/2)
		}
		p.ended()
		return errors.Join(err, f.Close(), context.Canceled)
	}
	return p.Dir.Put(ctx, name, size, r)
}

// TestFilesOfAKilledBackupAreNotCopiedAgain: the next backup of the cluster reads none of the segments that the one before had copied.
func TestFilesOfAKilledBackupAreNotCopiedAgain(t *testing.T) {
	synctest.Test(t, filesOfAKilledBackup)
}

func filesOfAKilledBackup(t *testing.T) {
	const partitions, copied = 20, 11
	var read atomic.Int64
	src := several{maps: tablesOf(t, 1, partitions, "well"), well: &read}
	set := cluster.Settings{Holder: "test", Patience: time.Nanosecond, Log: slog.New(slog.DiscardHandler)}
	dir := backup.Dir{FS: vfs.NewMem(), Path: "backups"}
	ctx, cancel := context.WithCancel(t.Context())
	if res, err := cluster.Write(ctx, src, &endingPlace{Dir: dir, left: copied, ended: cancel}, set); !errors.Is(err, context.Canceled) {
		t.Fatalf("%+v, %v", res, err)
	}
	if list, err := backup.List(t.Context(), dir); err != nil || len(list) != 0 {
		t.Fatalf("there is a backup: %v, %v", list, err)
	}
	before, err := dir.List(t.Context(), backup.SegmentsDir)
	if err != nil {
		t.Fatal(err)
	}
	had := int64(0)
	for name, size := range before {
		if strings.HasSuffix(name, ".seg") {
			had += size
		}
	}
	read.Store(0)
	res, err := cluster.Write(t.Context(), src, dir, set)
	if err != nil {
		t.Fatal(err)
	}
	if had == 0 || res.Copied != res.Bytes-had || res.Segments != partitions+1 {
		t.Errorf("%d bytes of %d were there, and %d were copied: %+v", had, res.Bytes, res.Copied, res)
	}
	if checked, err := backup.Verify(t.Context(), dir, res.Name, backup.Settings{}); err != nil || len(checked.Missing) != len(res.Missing) {
		t.Errorf("verified: %+v, %v", checked, err)
	}
}

// emptyTarget is a cluster without tables. The test ends before rows are sent.
type emptyTarget struct{ cluster.Target }

func (emptyTarget) Refresh(_ context.Context, table string, _ uint64) (*topology.Map, error) {
	return nil, fault.Errorf(fault.NotFound, "table %q does not exist", table)
}
func (emptyTarget) Fit(c topology.Config) topology.Config { return c }
func (emptyTarget) Create(_ context.Context, table string, c topology.Config) (*topology.Map, error) {
	return topology.New(table, c)
}
func (emptyTarget) Change(context.Context, string, func(*topology.Map) ([]topology.Op, error)) (*topology.Map, error) {
	return nil, nil
}
func (emptyTarget) Describe(context.Context, string, []point.MetadataRow) error { return nil }

// breakingPlace is a place with backups. Reading a segment fails in the middle.
type breakingPlace struct{ backup.Dir }

func (p breakingPlace) Read(ctx context.Context, name string) (io.ReadCloser, int64, error) {
	f, size, err := p.Dir.Read(ctx, name)
	if err == nil && strings.HasPrefix(name, backup.SegmentsDir) {
		f = struct {
			io.Reader
			io.Closer
		}{io.MultiReader(io.LimitReader(f, size/2), away{}), f}
	}
	return f, size, err
}

type away struct{}

func (away) Read([]byte) (int, error) {
	return 0, fault.Errorf(fault.Unavailable, "the connection broke")
}

// TestTheDiskIsFreeAgainAfterARestoreThatFailed: the files that it had copied stayed in the data directory until the next restore, also where they were what had filled the disk.
func TestTheDiskIsFreeAgainAfterARestoreThatFailed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := vfs.NewMem()
		at := backup.Dir{FS: fs, Path: "backups"}
		src, log := several{maps: tablesOf(t, 1, 2, "well")}, slog.New(slog.DiscardHandler)
		if _, err := cluster.Write(t.Context(), src, at, cluster.Settings{Holder: "test", Log: log}); err != nil {
			t.Fatal(err)
		}
		if err := fs.MkdirAll("data", 0o755); err != nil {
			t.Fatal(err)
		}
		_, err := cluster.Restore(t.Context(), breakingPlace{at}, "", emptyTarget{}, cluster.RestoreSettings{FS: fs, Scratch: "data/restore", Log: log})
		if !fault.Is(err, fault.Unavailable) || !strings.Contains(err.Error(), "the connection broke") {
			t.Fatal(err)
		}
		if left, err := fs.List("data"); err != nil || len(left) > 0 {
			t.Errorf("the data directory has %v, %v", left, err)
		}
	})
}
