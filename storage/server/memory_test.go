package server_test

import (
	"context"
	"log/slog"
	"slices"
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

// TestBackfillOverManyPartitionsStaysWithinItsMemory writes the same series into a hundred partitions, as a backfill of a
// hundred days does: idle partitions are flushed and drop their series, and no row is lost.
func TestBackfillOverManyPartitionsStaysWithinItsMemory(t *testing.T) {
	const partitions, series = 100, 1000
	const namesMax, headMax = 5 * series * 12, 8 << 20
	maps := newMap(t)
	var times []point.Nanos
	for i := range partitions {
		times = append(times, int64(i)*100e9)
	}
	maps.m = maps.m.Cover(times, func(p point.PartitionID) []topology.Placement {
		return []topology.Placement{{ID: point.PlacementID(100 + p), Server: "s1"}}
	})
	log, registry := slog.New(slog.DiscardHandler), prometheus.NewRegistry()
	b, err := brick.Open(brick.Deps{FS: vfs.NewMem(), Log: log}, brick.Settings{DataDir: "data", FreeBytesMin: 1})
	if err != nil {
		t.Fatal(err)
	}
	s, err := server.Open(t.Context(), server.Deps{Brick: b, Maps: maps, Log: log, Registerer: registry},
		server.Settings{Server: "s1", Epoch: 1, HeadBytesMax: headMax, NamesBytesMax: namesMax, NamesIdleMin: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer process{b, s}.stop(t)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	st, err := s.OpenStream(ctx, "t")
	if err != nil {
		t.Fatal(err)
	}
	var defs []peer.Def
	in := peer.Insert{}
	for i := range series {
		defs = append(defs, peer.Def{ID: point.SeriesID(i), Labels: labelsOf(i)})
		in.IDs, in.Times, in.Values = append(in.IDs, point.SeriesID(i)), append(in.Times, 0), append(in.Values, float64(i))
	}
	if err := st.Define(ctx, defs); err != nil {
		t.Fatal(err)
	}
	most := 0.0
	for _, p := range slices.Collect(maps.m.All()) {
		in.Partition, in.Stamp = p.ID, in.Stamp+1024
		for i := range in.Times {
			in.Times[i] = p.TimeLo + int64(i)
		}
		for st.Insert(ctx, &in) != nil { // throttled: maintenance has to catch up
			time.Sleep(10 * time.Millisecond)
		}
		most = max(most, gaugeOf(t, registry, "spillway_server_head_bytes"))
		for gaugeOf(t, registry, "spillway_server_names_bytes") > 2*namesMax { // the growth between two rounds of maintenance
			time.Sleep(10 * time.Millisecond)
		}
	}
	for gaugeOf(t, registry, "spillway_server_names_bytes") > namesMax {
		time.Sleep(10 * time.Millisecond)
	}
	if one := 200_000.0; most > headMax+one {
		t.Errorf("heads held %.0f bytes, at most %d are allowed", most, headMax)
	}
	stop()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if err := st.Close(); err != nil {
		t.Fatal(err)
	}
	stats, err := s.Stats(t.Context(), "t", 0)
	if err != nil || stats.HeadRows+stats.SegmentRows != partitions*series {
		t.Errorf("%d rows in heads and %d in segments, %v; want %d", stats.HeadRows, stats.SegmentRows, err, partitions*series)
	}
}

func gaugeOf(t *testing.T, r *prometheus.Registry, name string) float64 {
	t.Helper()
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			return f.GetMetric()[0].GetGauge().GetValue()
		}
	}
	t.Fatalf("no metric %s", name)
	return 0
}
