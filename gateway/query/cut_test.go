package query_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"pgregory.net/rapid"

	"github.com/spillwaydb/spillway/gateway/query"
	"github.com/spillwaydb/spillway/gateway/query/querytest"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/protocols/setting"
)

// TestColumnsGiveTheEnginesResults evaluates random expressions over random rows, with columns and without.
func TestColumnsGiveTheEnginesResults(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		st := randomStore(t)
		for range 8 {
			q := randomQuery(t, (*expression).vector)
			max := 0
			if q.chain { // else the engine holds at the same time samples that are held one after the other here
				max = rapid.SampledFrom([]int{0, 0, 0, 5, 20, 100, 500}).Draw(t, "samples_max")
			}
			plain := query.Settings{PlainEngine: true, SamplesMax: max, ExperimentalFunctions: true}
			want := q.run(t, st, plain)
			var src query.Source = st
			if n := rapid.IntRange(0, 5).Draw(t, "page"); n > 0 {
				src = querytest.Paged{Store: st, PageMax: n}
			}
			got := q.run(t, src, query.Settings{SamplesMax: max, ExperimentalFunctions: true})
			if d := querytest.Diff(want, got, 1e-12); d != "" && !q.byChance(t, st, plain, want) {
				t.Fatalf("%s: the engine has %s", q, d)
			}
			if n := st.Unclosed(); n != 0 {
				t.Fatalf("%s: %d sets left open", q, n)
			}
		}
	})
}

// TestManyToOneGivesTheEnginesResults does the same with expressions of group_left and group_right alone.
func TestManyToOneGivesTheEnginesResults(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		st := randomStore(t)
		for range 8 {
			q := randomQuery(t, (*expression).manyToOne)
			plain := query.Settings{PlainEngine: true, ExperimentalFunctions: true}
			want := q.run(t, st, plain)
			got := q.run(t, st, query.Settings{ExperimentalFunctions: true})
			if d := querytest.Diff(want, got, 1e-12); d != "" && !q.byChance(t, st, plain, want) {
				t.Fatalf("%s: the engine has %s", q, d)
			}
		}
	})
}

// TestOrKeepsTheOrderOfItsSides: b{x="3"} has no value on the left, and stood before b{x="1"} of the right all the same.
func TestOrKeepsTheOrderOfItsSides(t *testing.T) {
	st := querytest.NewStore()
	b := point.GetBatch(point.NewDict(0))
	for _, l := range []point.Labels{point.MakeLabels("__name__", "b", "x", "1", "y", "1"), point.MakeLabels("__name__", "b", "x", "3")} {
		b.Append(querytest.Intern(b.Dict, l), 0, 2)
	}
	if err := querytest.Inserter(st, "default", 1)(context.Background(), b); err != nil {
		t.Fatal(err)
	}
	for _, expr := range []string{
		`((b and b{x="1"}) % 2.5) or on(x, y) (min by (x) (b) / 0)`,
		`(-(b{y="1"} or b > 5)) or on(x, y) min by (x) (b)`,
	} {
		q := asking{expr: expr, start: time.UnixMilli(1), end: time.UnixMilli(1), ordered: true}
		want := q.run(t, st, query.Settings{PlainEngine: true})
		if len(want.Value.(promql.Vector)) != 3 {
			t.Fatalf("%s: the engine has %v", q, want)
		}
		if d := querytest.Diff(want, q.run(t, st, query.Settings{}), 0); d != "" {
			t.Errorf("%s: the engine has %s", q, d)
		}
	}
}

// asking is a query at some times.
type asking struct {
	expr  string
	start time.Time
	end   time.Time
	step  time.Duration // 0: at start alone

	ordered bool // the engine's result has an order that is defined
	chain   bool // nothing but selector, range functions, operators with numbers, and aggregations
}

// byChance reports whether the engine's own results vary: it adds and ranks in the order of a map where
// no order is defined, and a remainder, a comparison or a variance magnifies the last bit.
func (q asking) byChance(t fataler, src query.Source, s query.Settings, first *promql.Result) bool {
	for i := 0; !q.ordered && i < 50; i++ {
		again := q.run(t, src, s)
		if querytest.Diff(first, again, 1e-15) != "" {
			return true
		}
	}
	return false
}

func sortVector(r *promql.Result) {
	if v, ok := r.Value.(promql.Vector); ok {
		slices.SortFunc(v, func(a, b promql.Sample) int { return labels.Compare(a.Metric, b.Metric) })
	}
}

func (q asking) String() string {
	return fmt.Sprintf("%s from %d to %d by %v", q.expr, q.start.UnixMilli(), q.end.UnixMilli(), q.step)
}

func (q asking) run(t fataler, src query.Source, s query.Settings) *promql.Result {
	r, err := query.New(query.Deps{Source: src}, s)
	if err != nil {
		t.Fatal(err)
	}
	var in promql.Query
	if q.step == 0 {
		in, err = r.Engine().NewInstantQuery(context.Background(), r.Table("default"), nil, q.expr, q.start)
	} else {
		in, err = r.Engine().NewRangeQuery(context.Background(), r.Table("default"), nil, q.expr, q.start, q.end, q.step)
	}
	if err != nil {
		t.Fatal(q, err)
	}
	res := in.Exec(context.Background())
	if !q.ordered {
		sortVector(res)
	}
	return res
}

type fataler interface{ Fatal(...any) }

// randomStore holds ten minutes of up to twelve series of three metrics.
func randomStore(t *rapid.T) *querytest.Store {
	st := querytest.NewStore()
	b := point.GetBatch(point.NewDict(0))
	histograms := rapid.IntRange(0, 9).Draw(t, "histograms") == 0
	seen := map[point.Labels]bool{}
	for range rapid.IntRange(0, 12).Draw(t, "series") {
		l := randomLabels(t)
		if seen[l] {
			continue
		}
		seen[l] = true
		randomRows(t, b, querytest.Intern(b.Dict, l), histograms)
	}
	if err := querytest.Inserter(st, "default", 1)(context.Background(), b); err != nil {
		t.Fatal(err)
	}
	return st
}

func randomLabels(t *rapid.T) point.Labels {
	pairs := []string{"__name__", rapid.SampledFrom([]string{"a_total", "a_total", "b", "b", "c"}).Draw(t, "name")}
	for _, name := range []string{"x", "y"} {
		if v := rapid.SampledFrom([]string{"", "1", "2", "3"}).Draw(t, name); v != "" {
			pairs = append(pairs, name, v)
		}
	}
	if rapid.IntRange(0, 15).Draw(t, "odd") == 0 {
		pairs = append(pairs, rapid.SampledFrom([]string{"__type__", "__unit__", "X"}).Draw(t, "odd name"), "1")
	}
	return point.MakeLabels(pairs...)
}

func randomRows(t *rapid.T, b *point.Batch, id point.SeriesID, histograms bool) {
	kind := rapid.IntRange(0, 3).Draw(t, "kind")
	jitter := rapid.SampledFrom([]int64{0, 0, 1, 400_000, 3e9, 30e9}).Draw(t, "jitter")
	at, v := rapid.Int64Range(-60, 60).Draw(t, "first")*1e9, float64(rapid.IntRange(0, 50).Draw(t, "start"))
	var last int64 = math.MinInt64
	for at < 600e9 {
		switch dice := rapid.IntRange(0, 40).Draw(t, "row"); {
		case dice == 0:
			v = 0 // a reset
		case dice == 1:
			at += rapid.Int64Range(0, 400).Draw(t, "gap") * 1e9
		case dice < 5 && kind == 3:
			v = rapid.SampledFrom([]float64{math.NaN(), math.Inf(1), math.Inf(-1), math.Copysign(0, -1), math.MaxFloat64, -1}).Draw(t, "odd value")
		case kind == 0:
			v += float64(rapid.IntRange(0, 9).Draw(t, "step"))
		default:
			v = rapid.Float64Range(-100, 100).Draw(t, "value")
		}
		now := at + rapid.Int64Range(-jitter, jitter).Draw(t, "late")
		if now <= last {
			now = last + rapid.SampledFrom([]int64{1, 1e5, 1e6}).Draw(t, "soon")
		}
		last = now
		switch dice := rapid.IntRange(0, 30).Draw(t, "what"); {
		case dice == 0:
			b.Append(id, now, math.Float64frombits(point.StaleNaN))
		case dice == 1 && histograms:
			h := &histogram.Histogram{Count: 2, Sum: 3, ZeroCount: 2}
			b.Hists = append(b.Hists, point.HistRow{ID: id, Time: now, H: point.AppendHistogram(nil, h)})
		default:
			b.Append(id, now, v)
		}
		at += rapid.SampledFrom([]int64{10e9, 15e9, 15e9, 60e9}).Draw(t, "pause")
	}
}

func randomQuery(t *rapid.T, expr func(e *expression, depth int) string) asking {
	q := asking{
		start: time.UnixMilli(rapid.Int64Range(-100_000, 700_000).Draw(t, "at")),
		step:  time.Duration(rapid.SampledFrom([]int{0, 0, 1, 15_000, 60_000, 333_000}).Draw(t, "step")) * time.Millisecond,
	}
	q.end = q.start.Add(q.step * time.Duration(rapid.IntRange(0, 12).Draw(t, "steps"))).Add(time.Duration(rapid.IntRange(0, 1).Draw(t, "beyond")) * time.Millisecond)
	e := &expression{t: t, ordered: true, chain: true, single: q.step == 0}
	q.expr = expr(e, rapid.IntRange(0, 4).Draw(t, "depth"))
	q.ordered, q.chain = e.ordered, e.chain
	return q
}

// expression makes random expressions of vectors.
type expression struct {
	t       *rapid.T
	single  bool // one time: every operator keeps the order of series
	chain   bool
	ordered bool // the engine returns series in an order; else equal values are ranked by chance
}

func (e *expression) pick(name string, from ...string) string {
	return rapid.SampledFrom(from).Draw(e.t, name)
}

func (e *expression) vector(depth int) string {
	if depth == 0 {
		return e.source()
	}
	switch rapid.IntRange(0, 11).Draw(e.t, "form") {
	case 0, 1, 2:
		return e.operator(depth)
	case 3, 4, 5, 6:
		return e.aggregation(depth)
	case 7:
		e.chain = false
		f := e.pick("function", "abs", "ceil", "-", "", "sort", "absent", "timestamp", "scalar")
		if f == "scalar" {
			return "vector(scalar" + e.call(depth) + ")"
		}
		return f + e.call(depth)
	case 8, 9:
		return e.between(depth)
	case 10:
		e.chain, e.ordered = false, e.ordered && e.single
		return e.relabelled(e.vector(depth - 1))
	}
	return e.source()
}

func (e *expression) call(depth int) string { return "(" + e.vector(depth-1) + ")" }

func (e *expression) selector() string {
	return e.pick("selector", "a_total", "b", "b", `b{x="1"}`, `{__name__=~"a_total|b"}`, `a_total{y!=""}`, "missing")
}

func (e *expression) offset() string {
	if rapid.IntRange(0, 9).Draw(e.t, "at") == 0 {
		e.chain = false
		return e.pick("modifier", " @ 300", " @ end()")
	}
	return e.pick("offset", "", "", " offset 1m", " offset -90s")
}

func (e *expression) source() string {
	if rapid.IntRange(0, 3).Draw(e.t, "instant") == 0 {
		return e.selector() + e.offset()
	}
	of := e.selector() + e.pick("range", "[1m]", "[5m]", "[15s]", "[1ms]", "[10m]") + e.offset()
	if rapid.IntRange(0, 11).Draw(e.t, "subquery") == 0 {
		of, e.ordered, e.chain = "("+e.selector()+" * 2)[5m:30s]", false, false
	}
	f := e.pick("range function", "rate", "rate", "increase", "delta", "irate", "idelta", "last_over_time",
		"count_over_time", "present_over_time", "sum_over_time", "avg_over_time", "min_over_time", "max_over_time",
		"stddev_over_time", "stdvar_over_time", "changes", "resets", "first_over_time", "deriv", "quantile_over_time")
	e.chain = e.chain && f != "deriv"
	if f == "quantile_over_time" {
		return f + "(" + e.pick("quantile", "0.5", "0", "1", "0.99", "-1", "NaN", "2") + ", " + of + ")"
	}
	return f + "(" + of + ")"
}

func (e *expression) operator(depth int) string {
	in := e.vector(depth - 1)
	op := e.pick("operator", "+", "-", "*", "/", "^", "%", "atan2", "==", "!=", "<", ">", "<=", ">=", "> bool", "== bool")
	number := e.pick("number", "0", "1", "2.5", "-3", "NaN", "Inf", "(1 + 1)")
	e.ordered = e.ordered && e.single
	e.chain = e.chain && number != "(1 + 1)" // the engine holds it while it is computed
	if rapid.Bool().Draw(e.t, "swapped") {
		return "(" + number + " " + op + " " + in + ")"
	}
	return "(" + in + " " + op + " " + number + ")"
}

func (e *expression) aggregation(depth int) string {
	in := e.vector(depth - 1)
	by := e.pick("grouping", "", "by (x) ", "by (y, x) ", "by (__name__) ", "without (x) ", "without () ", "by (nothing) ")
	f := e.pick("aggregation", "sum", "avg", "min", "max", "count", "group", "stddev", "stdvar", "quantile", "topk", "bottomk", "limitk")
	switch f {
	case "quantile":
		return f + " " + by + "(" + e.pick("q", "0.9", "0", "-1", "NaN") + ", " + in + ")"
	case "topk", "bottomk", "limitk":
		e.chain = e.chain && f != "limitk"
		if !e.ordered {
			return "sum " + by + "(" + in + ")"
		}
		k := e.pick("k", "1", "2", "5", "0", "-1", "NaN", "1e30")
		e.chain = e.chain && len(k) == 1 && k != "0" // the others are for the engine
		e.ordered = e.single
		return f + " " + by + "(" + k + ", " + in + ")"
	}
	return f + " " + by + "(" + in + ")"
}

func (e *expression) between(depth int) string {
	if rapid.IntRange(0, 5).Draw(e.t, "many") == 0 {
		return e.manyToOne(depth)
	}
	e.chain = false
	l, r := e.vector(depth-1), e.vector(depth-1)
	e.ordered = e.ordered && e.single
	if rapid.IntRange(0, 2).Draw(e.t, "relabelled") == 0 {
		l = e.relabelled(l)
	}
	op := e.pick("matching", " or ", " and ", " unless ", " / ", " > ", " == bool ", " - ", " % ", " ^ ")
	with := e.pick("labels", "", "", "on(x, y) ", "ignoring(z) ", "on() ", "ignoring(x) ", "on(y, __name__) ", "ignoring(y, x) ")
	return "(" + l + op + with + r + ")"
}

func (e *expression) manyToOne(depth int) string {
	many, one := e.vector(max(0, depth-1)), e.pick("one", "sum by (x) ", "max by (x, y) ", "count by (y) ", "min ", "")+"("+e.vector(max(0, depth-2))+")"
	e.chain, e.ordered = false, e.ordered && e.single
	op := e.pick("joining", " / ", " * ", " - ", " > ", " <= ", " == bool ")
	with := e.pick("on", "on(x) group_? () ", "on(x) group_? (y) ", "ignoring(y) group_? () ", "on(y) group_? (x, w) ", "on() group_? () ", "ignoring(x) group_? (x) ", "on(x, y) group_? (__name__) ")
	if rapid.Bool().Draw(e.t, "swapped") {
		return "(" + one + op + strings.Replace(with, "?", "right", 1) + many + ")"
	}
	return "(" + many + op + strings.Replace(with, "?", "left", 1) + one + ")"
}

func (e *expression) relabelled(in string) string {
	return "label_replace(" + in + ", " + e.pick("to", `"x"`, `"w"`, `"__name__"`) + ", " + e.pick("with", `"$1"`, `"1"`, `""`, `"a_$1"`) +
		", " + e.pick("from", `"x"`, `"y"`, `"__name__"`, `"missing"`) + ", " + e.pick("of", `"(.*)"`, `"(1|2)"`, `""`) + ")"
}

// TestHowMuchIsCut lists expressions by the metric that shows how much of them is cut.
func TestHowMuchIsCut(t *testing.T) {
	st := fleet(t)
	b := point.GetBatch(point.NewDict(0))
	h := point.AppendHistogram(nil, &histogram.Histogram{Count: 1, Sum: 1, ZeroCount: 1})
	b.Hists = append(b.Hists, point.HistRow{ID: querytest.Intern(b.Dict, point.MakeLabels("__name__", "depth")), Time: 5e9, H: h})
	if err := querytest.Inserter(st, "default", 1)(context.Background(), b); err != nil {
		t.Fatal(err)
	}
	f := func(extent, expr string, s query.Settings) {
		t.Helper()
		reg := prometheus.NewRegistry()
		r, err := query.New(query.Deps{Source: st, Registerer: reg}, s)
		if err != nil {
			t.Fatal(err)
		}
		q, err := r.Engine().NewRangeQuery(t.Context(), r.Table("default"), nil, expr, time.Unix(5, 0), time.Unix(9, 0), time.Second)
		if err != nil {
			t.Fatal(err)
		}
		if res := q.Exec(t.Context()); res.Err != nil {
			t.Errorf("%s: %v", expr, res.Err)
		}
		want := fmt.Sprintf("# HELP spillway_query_columnar_total Evaluations of PromQL queries by how much was over columns. A query may be evaluated twice where a server fell silent.\n"+
			"# TYPE spillway_query_columnar_total counter\nspillway_query_columnar_total{extent=%q} 1\n", extent)
		if extent == "" {
			want = ""
		}
		if err := testutil.GatherAndCompare(reg, strings.NewReader(want), "spillway_query_columnar_total"); err != nil {
			t.Errorf("%s: %v", expr, err)
		}
	}
	all := query.Settings{}
	f("whole", `sum by (boat) (rate(miles[3s])) * 100`, all)
	f("whole", `miles > bool 3`, all)
	f("whole", `topk(2, max_over_time(miles[2s] offset 1s))`, all)
	f("whole", `stddev(count by (boat) (missing))`, all)
	f("whole", `sum(rate(miles[3s])) / on () sum(rate(miles[5s]))`, all)
	f("whole", `100 * (1 - miles / miles)`, all)
	f("whole", `label_replace(max_over_time(miles[3s]), "as", "$1", "boat", "(.*)") or avg by (boat) (miles)`, all)
	f("abandoned", `depth + depth`, all)
	f("part", `sum(depth) + sum(miles)`, all)
	f("part", `abs(miles / miles)`, all)
	f("part", `abs(rate(miles[3s]))`, all)
	f("whole", `miles / on (boat) group_left () miles`, all)
	f("whole", `sum by (boat) (miles) * on (boat) group_right (x) max by (boat, x) (miles)`, all)
	f("part", `sum(miles) </ sum(miles)`, all)
	f("none", `rate(miles[3s] @ 5)`, all)
	f("none", `max_over_time(rate(miles[3s])[3s:1s])`, all)
	f("none", `absent(sum(miles))`, all)
	f("abandoned", `sum(depth)`, all)
	f("part", `count_over_time({boat="anna"}[1m]) + 0 * count_over_time({__name__=~"depth"}[1m])`, all)
	f("", `sum(miles)`, query.Settings{PlainEngine: true})
	f("", `sum(miles)`, query.Settings{DelayedNameRemoval: true})
}

// endless is a source with selectors that never end.
type endless struct {
	*querytest.Store
	opened, closed atomic.Int32
}

func (e *endless) Select(context.Context, *peer.Select) (peer.SeriesSet, error) {
	e.opened.Add(1)
	return &endlessSet{source: e}, nil
}

type endlessSet struct {
	source *endless
	n      int
}

func (s *endlessSet) Next() bool { s.n++; return true }

func (s *endlessSet) At() *peer.Series {
	return &peer.Series{
		Labels: point.MakeLabels("__name__", "sand", "grain", fmt.Sprint(s.n)),
		Times:  []point.Nanos{1e9}, Values: []float64{1},
	}
}

func (s *endlessSet) Err() error   { return nil }
func (s *endlessSet) Close() error { s.source.closed.Add(1); return nil }

// TestColumnsEndWhenTheyMust: cancelled, timed out, at the bounds on series and on samples. Leaked goroutines are looked for
// after all tests of the package.
func TestColumnsEndWhenTheyMust(t *testing.T) {
	f := func(expr string, s query.Settings, cancel bool, want error) {
		t.Helper()
		src := &endless{Store: querytest.NewStore()}
		r := newReader(t, src, s)
		q, err := r.Engine().NewInstantQuery(t.Context(), r.Table("default"), nil, expr, time.Unix(1, 0))
		if err != nil {
			t.Fatal(err)
		}
		if cancel {
			q.Cancel()
		}
		res := q.Exec(t.Context())
		if fmt.Sprintf("%T", res.Err) != fmt.Sprintf("%T", want) {
			t.Errorf("%s: %T %v, want %T", expr, res.Err, res.Err, want)
		}
		for src.closed.Load() < src.opened.Load() { // an answer that came too late does not wait for its evaluation
			runtime.Gosched()
		}
		early := cancel || s.Timeout > 0 // it may end before it reads anything
		if n := src.closed.Load(); n != 1 && !early || n > 1 {
			t.Errorf("%s: %d sets were opened and closed", expr, n)
		}
	}
	const sum, all = `sum(sum_over_time(sand[1s]))`, `sand * 2`
	many := query.Settings{SeriesMax: 1 << 40, SamplesMax: 1 << 40, RowsMax: 1 << 40}
	soon := many
	soon.Timeout = setting.Span(20 * time.Millisecond)
	f(sum, soon, false, promql.ErrQueryTimeout(""))
	f(all, soon, false, promql.ErrQueryTimeout(""))
	f(sum, many, true, promql.ErrQueryCanceled(""))
	f(sum, query.Settings{SamplesMax: 1000}, false, promql.ErrTooManySamples(""))
	f(all, query.Settings{SamplesMax: 1000}, false, promql.ErrTooManySamples(""))
	for _, s := range []query.Settings{{SeriesMax: 1000}, {RowsMax: 1000}} {
		src := &endless{Store: querytest.NewStore()}
		r := newReader(t, src, s)
		q, err := r.Engine().NewInstantQuery(t.Context(), r.Table("default"), nil, sum, time.Unix(1, 0))
		if err != nil {
			t.Fatal(err)
		}
		var stored promql.ErrStorage
		if err := q.Exec(t.Context()).Err; !errors.As(err, &stored) || fault.KindOf(stored.Err) != fault.TooLarge {
			t.Errorf("%+v: %v", s, err)
		}
	}
}

// TestTheNegativeOfAnOddNaNIsAValue: with its sign turned, a NaN has the bits of a stale marker.
func TestTheNegativeOfAnOddNaNIsAValue(t *testing.T) {
	st := querytest.NewStore()
	b := point.GetBatch(point.NewDict(0))
	for i, bits := range []uint64{0xfff0000000000002, math.Float64bits(7)} {
		id := querytest.Intern(b.Dict, point.MakeLabels("__name__", "x", "i", fmt.Sprint(i)))
		b.Append(id, 10e9, math.Float64frombits(bits))
	}
	if err := querytest.Inserter(st, "default", 1)(context.Background(), b); err != nil {
		t.Fatal(err)
	}
	for _, expr := range []string{"-x", "-max_over_time(x[1m])", "-(-x)", "count(-x)", "count_over_time(x[1m])", "sum by (i) (-x)", "-x * 1", "-x or x", "0 - x"} {
		q := asking{expr: expr, start: time.Unix(5, 0), end: time.Unix(60, 0), step: 5 * time.Second}
		want, got := q.run(t, st, query.Settings{PlainEngine: true}), q.run(t, st, query.Settings{})
		if d := querytest.Diff(want, got, 0); d != "" {
			t.Errorf("%s: the engine has %s", expr, d)
		}
		if m, err := got.Matrix(); err != nil || len(m) == 0 || len(m[0].Floats) != 11 {
			t.Errorf("%s: %v, %v", expr, got.Value, err)
		}
	}
}
