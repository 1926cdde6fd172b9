package query_test

import (
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/storage"
	"go.uber.org/goleak"

	"github.com/spillwaydb/spillway/gateway/query"
	"github.com/spillwaydb/spillway/gateway/query/querytest"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fleet is three boats of ten rows each, in tables default and navy.
func fleet(t testing.TB) *querytest.Store {
	t.Helper()
	st := querytest.NewStore()
	for _, table := range []string{"default", "navy"} {
		b := point.GetBatch(point.NewDict(0))
		for _, boat := range []string{"anna", "berta", "clara"} {
			id := querytest.Intern(b.Dict, point.MakeLabels("__name__", "miles", "boat", boat))
			for i := range int64(10) {
				b.Append(id, point.NanosOf(i*1000)+i, float64(i))
			}
		}
		if err := querytest.Inserter(st, table, 1)(context.Background(), b); err != nil {
			t.Fatal(err)
		}
	}
	return st
}

func newReader(t testing.TB, src query.Source, s query.Settings) *query.Reader {
	t.Helper()
	r, err := query.New(query.Deps{Source: src}, s)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func named(name string) []*labels.Matcher {
	return []*labels.Matcher{labels.MustNewMatcher(labels.MatchEqual, "__name__", name)}
}

// asked records a source's selects.
type asked struct {
	*querytest.Store
	last *peer.Select
}

func (a *asked) Select(ctx context.Context, q *peer.Select) (peer.SeriesSet, error) {
	a.last = q
	return a.Store.Select(ctx, q)
}

func TestSelectCoversWholeMilliseconds(t *testing.T) {
	src := &asked{Store: fleet(t)}
	table := newReader(t, src, query.Settings{}).Table("navy")
	f := func(mint, maxt int64, hints *storage.SelectHints, lo, hi point.Nanos, labelsOnly bool) {
		t.Helper()
		q, _ := table.Querier(mint, maxt)
		defer q.Close()
		q.Select(context.Background(), true, hints, named("miles")...).Next()
		if s := src.last; s.Lo != lo || s.Hi != hi || s.LabelsOnly != labelsOnly || s.Table != "navy" || s.Partitions != nil {
			t.Errorf("[%d, %d] %+v: asked %+v", mint, maxt, hints, s)
		}
	}
	f(1, 2, nil, 1e6, 2_999_999, false)
	f(-2, -1, nil, -2e6, -1, false)
	f(math.MinInt64, math.MaxInt64, nil, math.MinInt64, math.MaxInt64, false)
	f(0, 9, &storage.SelectHints{Start: 3, End: 4, Func: "rate"}, 3e6, 4_999_999, false)
	f(0, 9, &storage.SelectHints{Start: 3, End: 4, Func: "series"}, 3e6, 4_999_999, true)
}

func TestSelectHonoursTheLimitAndClosesItsSets(t *testing.T) {
	st := fleet(t)
	q, _ := newReader(t, st, query.Settings{}).Table("navy").Querier(0, 5000)
	set := q.Select(context.Background(), false, &storage.SelectHints{End: 5000, Limit: 2}, named("miles")...)
	var kept []storage.Series
	for set.Next() {
		kept = append(kept, set.At())
	}
	if len(kept) != 2 || set.Err() != nil || set.Next() {
		t.Errorf("%d series, error %v", len(kept), set.Err())
	}
	if st.Unclosed() != 0 {
		t.Error("a set that ended was left open")
	}
	half := q.Select(context.Background(), false, nil, named("miles")...)
	half.Next()
	q.Select(context.Background(), false, nil, named("miles")...) // never moved
	if err := q.Close(); err != nil || st.Unclosed() != 0 {
		t.Errorf("%d sets open, error %v", st.Unclosed(), err)
	}
	for i, s := range kept { // series outlive their set
		if got := readAll(s.Iterator(nil)); len(got) != 6 || s.Labels().Get("boat") != []string{"anna", "berta"}[i] {
			t.Errorf("%v: %v", s.Labels(), got)
		}
	}
}

func TestErrorsKeepTheirKind(t *testing.T) {
	r := newReader(t, fleet(t), query.Settings{RowsMax: 15})
	f := func(table string, kind fault.Kind) {
		t.Helper()
		q, _ := r.Table(table).Querier(0, 9000)
		defer q.Close()
		set := q.Select(context.Background(), true, nil, named("miles")...)
		for set.Next() {
		}
		var store promql.ErrStorage
		if !errors.As(set.Err(), &store) || !fault.Is(store.Err, kind) {
			t.Errorf("%s: %v", table, set.Err())
		}
	}
	f("navy", fault.TooLarge)
	f("nowhere", fault.NotFound)
}

func TestDefaultTableIsAlwaysThere(t *testing.T) {
	ctx, all := context.Background(), [][]*labels.Matcher{named("miles")}
	r := newReader(t, querytest.NewStore(), query.Settings{})
	look := map[string]func(*query.Table) error{
		"series":    func(t *query.Table) error { _, _, err := t.Series(ctx, 0, 1, all, 0); return err },
		"names":     func(t *query.Table) error { _, _, err := t.LabelNames(ctx, 0, 1, nil, 0); return err },
		"values":    func(t *query.Table) error { _, _, err := t.LabelValues(ctx, 0, 1, "boat", nil, 0); return err },
		"exemplars": func(t *query.Table) error { _, err := t.Exemplars(ctx, 0, 1, all); return err },
		"metadata":  func(t *query.Table) error { _, err := t.Metadata(ctx, ""); return err },
		"stats":     func(t *query.Table) error { _, err := t.Stats(ctx, 3); return err },
		"delete":    func(t *query.Table) error { return t.Delete(ctx, 0, 1, named("miles")) },
		"select": func(t *query.Table) error {
			q, _ := t.Querier(0, 1)
			defer q.Close()
			set := q.Select(ctx, true, nil, named("miles")...)
			set.Next()
			return set.Err()
		},
	}
	for name, f := range look {
		if err := f(r.Table("default")); err != nil {
			t.Errorf("%s of the default table: %v", name, err)
		}
		err := f(r.Table("other"))
		var store promql.ErrStorage
		if errors.As(err, &store) {
			err = store.Err
		}
		if !fault.Is(err, fault.NotFound) {
			t.Errorf("%s of a table nobody wrote to: %v", name, err)
		}
	}
}

func TestLookupsMergeTheirSets(t *testing.T) {
	ctx := context.Background()
	table := newReader(t, fleet(t), query.Settings{}).Table("navy")
	boat := func(re string) []*labels.Matcher {
		return []*labels.Matcher{labels.MustNewMatcher(labels.MatchRegexp, "boat", re)}
	}
	f := func(sets [][]*labels.Matcher, limit int, more bool, want ...string) {
		t.Helper()
		values, truncated, err := table.LabelValues(ctx, 0, 9000, "boat", sets, limit)
		if err != nil || truncated != more || !slices.Equal(values, want) {
			t.Errorf("values %v, truncated %v, error %v; want %v", values, truncated, err, want)
		}
		if sets == nil {
			return
		}
		series, truncated, err := table.Series(ctx, 0, 9000, sets, limit)
		var boats []string
		for _, l := range series {
			boats = append(boats, l.Get("boat"))
		}
		if err != nil || truncated != more || !slices.Equal(boats, want) {
			t.Errorf("series %v, truncated %v, error %v; want %v", boats, truncated, err, want)
		}
	}
	f(nil, 0, false, "anna", "berta", "clara")
	f([][]*labels.Matcher{boat(".*a")}, 2, true, "anna", "berta")
	f([][]*labels.Matcher{boat("clara|berta"), boat("anna|berta")}, 0, false, "anna", "berta", "clara")
	f([][]*labels.Matcher{boat("clara|berta"), boat("anna|berta")}, 2, true, "anna", "berta")
	f([][]*labels.Matcher{boat("clara|berta"), boat("berta")}, 2, false, "berta", "clara")
	f([][]*labels.Matcher{boat("x"), boat("y")}, 2, false)
}

// TestALimitOfAllSeriesThatAQueryMayLoadIsServed asks for as many series as query.series_max, of more: the one that shows that there are more counted, and all was refused.
func TestALimitOfAllSeriesThatAQueryMayLoadIsServed(t *testing.T) {
	table := newReader(t, fleet(t), query.Settings{SeriesMax: 2}).Table("navy")
	series, truncated, err := table.Series(context.Background(), 0, 9000, [][]*labels.Matcher{named("miles")}, 2)
	if err != nil || !truncated || len(series) != 2 {
		t.Errorf("%d series, truncated %v, %v", len(series), truncated, err)
	}
	if _, _, err := table.Series(context.Background(), 0, 9000, [][]*labels.Matcher{named("miles")}, 3); !fault.Is(err, fault.TooLarge) {
		t.Errorf("three series, where a query may load two: %v", err)
	}
}

func TestLabelQuerierSaysWhatItCut(t *testing.T) {
	q, _ := newReader(t, fleet(t), query.Settings{}).Table("navy").Querier(0, 9000)
	defer q.Close()
	values, warn, err := q.LabelValues(context.Background(), "boat", &storage.LabelHints{Limit: 2})
	if err != nil || len(values) != 2 || len(warn) != 1 {
		t.Errorf("%v, %v, %v", values, warn, err)
	}
	names, warn, err := q.LabelNames(context.Background(), nil, named("miles")...)
	if err != nil || len(names) != 2 || len(warn) != 0 {
		t.Errorf("%v, %v, %v", names, warn, err)
	}
}

func TestGate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := query.NewGate(2, 1)
		ctx, cancel := context.WithCancel(context.Background())
		for range 2 {
			if err := g.Enter(ctx); err != nil {
				t.Fatal(err)
			}
		}
		third := make(chan error, 1)
		go func() { third <- g.Enter(ctx) }()
		synctest.Wait()
		if g.Running() != 2 || g.Waiting() != 1 {
			t.Errorf("%d run, %d wait", g.Running(), g.Waiting())
		}
		if err := g.Enter(ctx); !fault.Is(err, fault.Throttled) {
			t.Errorf("one too many: %v", err)
		}
		g.Leave()
		if err := <-third; err != nil {
			t.Errorf("the one that waited: %v", err)
		}
		go func() { third <- g.Enter(ctx) }()
		synctest.Wait()
		cancel()
		if err := <-third; !fault.Is(err, fault.Canceled) || g.Waiting() != 0 {
			t.Errorf("the one that gave up: %v, %d wait", err, g.Waiting())
		}
	})
}

func TestMetrics(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	r, err := query.New(query.Deps{Source: fleet(t), Registerer: reg}, query.Settings{SamplesMax: 20})
	if err != nil {
		t.Fatal(err)
	}
	run := func(table, text string) {
		q, err := r.Engine().NewInstantQuery(context.Background(), r.Table(table), nil, text, time.UnixMilli(9000))
		if err != nil {
			t.Fatal(err)
		}
		defer q.Close()
		q.Exec(context.Background())
	}
	run("navy", "sum(miles)")
	run("nowhere", "sum(miles)")
	run("navy", "miles[1h]") // 30 samples
	run("navy", "miles * on() miles")
	want := `
# HELP spillway_query_queries_total PromQL queries by kind and outcome.
# TYPE spillway_query_queries_total counter
spillway_query_queries_total{kind="instant",outcome="execution"} 2
spillway_query_queries_total{kind="instant",outcome="not_found"} 1
spillway_query_queries_total{kind="instant",outcome="ok"} 1
# HELP spillway_query_rows_total Rows that queries loaded from storage.
# TYPE spillway_query_rows_total counter
spillway_query_rows_total 120
# HELP spillway_query_running PromQL queries that run now.
# TYPE spillway_query_running gauge
spillway_query_running 0
`
	err = testutil.GatherAndCompare(reg, strings.NewReader(want), "spillway_query_queries_total", "spillway_query_rows_total", "spillway_query_running")
	if err != nil {
		t.Error(err)
	}
}

func BenchmarkSumRate(b *testing.B) {
	st := querytest.NewStore()
	batch := point.GetBatch(point.NewDict(0))
	for i := range 100 {
		id := querytest.Intern(batch.Dict, point.MakeLabels("__name__", "c_total", "host", strings.Repeat("h", i+1)))
		for j := range int64(720) {
			batch.Append(id, point.NanosOf(j*10_000), float64(j))
		}
	}
	if err := querytest.Inserter(st, "default", 1)(context.Background(), batch); err != nil {
		b.Fatal(err)
	}
	r := newReader(b, st, query.Settings{})
	b.ReportAllocs()
	for b.Loop() {
		q, err := r.Engine().NewRangeQuery(context.Background(), r.Table("default"), nil, "sum(rate(c_total[5m]))", time.Unix(0, 0), time.Unix(7190, 0), time.Minute)
		if err != nil {
			b.Fatal(err)
		}
		if res := q.Exec(context.Background()); res.Err != nil {
			b.Fatal(res.Err)
		}
		q.Close()
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/72_000, "ns/row")
}
