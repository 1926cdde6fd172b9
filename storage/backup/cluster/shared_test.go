package cluster_test

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"strings"
	"sync"
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

// sharing is a cluster whose partitions have a segment in common, as those that were one before, and one each.
type sharing struct {
	several
	*watch
}

// watch notes how long a snapshot was open without use.
type watch struct {
	mu     sync.Mutex
	idle   time.Duration // the longest
	copied int           // files that were read
}

func (s sharing) Stagers(context.Context, string) ([]topology.ServerID, error) { return nil, nil }
func (s sharing) Server(topology.ServerID) (peer.Storage, bool) {
	return sharingServer{wellServer{s: s.several}, s.watch}, true
}

type sharingServer struct {
	wellServer
	*watch
}

func (s sharingServer) OpenSnapshot(_ context.Context, table string, id point.PartitionID) (peer.Snapshot, error) {
	st := partition.State{Identity: partition.Identity{Table: table, Partition: id, Placement: point.PlacementID(id), TimeHi: 1}}
	snap := &sharingSnapshot{watch: s.watch, used: time.Now(), files: map[point.SegmentID]string{
		{Epoch: 1, Seq: 1}: strings.Repeat("shared", 100), {Epoch: 1, Seq: 2}: strings.Repeat(string(rune('a'+id)), 100),
	}}
	var base point.SegmentID
	for seq := range uint64(2) {
		at := point.SegmentID{Epoch: 1, Seq: seq + 1}
		body := snap.files[at]
		st.Segments = append(st.Segments, partition.SegmentState{Info: segment.Info{Meta: segment.Meta{ID: at, Base: base, Major: seq == 0}, Size: int64(len(body)), Checksum: xxhash.Sum64String(body)}})
		base = at
	}
	_, snap.entry = st.Entry()
	return snap, nil
}

type sharingSnapshot struct {
	*watch
	entry []byte
	used  time.Time
	files map[point.SegmentID]string
}

func (s *sharingSnapshot) use(file int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.idle = max(s.idle, time.Since(s.used))
	s.used, s.copied = time.Now(), s.copied+file
}
func (s *sharingSnapshot) Entry() []byte { return s.entry }
func (s *sharingSnapshot) Open(id point.SegmentID) (io.ReadCloser, error) {
	s.use(1)
	return &sharingFile{s, strings.NewReader(s.files[id])}, nil
}
func (s *sharingSnapshot) Close() error { s.use(0); return nil }

type sharingFile struct {
	s *sharingSnapshot
	io.Reader
}

func (f *sharingFile) Read(p []byte) (int, error) { f.s.use(0); return f.Reader.Read(p) }
func (f *sharingFile) Close() error               { return nil }

// slowPlace writes a hundred bytes in ten minutes.
type slowPlace struct{ backup.Dir }

func (p slowPlace) Put(ctx context.Context, name string, size int64, r io.Reader) error {
	var body bytes.Buffer
	for {
		n, err := io.CopyN(&body, r, 100)
		if n > 0 {
			time.Sleep(10 * time.Minute)
		}
		if err == io.EOF {
			return p.Dir.Put(ctx, name, size, &body)
		}
		if err != nil {
			return err
		}
	}
}

// TestASnapshotIsNotIdleWhileItsSegmentIsCopiedForAnotherPartition: it stayed open, without a request, until the other partition's copy of a large segment was there. The server
// closed it after half an hour, and the partition was backed up again, or missing.
func TestASnapshotIsNotIdleWhileItsSegmentIsCopiedForAnotherPartition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const partitions = 3
		src := sharing{several{maps: tablesOf(t, 1, partitions, "well")}, &watch{}}
		place := slowPlace{backup.Dir{FS: vfs.NewMem(), Path: "backups"}}
		var last backup.Progress
		set := cluster.Settings{Holder: "test", Log: slog.New(slog.DiscardHandler), Settings: backup.Settings{Progress: func(p backup.Progress) { last = p }}}
		res, err := cluster.Write(t.Context(), src, place, set)
		if err != nil || len(res.Missing) > 0 || res.Segments != 2*partitions || src.copied != 1+partitions {
			t.Errorf("%d segments of %d files: %+v, %v", res.Segments, src.copied, res, err)
		}
		if src.idle > 15*time.Minute {
			t.Errorf("a snapshot was open for %v without use", src.idle)
		}
		if last.Segments != last.SegmentsAll || last.Bytes != last.BytesAll || last.Segments != 2*partitions {
			t.Errorf("the progress ends at %+v", last)
		}
	})
}

// stalling is a cluster in which the server of partition 1 answers first, and does not get through with the shared segment.
type stalling struct {
	sharing
	late, stall func() // of the servers of the others, and of partition 1
}

func (s stalling) Server(topology.ServerID) (peer.Storage, bool) {
	return stallingServer{sharingServer{wellServer{s: s.several}, s.watch}, s}, true
}

type stallingServer struct {
	sharingServer
	of stalling
}

func (s stallingServer) OpenSnapshot(ctx context.Context, table string, id point.PartitionID) (peer.Snapshot, error) {
	snap, err := s.sharingServer.OpenSnapshot(ctx, table, id)
	if id == 1 {
		return stallingSnapshot{snap, s.of.stall}, err
	}
	s.of.late()
	return snap, err
}

type stallingSnapshot struct {
	peer.Snapshot
	stall func()
}

func (s stallingSnapshot) Open(id point.SegmentID) (io.ReadCloser, error) {
	f, err := s.Snapshot.Open(id)
	if id.Seq == 1 {
		f = stalledFile{f, s.stall}
	}
	return f, err
}

type stalledFile struct {
	io.ReadCloser
	stall func()
}

func (f stalledFile) Read([]byte) (int, error) {
	f.stall()
	return 0, fault.Errorf(fault.Unavailable, "the server does not answer")
}

// TestPartitionsAreInABackupThoughTheServerOfAnotherStalls: they have a segment in common. Those that waited for the copy of the other failed with it as often as it did, and were
// missing from the backup without a try of their own, though their servers were well.
func TestPartitionsAreInABackupThoughTheServerOfAnotherStalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const partitions = 4
		src := stalling{sharing{several{maps: tablesOf(t, 1, partitions, "well")}, &watch{}}, func() { time.Sleep(time.Second) }, func() { time.Sleep(2 * time.Hour) }}
		var last backup.Progress
		set := cluster.Settings{Holder: "test", Log: slog.New(slog.DiscardHandler), Settings: backup.Settings{Progress: func(p backup.Progress) { last = p }}}
		res, err := cluster.Write(t.Context(), src, backup.Dir{FS: vfs.NewMem(), Path: "backups"}, set)
		if err != nil || len(res.Missing) > 0 || res.Segments != 2*partitions {
			t.Errorf("%d segments, missing: %q, %v", res.Segments, res.Missing, err)
		}
		if last.Segments != last.SegmentsAll || last.Bytes != last.BytesAll {
			t.Errorf("the progress ends at %+v", last)
		}
	})
}

// replacing is a cluster whose partitions are all split, or whose table is dropped, while the second one has no leader.
type replacing struct {
	several
	drop bool
	mu   *sync.Mutex
}

func (s replacing) Stagers(context.Context, string) ([]topology.ServerID, error) { return nil, nil }
func (s replacing) Map(_ context.Context, table string) (*topology.Map, uint64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if m := s.maps[table]; m != nil {
		return m, 1, nil
	}
	return nil, 0, fault.Errorf(fault.NotFound, "table %q does not exist", table)
}

func (s replacing) Leader(table string, p *topology.Partition, _ int) (topology.ServerID, error) {
	if p.ID != 2 {
		return "well", nil
	}
	synctest.Wait() // until the first one is copied
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.maps[table]
	for id := point.PartitionID(1); id <= 2 && !s.drop; id++ {
		low := m.NextID
		child := func(id point.PartitionID) topology.Child {
			return topology.Child{ID: id, Placements: []topology.Placement{{ID: point.PlacementID(1000 + id), Server: "well"}}}
		}
		var err error
		at := topology.AtTime(int64(time.Hour)*int64(id-1) + int64(time.Hour/2))
		m, err = m.Apply(topology.SplitBegin{Partition: id, Split: topology.Split{At: at, Low: child(low), High: child(low + 1)}},
			topology.SplitFinalize{Partition: id, Low: low}, topology.UnloadFinal{Partition: id})
		if err != nil {
			return "", err
		}
	}
	if s.maps[table] = m; s.drop {
		delete(s.maps, table)
	}
	return "", fault.Errorf(fault.Unavailable, "no server leads it")
}

// TestABackupBooksNoPartitionsThatWereReplaced: what a partition lists stayed booked after it was split or dropped during the backup, until that was refused for memory.
func TestABackupBooksNoPartitionsThatWereReplaced(t *testing.T) {
	for name, drop := range map[string]bool{"split": false, "dropped": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := replacing{several{maps: tablesOf(t, 1, 2, "well")}, drop, new(sync.Mutex)}
				booked := func() (held int64) {
					var mu sync.Mutex
					set := cluster.Settings{Holder: "test", Log: slog.New(slog.DiscardHandler), Settings: backup.Settings{Memory: func(n int64) error {
						mu.Lock()
						defer mu.Unlock()
						held += n
						return nil
					}}}
					if res, err := cluster.Write(t.Context(), s, backup.Dir{FS: vfs.NewMem(), Path: "backups"}, set); err != nil || len(res.Missing) > 0 {
						t.Fatalf("missing: %q, %v", res.Missing, err)
					}
					return held
				}
				first := booked()
				if second := booked(); first != second {
					t.Errorf("%d bytes stay booked, and %d by a backup of what is left", first, second)
				}
			})
		})
	}
}
