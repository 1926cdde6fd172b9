package pathtest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"

	"github.com/spillwaydb/spillway/cmd/internal/processtest"
	"github.com/spillwaydb/spillway/gateway/query"
	"github.com/spillwaydb/spillway/gateway/query/promqlsuite"
	"github.com/spillwaydb/spillway/gateway/query/querytest"
)

// TestServersEvaluateWhatOneProcessDoes sends random queries to one server, read without a fan-out, and through fan-outs to one server and to three,
// with partitions of 100 s, so that windows cross their edges everywhere. One server's answers have the same bits; those of
// three differ by the order in which sums are added.
func TestServersEvaluateWhatOneProcessDoes(t *testing.T) {
	one, three := openSpread(t, 1, true, 100*time.Second, 1), openSpread(t, 3, true, 100*time.Second, 1)
	ring := openSpread(t, 3, true, 800*time.Second, 4)
	rows := &spread{tb: t, copies: 1, stretchTime: 24 * time.Hour} // rows are read rather than parts evaluated
	rows.start(3, true, 100*time.Second, 1)
	defer func() { one.must(errors.Join(one.close(), three.close(), ring.close(), rows.close())) }()
	alone := readerOf(t, one.parts["n1"].server)
	clusters := []struct {
		name      string
		reader    *query.Reader
		tolerance float64
	}{
		{"one server", readerOf(t, one.source), 0},
		{"three servers", readerOf(t, three.source), 1e-12},
		{"three servers and a cut ring", readerOf(t, ring.source), 1e-12},
		{"three servers that send rows", readerOf(t, rows.source), 0},
	}
	rng := rand.New(rand.NewPCG(17, 18))
	for range 30 {
		b := randomBatch(rng)
		b.Hists = nil
		for _, s := range []*spread{one, three, ring, rows} {
			one.must(s.insert(t.Context(), b))
		}
	}
	for range 400 {
		q := randomQuery(rng)
		want := q.run(t, alone)
		for _, to := range clusters {
			got := q.run(t, to.reader)
			if d := querytest.Diff(want, got, to.tolerance); d != "" {
				t.Errorf("%s on %s: %s", q, to.name, d)
			}
		}
	}
	for name, s := range map[string]*spread{"one server": one, "three servers": three, "a cut ring": ring} {
		if n := plansOf(t, s.reg, "divided"); n < 40 {
			t.Errorf("%s: only %v plans were divided", name, n)
		}
	}
}

// TestAnExplanationShowsWhatRanWhere: steps that one server evaluated, and rows read for those that reach over an edge.
func TestAnExplanationShowsWhatRanWhere(t *testing.T) {
	s := openSpread(t, 3, true, 800*time.Second, 1)
	defer func() { s.must(s.close()) }()
	rng := rand.New(rand.NewPCG(19, 20))
	for range 10 {
		s.must(s.insert(t.Context(), randomBatch(rng)))
	}
	r, err := query.New(query.Deps{Source: s.source}, query.Settings{})
	s.must(err)
	q, err := r.Engine().NewRangeQuery(t.Context(), r.Table(promqlsuite.Table), nil, "sum by (i) (rate(m1[2m]))", time.Unix(300, 0), time.Unix(2600, 0), 20*time.Second)
	s.must(err)
	ctx, explained := query.WithExplained(t.Context())
	s.must(q.Exec(ctx).Err)
	shown := explained.Show()
	at, rows := map[string]int{}, 0
	for _, p := range shown.Parts {
		if at[p.What+p.Server]++; p.Rows == 0 || p.Series == 0 || p.To < p.From || p.Seconds <= 0 || (p.What == "evaluated") != (p.Bytes > 0) {
			t.Errorf("part %+v", p)
		}
		rows += p.Rows
	}
	if len(at) < 3 || at["rows"] == 0 || rows < 500 || shown.Columns != "whole" {
		t.Errorf("%d rows, %v, %+v", rows, at, shown)
	}
}

// plansOf counts plans by their outcome.
func plansOf(t *testing.T, reg *prometheus.Registry, outcome string) float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != "spillway_fanout_plans_total" {
			continue
		}
		for _, m := range f.GetMetric() {
			if m.GetLabel()[0].GetValue() == outcome {
				return m.GetCounter().GetValue()
			}
		}
	}
	t.Fatalf("no plans are counted: %v", testutil.CollectAndCount(reg))
	return 0
}

// chainQuery is a query of selectors, functions, operators with numbers, and aggregations.
type chainQuery struct {
	expr             string
	start, end, step time.Duration // step 0: at start alone
}

func (q chainQuery) String() string {
	return fmt.Sprintf("%s from %v to %v by %v", q.expr, q.start, q.end, q.step)
}

func randomQuery(rng *rand.Rand) chainQuery {
	q := processtest.RandomQuery(rng)
	return chainQuery{q.Expr, q.Start, q.End, q.Step}
}

// readerOf makes a reader for all queries of a test: with its engines and their metrics it costs as much as some queries do.
func readerOf(t *testing.T, src query.Source) *query.Reader {
	t.Helper()
	r, err := query.New(query.Deps{Source: src, Processors: 2}, query.Settings{})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func (q chainQuery) run(t *testing.T, r *query.Reader) *promql.Result {
	t.Helper()
	at := time.UnixMilli(q.start.Milliseconds())
	var in promql.Query
	var err error
	if q.step == 0 {
		in, err = r.Engine().NewInstantQuery(t.Context(), r.Table(promqlsuite.Table), nil, q.expr, at)
	} else {
		in, err = r.Engine().NewRangeQuery(t.Context(), r.Table(promqlsuite.Table), nil, q.expr, at, time.UnixMilli(q.end.Milliseconds()), q.step)
	}
	if err != nil {
		t.Fatalf("%s: %v", q, err)
	}
	res := in.Exec(t.Context())
	sortSamples(res)
	if res.Err != nil && !strings.Contains(res.Err.Error(), "labelset") {
		t.Errorf("%s: %v", q, res.Err)
	}
	return res
}

// sortSamples removes the order of an evaluation at one time.
func sortSamples(r *promql.Result) {
	if v, ok := r.Value.(promql.Vector); ok {
		slices.SortFunc(v, func(a, b promql.Sample) int { return labels.Compare(a.Metric, b.Metric) })
	}
}
