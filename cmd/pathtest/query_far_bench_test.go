package pathtest

import (
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/cmd/internal/fleet"
	"github.com/spillwaydb/spillway/cmd/internal/processtest"
	"github.com/spillwaydb/spillway/gateway/query"
	"github.com/spillwaydb/spillway/gateway/query/promqlsuite"
	"github.com/spillwaydb/spillway/protocols/budget"
	"github.com/spillwaydb/spillway/protocols/point"
)

// BenchmarkQueryFar compares queries of dashboards on storage in this process with the same storage behind a fan-out, over the network. It asks both in turns
// and reports the processor time of each, gateway and storage together, and the median ratio: other work on the machine changes these less than
// times on a clock. SPILLWAY_BENCH_HOSTS (200) of 101 series; SPILLWAY_BENCH_HOURS (2) of 10 s each; SPILLWAY_BENCH_WIDTH (24h) of partitions.
func BenchmarkQueryFar(b *testing.B) {
	number := func(name string, def int) int {
		if n, err := strconv.Atoi(os.Getenv(name)); err == nil {
			return n
		}
		return def
	}
	hosts, hours := number("SPILLWAY_BENCH_HOSTS", 200), number("SPILLWAY_BENCH_HOURS", 2)
	width, err := time.ParseDuration(os.Getenv("SPILLWAY_BENCH_WIDTH"))
	if err != nil {
		width = 24 * time.Hour
	}
	s := openSpread(b, 1, true, width, 1)
	defer func() { s.must(s.close()) }()
	end := time.Date(2026, 3, 1, 23, 0, 0, 0, time.UTC)
	fillSpread(b, s, end, hosts, hours, func(string) bool { return true })
	memory := budget.New("queries", 1<<30)
	var readers []*query.Reader
	for _, source := range []query.Source{s.parts["n1"].server, s.source} {
		r, err := query.New(query.Deps{Source: source, Memory: memory}, query.Settings{})
		s.must(err)
		readers = append(readers, r)
	}
	for _, q := range fleet.Queries(hours) {
		b.Run(q.Name, func(b *testing.B) {
			processtest.Pair{
				{"near-cpu-µs", func() { processtest.AskTable(b, readers[0], promqlsuite.Table, q, end) }},
				{"far-cpu-µs", func() { processtest.AskTable(b, readers[1], promqlsuite.Table, q, end) }},
			}.Compare(b)
		})
	}
}

// fillSpread writes the fleet's rows of some metrics through the gateway, and flushes all but the newest tenth.
func fillSpread(b *testing.B, s *spread, end time.Time, hosts, hours int, wanted func(metric string) bool) {
	ctx := b.Context()
	f := fleet.New(hosts, 1)
	t, err := s.forward.Table(ctx, promqlsuite.Table)
	s.must(err)
	dict := t.Dict()
	var ids []point.SeriesID
	for i := range f.Hosts {
		f.Each(&f.Hosts[i], func(m *fleet.Measurement, fd *fleet.Field, _ float64) {
			if !wanted(m.Name + "_" + fd.Name) {
				return
			}
			ids = append(ids, processtest.InternPairs(b, dict, fleet.Pairs(nil, &f.Hosts[i], m, fd)))
		})
	}
	scrapes := hours * 360
	for at := range scrapes {
		batch, n := point.GetBatch(dict), 0
		nanos := end.Add(time.Duration(at+1-scrapes) * 10 * time.Second).UnixNano()
		for i := range f.Hosts {
			f.Each(&f.Hosts[i], func(m *fleet.Measurement, fd *fleet.Field, v float64) {
				if !wanted(m.Name + "_" + fd.Name) {
					return
				}
				batch.Append(ids[n], nanos, v)
				n++
			})
		}
		s.must(t.Write(ctx, batch, point.All))
		batch.Put()
		if at%360 == 324 {
			for _, p := range s.parts {
				s.must(p.server.FlushAll(ctx, at > scrapes-360))
			}
		}
	}
}
