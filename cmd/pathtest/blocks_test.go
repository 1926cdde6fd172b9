package pathtest

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/prometheus/promql"

	"github.com/spillwaydb/spillway/cmd/internal/fleet"
	"github.com/spillwaydb/spillway/gateway/query"
	"github.com/spillwaydb/spillway/gateway/query/promqlsuite"
	"github.com/spillwaydb/spillway/gateway/query/querytest"
	"github.com/spillwaydb/spillway/protocols/point"
)

// TestAQuestionThroughAClusterOpensTheBlocksOfOneProcess sends queries of dashboards to storage in this process, and to the same segments through a fan-out, over the network: as many
// blocks are decompressed and as many rows evaluated. First with empty caches, of two stores of the same rows; then with what earlier questions left in the cache of one store. Gateway and
// server have one worker each, so that the counts are always the same.
func TestAQuestionThroughAClusterOpensTheBlocksOfOneProcess(t *testing.T) {
	end := time.Unix(0, 0).Add(4000 * time.Second)
	for name, fill := range map[string]func(t *testing.T, s *spread){"one segment": fillHosts, "segments, a head and late rows": fillHostsLate} {
		t.Run(name, func(t *testing.T) {
			one, twin := openSpreadForOne(t), openSpreadForOne(t)
			defer func() { one.must(errors.Join(one.close(), twin.close())) }()
			fill(t, one)
			fill(t, twin)
			near, far, farTwin := readerForOne(t, one.parts["n1"].server), readerForOne(t, one.source), readerForOne(t, twin.source)
			cold, warm := readFor{}, readFor{}
			for _, q := range fleet.Queries(1) {
				if !slices.Contains(narrowQueries, q.Name) {
					continue
				}
				ask := func(s *spread, r *query.Reader) readFor {
					before := s.parts["n1"].opened(t)
					rows := askAt(t, r, q, end)
					after := s.parts["n1"].opened(t)
					return readFor{after.blocks - before.blocks, after.bytes - before.bytes, rows}
				}
				// The rows of the two stores have other stamps, so blocks are compared by their number.
				a, b := ask(one, near), ask(twin, farTwin)
				if a.blocks != b.blocks || a.rows != b.rows {
					t.Errorf("%s, asked first: one process reads %+v, a cluster %+v", q.Name, a, b)
				}
				cold.blocks += a.blocks
				ask(one, far)
				a, b = ask(one, near), ask(one, far)
				if a != b {
					t.Errorf("%s, asked again: one process reads %+v, a cluster %+v", q.Name, a, b)
				}
				warm.blocks += a.blocks
			}
			if n := plansOf(t, one.reg, "divided"); n < 20 || cold.blocks < 40 || warm.blocks < 40 {
				t.Errorf("%v plans were divided, %v and %v blocks opened: too few to prove anything", n, cold.blocks, warm.blocks)
			}
		})
	}
}

// narrowQueries are those of fleet.Queries that ask for few series, or few rows of each.
var narrowQueries = []string{
	"single-groupby-1-1-1", "single-groupby-1-1-12", "single-groupby-1-8-1", "single-groupby-5-1-1", "cpu-max-all-1", "cpu-max-all-8", "double-groupby-1",
	"high-cpu-1", "lastpoint", "lastpoint-all", "groupby-orderby-limit", "count-by-name", "count-hosts",
}

// openSpreadForOne opens one server, reached over the network, with one worker for each evaluation.
func openSpreadForOne(t *testing.T) *spread {
	s := &spread{tb: t, copies: 1, processors: 1}
	s.start(1, true, 24*time.Hour, 1)
	return s
}

func readerForOne(t *testing.T, src query.Source) *query.Reader {
	t.Helper()
	r, err := query.New(query.Deps{Source: src, Processors: 1}, query.Settings{})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// hostMetrics are the metrics of cmd/internal/fleet that narrowQueries name, and another one.
var hostMetrics = []string{
	"cpu_usage_user", "cpu_usage_system", "cpu_usage_idle", "cpu_usage_nice", "cpu_usage_iowait", "cpu_usage_irq", "cpu_usage_softirq", "cpu_usage_steal", "cpu_usage_guest",
	"cpu_usage_guest_nice", "mem_free",
}

// insertHosts writes a row every ten seconds in (from, to] of each metric of 50 hosts: no group of 32 series has one host twice.
func insertHosts(t *testing.T, s *spread, from, to int64) {
	t.Helper()
	b := point.GetBatch(point.NewDict(0))
	for i, metric := range hostMetrics {
		for host := range 50 {
			id := querytest.Intern(b.Dict, point.MakeLabels(point.MetricName, metric, "hostname", fmt.Sprint("host_", host)))
			for second := from + 10; second <= to; second += 10 {
				b.Append(id, second*1e9, float64(second*int64(host+i)%1009))
			}
		}
	}
	s.must(s.insert(t.Context(), b))
}

// fillHosts leaves all rows in one segment, of blocks that are too long to stay in the cache with their values.
func fillHosts(t *testing.T, s *spread) {
	for from := int64(0); from < 4000; from += 200 {
		insertHosts(t, s, from, from+200)
	}
	s.must(s.parts["n1"].server.FlushAll(t.Context(), true))
}

// fillHostsLate leaves rows in a large segment, a small one with late rows, and the head, which has late rows too.
func fillHostsLate(t *testing.T, s *spread) {
	for from := int64(0); from < 4000; from += 200 {
		insertHosts(t, s, from, from+200)
		if from == 2800 || from == 3600 {
			s.must(s.parts["n1"].server.FlushAll(t.Context(), from == 2800))
			insertHosts(t, s, from-705, from-695)
		}
	}
}

// readFor is how many blocks of segments were decompressed for a question, their bytes in the files, and the rows that were evaluated.
type readFor struct {
	blocks, bytes float64
	rows          int
}

// opened reads the counters of the server, which are of all questions.
func (p *part) opened(t *testing.T) readFor {
	t.Helper()
	return readFor{blocks: counted(t, p.metrics, "spillway_server_opened_blocks_total"), bytes: counted(t, p.metrics, "spillway_server_opened_block_bytes_total")}
}

// askAt runs a query up to end and returns how many rows its evaluation read.
func askAt(t *testing.T, r *query.Reader, q fleet.Query, end time.Time) (rows int) {
	t.Helper()
	ctx, explained := query.WithExplained(t.Context())
	var in promql.Query
	var err error
	if q.Span == 0 {
		in, err = r.Engine().NewInstantQuery(ctx, r.Table(promqlsuite.Table), nil, q.Expr, end)
	} else {
		in, err = r.Engine().NewRangeQuery(ctx, r.Table(promqlsuite.Table), nil, q.Expr, end.Add(-q.Span), end, q.Step)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	if err := in.Exec(ctx).Err; err != nil {
		t.Fatalf("%s: %v", q.Name, err)
	}
	for _, p := range explained.Show().Parts {
		rows += p.Rows
	}
	return rows
}
