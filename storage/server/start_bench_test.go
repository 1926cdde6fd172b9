package server_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"log/slog"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/storage/brick"
	"github.com/spillwaydb/spillway/storage/partition"
	"github.com/spillwaydb/spillway/storage/server"
)

// BenchmarkStart measures how long a store of SPILLWAY_SERIES series (default 10,000) needs to open when SPILLWAY_SCRAPES
// rows of each (default 150) are in its log alone, and when all are in segments.
func BenchmarkStart(b *testing.B) {
	series, scrapes := number("SPILLWAY_SERIES", 10_000), number("SPILLWAY_SCRAPES", 150)
	for _, flushed := range []bool{false, true} {
		b.Run(fmt.Sprintf("%d series, %d rows, flushed %v", series, series*scrapes, flushed), func(b *testing.B) {
			dir := b.TempDir()
			maps := newMap(b)
			p, err := openBig(dir, maps, 1)
			if err != nil {
				b.Fatal(err)
			}
			fill(b, p.server, series, scrapes)
			if flushed {
				if err := p.server.FlushAll(context.Background(), false); err != nil {
					b.Fatal(err)
				}
			}
			p.stop(b)
			epoch := point.Epoch(2)
			for b.Loop() {
				if p, err = openBig(dir, maps, epoch); err != nil {
					b.Fatal(err)
				}
				epoch++
				b.StopTimer()
				p.stop(b)
				b.StartTimer()
			}
		})
	}
}

func number(name string, def int) int {
	if n, err := strconv.Atoi(os.Getenv(name)); err == nil {
		return n
	}
	return def
}

// openBig opens a store on a real disk that does not flush by itself.
func openBig(dir string, maps server.Maps, epoch point.Epoch) (p process, err error) {
	log := slog.New(slog.DiscardHandler)
	p.brick, err = brick.Open(brick.Deps{FS: vfs.Default, Log: log}, brick.Settings{DataDir: filepath.Join(dir, "data"), FreeBytesMin: 1})
	if err != nil {
		return p, err
	}
	p.server, err = server.Open(context.Background(), server.Deps{Brick: p.brick, Maps: maps, Log: log, Registerer: prometheus.NewRegistry()},
		server.Settings{Server: "s1", Epoch: epoch, HeadBytesMax: 1 << 40, LogBytesMax: 1 << 40, Partition: partition.Settings{HeadBytesMax: 1 << 40}})
	return p, err
}

// fill writes scrapes of hosts of 101 series, 20 hosts an insert, counters that rise by a little.
func fill(t fataler, s *server.Server, series, scrapes int) {
	ctx := context.Background()
	st, err := s.OpenStream(ctx, "t")
	if err != nil {
		t.Fatal(err)
	}
	const perInsert = 2020
	stamp := point.Stamp(time.Now().UnixNano())
	for scrape := range scrapes {
		for first := 0; first < series; first += perInsert {
			in := peer.Insert{Partition: 1, Level: point.Received, Stamp: stamp}
			stamp += 1024
			var defs []peer.Def
			for i := first; i < min(first+perInsert, series); i++ {
				in.IDs = append(in.IDs, point.SeriesID(i))
				in.Times = append(in.Times, int64(scrape)*5e8)
				in.Values = append(in.Values, float64(scrape*(i%7)+i))
				if scrape == 0 {
					defs = append(defs, peer.Def{ID: point.SeriesID(i), Labels: hostSeries(i)})
				}
			}
			if err := st.Define(ctx, defs); err != nil {
				t.Fatal(err)
			}
			if err := st.Insert(ctx, &in); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := st.Close(); err != nil {
		t.Fatal(err)
	}
}

func hostSeries(i int) point.Labels {
	h := i / 101
	return point.MakeLabels("__name__", fmt.Sprintf("node_metric_%03d_total", i%101), "job", "node", "instance", fmt.Sprintf("host-%d:9100", h),
		"hostname", fmt.Sprintf("host_%d", h), "region", fmt.Sprint("region-", h%9), "datacenter", fmt.Sprint("dc-", h%27),
		"rack", fmt.Sprint(h%100), "os", []string{"Ubuntu16.04", "Debian12"}[h%2], "arch", "x64",
		"team", fmt.Sprint("team-", h%20), "service", fmt.Sprint("svc-", h%40), "environment", []string{"prod", "test"}[h%2])
}
