package server_test

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"log/slog"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/brick"
	"github.com/spillwaydb/spillway/storage/server"
)

// lookups are what dashboards ask for: values for their variables, with and without a selector.
var lookups = []struct {
	name string
	ask  func(s *server.Server, q peer.Select) (int, error)
}{
	{"names", func(s *server.Server, q peer.Select) (int, error) {
		l, _, err := s.LabelNames(context.Background(), &q, 0)
		return len(l), err
	}},
	{"names of one metric", func(s *server.Server, q peer.Select) (int, error) {
		q.Matchers = []peer.Matcher{{Name: "__name__", Value: "node_metric_007_total"}}
		l, _, err := s.LabelNames(context.Background(), &q, 0)
		return len(l), err
	}},
	{"values of hostname", valuesOf("hostname")},
	{"values of __name__", valuesOf("__name__")},
	{"values of region", valuesOf("region")},
	{"values of hostname of one metric", valuesOf("hostname", peer.Matcher{Name: "__name__", Value: "node_metric_007_total"})},
	{"values of hostname of one metric and region", valuesOf("hostname", peer.Matcher{Name: "__name__", Value: "node_metric_007_total"}, peer.Matcher{Name: "region", Value: "region-3"})},
	{"values of __name__ of one host", valuesOf("__name__", peer.Matcher{Name: "hostname", Value: "host_33"})},
	{"first 3 series", firstSeries(3)},
	{"first 3 series, cut by the asker", firstSeries(0)},
	{"first 3 series of a team", firstSeries(3, peer.Matcher{Name: "team", Value: "team-3"})},
	{"first 3 series of a team, cut by the asker", firstSeries(0, peer.Matcher{Name: "team", Value: "team-3"})},
	{"first 10000 series", firstSeries(10000)},
	{"first 40000 series", firstSeries(40000)},
	{"series of one host", seriesOf(peer.Matcher{Name: "hostname", Value: "host_33"})},
	{"series of one metric and team", seriesOf(peer.Matcher{Name: "__name__", Value: "node_metric_007_total"}, peer.Matcher{Name: "team", Value: "team-3"})},
}

func valuesOf(name string, ms ...peer.Matcher) func(*server.Server, peer.Select) (int, error) {
	return func(s *server.Server, q peer.Select) (int, error) {
		q.Matchers = ms
		l, _, err := s.LabelValues(context.Background(), &q, name, 0)
		return len(l), err
	}
}

func seriesOf(ms ...peer.Matcher) func(*server.Server, peer.Select) (int, error) {
	return func(s *server.Server, q peer.Select) (n int, err error) {
		q.Matchers, q.LabelsOnly = ms, true
		set, err := s.Select(context.Background(), &q)
		if err != nil {
			return 0, err
		}
		for set.Next() {
			n++
		}
		return n, set.Close()
	}
}

// firstSeries asks for the first series; limit 0: it reads three of all.
func firstSeries(limit int, ms ...peer.Matcher) func(*server.Server, peer.Select) (int, error) {
	return func(s *server.Server, q peer.Select) (n int, err error) {
		q.Matchers, q.LabelsOnly, q.Limit = ms, true, limit
		set, err := s.Select(context.Background(), &q)
		if err != nil {
			return 0, err
		}
		for (limit > 0 || n < 3) && set.Next() {
			n++
		}
		return n, set.Close()
	}
}

// BenchmarkLookups asks a store for names, values and series after a restart: first is the first question of its kind, with nothing in
// memory, the rest are later ones. SPILLWAY_SERIES series (default 20,000) in one partition, and in SPILLWAY_PARTITIONS (default 50).
func BenchmarkLookups(b *testing.B) {
	series := number("SPILLWAY_SERIES", 20_000)
	b.Run("cold", func(b *testing.B) {
		dir, maps := b.TempDir(), newMap(b)
		p, err := openBig(dir, maps, 1)
		if err != nil {
			b.Fatal(err)
		}
		fill(b, p.server, series, 1)
		benchLookups(b, p, dir, maps, true)
	})
	b.Run("warm", func(b *testing.B) {
		dir, maps := b.TempDir(), newMap(b)
		p, err := openBig(dir, maps, 1)
		if err != nil {
			b.Fatal(err)
		}
		fill(b, p.server, series, 1)
		benchLookups(b, p, dir, maps, false)
	})
	b.Run("cold partitions", func(b *testing.B) {
		dir, n := b.TempDir(), number("SPILLWAY_PARTITIONS", 50)
		maps := manyPartitions(b, n)
		p, err := openBig(dir, maps, 1)
		if err != nil {
			b.Fatal(err)
		}
		fillEach(b, p.server, n, number("SPILLWAY_NARROW", 1010))
		benchLookups(b, p, dir, maps, true)
	})
}

func benchLookups(b *testing.B, p process, dir string, maps server.Maps, restart bool) {
	if restart {
		if err := p.server.FlushAll(b.Context(), false); err != nil {
			b.Fatal(err)
		}
		p.stop(b)
		var err error
		if p, err = openFor(dir, maps); err != nil {
			b.Fatal(err)
		}
	}
	defer func() { p.stop(b) }()
	q := peer.Select{Table: "t", Lo: 0, Hi: 1 << 62}
	for _, l := range lookups {
		from := time.Now()
		n, err := l.ask(p.server, q)
		if err != nil {
			b.Fatal(err)
		}
		first := time.Since(from)
		b.Run(l.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if got, err := l.ask(p.server, q); err != nil || got != n {
					b.Fatal(got, n, err)
				}
			}
			b.ReportMetric(float64(first.Microseconds()), "first-us")
			b.ReportMetric(float64(n), "found")
		})
	}
}

// openFor opens a store to be read.
func openFor(dir string, maps server.Maps) (p process, err error) {
	log := slog.New(slog.DiscardHandler)
	p.brick, err = brick.Open(brick.Deps{FS: vfs.Default, Log: log}, brick.Settings{DataDir: filepath.Join(dir, "data"), FreeBytesMin: 1})
	if err != nil {
		return p, err
	}
	p.server, err = server.Open(context.Background(), server.Deps{Brick: p.brick, Maps: maps, Log: log, Registerer: prometheus.NewRegistry()}, server.Settings{Server: "s1", Epoch: 2})
	return p, err
}

// manyPartitions is a map of partitions 10 s wide.
func manyPartitions(b *testing.B, n int) oneMap {
	m, err := topology.New("t", topology.Config{PartitionWidth: 10 * time.Second})
	if err != nil {
		b.Fatal(err)
	}
	var times []point.Nanos
	for i := range n {
		times = append(times, int64(i)*10e9)
	}
	return oneMap{m.Cover(times, func(p point.PartitionID) []topology.Placement {
		return []topology.Placement{{ID: point.PlacementID(100 + p), Server: "s1"}}
	})}
}

// fillEach writes a row of each series into each of n partitions.
func fillEach(b *testing.B, s *server.Server, n, series int) {
	ctx := context.Background()
	st, err := s.OpenStream(ctx, "t")
	if err != nil {
		b.Fatal(err)
	}
	var ids []point.SeriesID
	var values []float64
	for i := range series {
		if err := st.Define(ctx, []peer.Def{{ID: point.SeriesID(i), Labels: hostSeries(i)}}); err != nil {
			b.Fatal(err)
		}
		ids, values = append(ids, point.SeriesID(i)), append(values, float64(i))
	}
	for p := range n {
		times := make([]point.Nanos, series)
		for i := range times {
			times[i] = int64(p) * 10e9
		}
		if err := st.Insert(ctx, &peer.Insert{Partition: point.PartitionID(p + 1), Level: point.Received, Stamp: point.Stamp(1<<60) + point.Stamp(p)<<10, IDs: ids, Times: times, Values: values}); err != nil {
			b.Fatal(fmt.Errorf("partition %d: %w", p+1, err))
		}
	}
	if err := st.Close(); err != nil {
		b.Fatal(err)
	}
}
