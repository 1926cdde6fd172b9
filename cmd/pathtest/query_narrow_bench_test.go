package pathtest

import (
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/cmd/internal/fleet"
	"github.com/spillwaydb/spillway/cmd/internal/processtest"
	"github.com/spillwaydb/spillway/gateway/query"
	"github.com/spillwaydb/spillway/gateway/query/promqlsuite"
	"github.com/spillwaydb/spillway/protocols/budget"
	"github.com/spillwaydb/spillway/protocols/point"
)

// BenchmarkQueryNarrowFar compares queries of an hour over partitions of ten minutes, on storage in this process and on three servers behind a fan-out, over the network. Where partitions that
// follow each other are mostly on the same server, a plan has few stretches; where they are on different ones, it has many. It asks both in turns, and reports the processor time of
// each, gateway and storage together, and the median ratio. SPILLWAY_BENCH_HOSTS (20), of the metrics that the queries name, each 10 s.
func BenchmarkQueryNarrowFar(b *testing.B) {
	hosts := 20
	if n, err := strconv.Atoi(os.Getenv("SPILLWAY_BENCH_HOSTS")); err == nil {
		hosts = n
	}
	var queries []fleet.Query
	var named strings.Builder
	for _, q := range fleet.Queries(2) {
		if q.Span == time.Hour {
			queries = append(queries, q)
			named.WriteString(q.Expr)
		}
	}
	for _, of := range []struct {
		name string
		lies func(point.PartitionID) int
	}{
		{"three-edges", func(p point.PartitionID) int { return int(p) / 2 }},
		{"all-edges", func(p point.PartitionID) int { return int(p) }},
	} {
		b.Run(of.name, func(b *testing.B) {
			end := time.Date(2026, 3, 1, 23, 0, 0, 0, time.UTC)
			var readers []*query.Reader
			for _, n := range []int{1, 3} {
				s := &spread{tb: b, copies: 1, stretchTime: 20 * time.Minute, lies: of.lies}
				s.start(n, true, 10*time.Minute, 1)
				defer func() { s.must(s.close()) }()
				fillSpread(b, s, end, hosts, 2, func(metric string) bool { return strings.Contains(named.String(), metric) })
				var source query.Source = s.source
				if n == 1 {
					source = s.parts["n1"].server
				}
				r, err := query.New(query.Deps{Source: source, Memory: budget.New("queries", 1<<30)}, query.Settings{})
				s.must(err)
				readers = append(readers, r)
			}
			for _, q := range queries {
				b.Run(q.Name, func(b *testing.B) {
					processtest.Pair{
						{"one-cpu-µs", func() { processtest.AskTable(b, readers[0], promqlsuite.Table, q, end) }},
						{"three-cpu-µs", func() { processtest.AskTable(b, readers[1], promqlsuite.Table, q, end) }},
					}.Compare(b)
				})
			}
		})
	}
}
