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
	"github.com/spillwaydb/spillway/gateway/forward"
	"github.com/spillwaydb/spillway/gateway/query"
	"github.com/spillwaydb/spillway/gateway/tablename"
	"github.com/spillwaydb/spillway/protocols/budget"
	"github.com/spillwaydb/spillway/protocols/point"
)

// BenchmarkQuery runs queries of dashboards on a standalone's storage, with columns and without, in process. 200 hosts of
// 101 series; SPILLWAY_BENCH_HOURS (2) of 10 s each; kept in SPILLWAY_BENCH_DIR, if set, for the next run.
func BenchmarkQuery(b *testing.B) {
	hours := 2
	if n, err := strconv.Atoi(os.Getenv("SPILLWAY_BENCH_HOURS")); err == nil {
		hours = n
	}
	p, end := benchStore(b, hours)
	for _, mode := range []struct {
		name  string
		plain bool
	}{{"columns", false}, {"plain", true}} {
		r, err := query.New(query.Deps{Source: p.server, Memory: budget.New("queries", 1<<30)}, query.Settings{PlainEngine: mode.plain})
		if err != nil {
			b.Fatal(err)
		}
		for _, q := range fleet.Queries(hours) {
			b.Run(q.Name+"/"+mode.name, func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					ask(b, r, q, end)
				}
			})
		}
	}
}

func ask(b *testing.B, r *query.Reader, q fleet.Query, end time.Time) {
	processtest.AskTable(b, r, tablename.Default, q, end)
}

// benchStore opens a standalone's storage, and fills it when it is new. The newest tenth is left unflushed.
func benchStore(b *testing.B, hours int) (*standalone, time.Time) {
	cfg := config{Config: settings.Default()}
	cfg.DataDir = b.TempDir()
	if dir := os.Getenv("SPILLWAY_BENCH_DIR"); dir != "" {
		cfg.DataDir = dir
	}
	cfg.Storage.NoSync, cfg.HTTP.Listen, cfg.Admin.Listen = true, "127.0.0.1:0", ""
	_, err := os.Stat(filepath.Join(cfg.DataDir, "filled"))
	p, openErr := openStandalone(b.Context(), &cfg, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	if openErr != nil {
		b.Fatal(openErr)
	}
	b.Cleanup(func() {
		if err := p.close(); err != nil {
			b.Error(err)
		}
	})
	end := time.Date(2026, 3, 1, 23, 0, 0, 0, time.UTC)
	if err != nil {
		fill(b, p, end, hours)
		if err := os.WriteFile(filepath.Join(cfg.DataDir, "filled"), nil, 0o600); err != nil {
			b.Fatal(err)
		}
	}
	return p, end
}

const benchHosts = 200

func fill(b *testing.B, p *standalone, end time.Time, hours int) {
	ctx := context.Background()
	t, err := p.forward.Table(ctx, tablename.Default)
	if err != nil {
		b.Fatal(err)
	}
	scrapes := hours * 360
	writeScrapes(b, t, fleet.New(benchHosts, 1), scrapes, func(s int) int64 { return end.Add(time.Duration(s+1-scrapes) * 10 * time.Second).UnixNano() }, func(s int) {
		if s%360 == 324 {
			if err := p.server.FlushAll(ctx, s > scrapes-360); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// writeScrapes writes a row of each series of the fleet at each scrape's time, and calls after behind each.
func writeScrapes(b *testing.B, t *forward.Table, f *fleet.Fleet, scrapes int, at func(scrape int) int64, after func(scrape int)) {
	dict, batch := t.Dict(), point.GetBatch(t.Dict())
	var ids []point.SeriesID
	for i := range f.Hosts {
		f.Each(&f.Hosts[i], func(m *fleet.Measurement, fd *fleet.Field, _ float64) {
			ids = append(ids, processtest.InternPairs(b, dict, fleet.Pairs(nil, &f.Hosts[i], m, fd)))
		})
	}
	for s := range scrapes {
		n := 0
		for i := range f.Hosts {
			f.Each(&f.Hosts[i], func(_ *fleet.Measurement, _ *fleet.Field, v float64) {
				batch.Append(ids[n], at(s), v)
				n++
			})
		}
		if err := t.Write(context.Background(), batch, point.All); err != nil {
			b.Fatal(err)
		}
		batch.Put()
		batch = point.GetBatch(dict)
		after(s)
	}
}
