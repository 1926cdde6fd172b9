package process

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/spillwaydb/spillway/cmd/internal/fleet"
	"github.com/spillwaydb/spillway/cmd/internal/processtest"
	"github.com/spillwaydb/spillway/cmd/spillway/settings"
	"github.com/spillwaydb/spillway/gateway/query"
	"github.com/spillwaydb/spillway/gateway/tablename"
	"github.com/spillwaydb/spillway/protocols/budget"
	"github.com/spillwaydb/spillway/protocols/setting"
)

// BenchmarkQueryNarrow compares queries of dashboards on narrow partitions with the same rows in partitions of a day, both in this process and all of
// it flushed. It asks both in turns and reports the processor time of each and the median ratio. SPILLWAY_BENCH_HOSTS (200) of 101 series,
// SPILLWAY_BENCH_HOURS (12) of a row a minute, SPILLWAY_BENCH_WIDTH (10m); kept in SPILLWAY_BENCH_DIR, if set, for the next run.
func BenchmarkQueryNarrow(b *testing.B) {
	number := func(name string, def int) int {
		if n, err := strconv.Atoi(os.Getenv(name)); err == nil {
			return n
		}
		return def
	}
	hosts, hours := number("SPILLWAY_BENCH_HOSTS", benchHosts), number("SPILLWAY_BENCH_HOURS", 12)
	width, err := time.ParseDuration(os.Getenv("SPILLWAY_BENCH_WIDTH"))
	if err != nil {
		width = 10 * time.Minute
	}
	dir := os.Getenv("SPILLWAY_BENCH_DIR")
	if dir == "" {
		dir = b.TempDir()
	}
	end := time.Date(2026, 3, 1, 23, 0, 0, 0, time.UTC)
	var readers []*query.Reader
	for _, w := range []time.Duration{24 * time.Hour, width} {
		p := flushedStore(b, filepath.Join(dir, w.String()), w, end, hosts, hours)
		r, err := query.New(query.Deps{Source: p.server, Memory: budget.New("queries", 1<<30)}, query.Settings{Timeout: setting.Span(10 * time.Minute)})
		if err != nil {
			b.Fatal(err)
		}
		readers = append(readers, r)
	}
	for _, q := range fleet.Queries(hours) {
		b.Run(q.Name, func(b *testing.B) {
			for _, r := range readers {
				ask(b, r, q, end) // the first of each opens files
			}
			processtest.Pair{
				{"day-cpu-µs", func() { ask(b, readers[0], q, end) }},
				{"narrow-cpu-µs", func() { ask(b, readers[1], q, end) }},
			}.Compare(b)
		})
	}
}

// flushedStore opens a standalone's storage of such partitions, which holds the fleet's rows in segments alone.
func flushedStore(b *testing.B, dir string, width time.Duration, end time.Time, hosts, hours int) *standalone {
	cfg := config{Config: settings.Default()}
	cfg.DataDir, cfg.Tables.PartitionWidth = dir, setting.Span(width)
	cfg.Storage.NoSync, cfg.HTTP.Listen, cfg.Admin.Listen = true, "127.0.0.1:0", ""
	open := func() *standalone {
		p, err := openStandalone(b.Context(), &cfg, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
		if err != nil {
			b.Fatal(err)
		}
		return p
	}
	closing := func(p *standalone) {
		if err := p.close(); err != nil {
			b.Error(err)
		}
	}
	filled := filepath.Join(dir, "filled")
	if _, err := os.Stat(filled); err != nil {
		p := open()
		fillEvery(b, p, end, hosts, hours*60, time.Minute)
		if err := p.server.FlushAll(context.Background(), true); err != nil {
			b.Fatal(err)
		}
		closing(p)
		if err := os.WriteFile(filled, nil, 0o600); err != nil {
			b.Fatal(err)
		}
	}
	p := open() // anew: its partitions are cold
	b.Cleanup(func() { closing(p) })
	return p
}

// fillEvery writes so many rows of each series, the last at end.
func fillEvery(b *testing.B, p *standalone, end time.Time, hosts, scrapes int, every time.Duration) {
	ctx := context.Background()
	f := fleet.New(hosts, 1)
	t, err := p.forward.Table(ctx, tablename.Default)
	if err != nil {
		b.Fatal(err)
	}
	writeScrapes(b, t, f, scrapes, func(s int) int64 { return end.Add(time.Duration(s+1-scrapes) * every).UnixNano() }, func(s int) {
		if s%360 == 324 {
			if err := p.server.FlushAll(ctx, false); err != nil {
				b.Fatal(err)
			}
		}
	})
}
