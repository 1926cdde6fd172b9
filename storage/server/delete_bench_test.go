package server_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/brick"
	"github.com/spillwaydb/spillway/storage/server"
)

// BenchmarkDeleteOverPartitions deletes a series from a thousand partitions that have its rows in segments, on a real disk, and on one with slow fsyncs.
func BenchmarkDeleteOverPartitions(b *testing.B) {
	for _, by := range []time.Duration{0, 50 * time.Millisecond} {
		b.Run(fmt.Sprintf("fsync+%v", by), func(b *testing.B) { deleteOverPartitions(b, by) })
	}
}

// slowSyncs is a file system whose fsyncs last longer, once it has begun.
type slowSyncs struct {
	vfs.FS
	by *atomic.Int64 // nanoseconds
}

func (s slowSyncs) file(f vfs.File, err error) (vfs.File, error) {
	if err != nil {
		return nil, err
	}
	return slowSyncsFile{f, s.by}, nil
}

func (s slowSyncs) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	return s.file(s.FS.Create(name, c))
}

func (s slowSyncs) OpenReadWrite(name string, c vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	return s.file(s.FS.OpenReadWrite(name, c, opts...))
}

func (s slowSyncs) ReuseForWrite(from, to string, c vfs.DiskWriteCategory) (vfs.File, error) {
	return s.file(s.FS.ReuseForWrite(from, to, c))
}

type slowSyncsFile struct {
	vfs.File
	by *atomic.Int64
}

func (f slowSyncsFile) Sync() error { return f.late(f.File.Sync) }

func (f slowSyncsFile) SyncData() error { return f.late(f.File.SyncData) }

func (f slowSyncsFile) late(sync func() error) error {
	<-time.After(time.Duration(f.by.Load()))
	return sync()
}

func deleteOverPartitions(b *testing.B, by time.Duration) {
	const partitions = 1000
	fs := slowSyncs{vfs.Default, new(atomic.Int64)}
	s := overPartitions(b, brick.Deps{FS: fs}, filepath.Join(b.TempDir(), "data"), partitions)
	fs.by.Store(int64(by))
	defer fs.by.Store(0)
	n := 0
	for b.Loop() {
		n++ // another range each time, or nothing would be deleted
		if err := s.DeleteSeries(b.Context(), &peer.Select{Table: "t", Lo: int64(-n), Hi: 1 << 62, Matchers: []peer.Matcher{{Name: "i", Value: "0"}}}); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N)/partitions, "µs/partition")
}

// overPartitions returns a server with a row of one series in a segment of each of so many partitions.
func overPartitions(t testing.TB, d brick.Deps, dir string, partitions int) *server.Server {
	t.Helper()
	m, err := topology.New("t", topology.Config{PartitionWidth: 100 * time.Second})
	must(t, err)
	var times []point.Nanos
	for i := range partitions {
		times = append(times, int64(i)*100e9)
	}
	maps := oneMap{m.Cover(times, func(p point.PartitionID) []topology.Placement {
		return []topology.Placement{{ID: point.PlacementID(100 + p), Server: "s1"}}
	})}
	d.Log = slog.New(slog.NewTextHandler(io.Discard, nil))
	br, err := brick.Open(d, brick.Settings{DataDir: dir, FreeBytesMin: 1})
	must(t, err)
	s, err := server.Open(t.Context(), server.Deps{Brick: br, Maps: maps, Log: d.Log, Registerer: prometheus.NewRegistry()}, server.Settings{Server: "s1", Epoch: 1})
	must(t, err)
	t.Cleanup(func() { _, _ = s.Close(), br.Close() })
	stream, err := s.OpenStream(t.Context(), "t")
	must(t, err)
	must(t, stream.Define(t.Context(), []peer.Def{{ID: 0, Labels: point.MakeLabels("__name__", "m", "i", "0")}}))
	stamp := point.Stamp(0)
	for p := range maps.m.All() {
		stamp += 1024
		must(t, stream.Insert(t.Context(), &peer.Insert{Partition: p.ID, Stamp: stamp, Level: point.Received, IDs: []point.SeriesID{0}, Times: []point.Nanos{p.TimeLo}, Values: []float64{1}}))
	}
	must(t, s.FlushAll(context.Background(), false))
	return s
}
