package server_test

import (
	"context"
	"io"
	"log/slog"
	"path/filepath"
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

// BenchmarkDeleteOverPartitions deletes a series from a thousand partitions that have its rows in segments, on a real disk.
func BenchmarkDeleteOverPartitions(b *testing.B) {
	const partitions = 1000
	m, err := topology.New("t", topology.Config{PartitionWidth: 100 * time.Second})
	if err != nil {
		b.Fatal(err)
	}
	var times []point.Nanos
	for i := range partitions {
		times = append(times, int64(i)*100e9)
	}
	maps := oneMap{m.Cover(times, func(p point.PartitionID) []topology.Placement {
		return []topology.Placement{{ID: point.PlacementID(100 + p), Server: "s1"}}
	})}
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	br, err := brick.Open(brick.Deps{FS: vfs.Default, Log: log}, brick.Settings{DataDir: filepath.Join(b.TempDir(), "data"), FreeBytesMin: 1})
	if err != nil {
		b.Fatal(err)
	}
	s, err := server.Open(b.Context(), server.Deps{Brick: br, Maps: maps, Log: log, Registerer: prometheus.NewRegistry()}, server.Settings{Server: "s1", Epoch: 1})
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _, _ = s.Close(), br.Close() }()
	stream, err := s.OpenStream(b.Context(), "t")
	if err != nil {
		b.Fatal(err)
	}
	if err := stream.Define(b.Context(), []peer.Def{{ID: 0, Labels: point.MakeLabels("__name__", "m", "i", "0")}}); err != nil {
		b.Fatal(err)
	}
	stamp := point.Stamp(0)
	for p := range maps.m.All() {
		stamp += 1024
		if err := stream.Insert(b.Context(), &peer.Insert{Partition: p.ID, Stamp: stamp, Level: point.Received, IDs: []point.SeriesID{0}, Times: []point.Nanos{p.TimeLo}, Values: []float64{1}}); err != nil {
			b.Fatal(err)
		}
	}
	if err := s.FlushAll(context.Background(), false); err != nil {
		b.Fatal(err)
	}
	n := 0
	for b.Loop() {
		n++ // another range each time, or nothing would be deleted
		if err := s.DeleteSeries(b.Context(), &peer.Select{Table: "t", Lo: int64(-n), Hi: 1 << 62, Matchers: []peer.Matcher{{Name: "i", Value: "0"}}}); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N)/partitions, "µs/partition")
}
