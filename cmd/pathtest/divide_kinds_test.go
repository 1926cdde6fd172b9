package pathtest

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/gateway/query"
	"github.com/spillwaydb/spillway/gateway/query/querytest"
	"github.com/spillwaydb/spillway/protocols/point"
)

// TestServersAnswerEveryKindOfQueryAsOneProcess sends queries of every kind to one server, read without a fan-out, and in turns to three clusters with partitions of
// minutes, so that the windows of nearly all steps cross their edges: three servers, three with three copies of each partition and a ring cut in three, and one on which some
// minutes of rows are staged.
func TestServersAnswerEveryKindOfQueryAsOneProcess(t *testing.T) {
	if testing.Short() {
		t.Skip("hundreds of queries")
	}
	one := openSpread(t, 1, true, 2*time.Minute, 1)
	clusters := []*spread{openSpread(t, 3, true, 2*time.Minute, 1), openSpreadOf(t, 3, true, 5*time.Minute, 3, 3), openSpread(t, 1, true, 5*time.Minute, 1)}
	all := append([]*spread{one}, clusters...)
	defer func() {
		for _, s := range all {
			one.must(s.close())
		}
	}()
	rng := rand.New(rand.NewPCG(37, 38))
	staged := stagedRows(clusters[2])
	for _, b := range demoRows(rng) {
		for _, s := range all[:3] {
			one.must(s.insert(t.Context(), b))
		}
		if at := time.Duration(b.Times[0]); at >= 20*time.Minute && at < 24*time.Minute {
			staged.stage("n1", b)
		} else {
			one.must(clusters[2].insert(t.Context(), b))
		}
	}
	clusters[1].copyRows()
	copies := failing(clusters[1])
	alone, queries := readerOf(t, one.parts["n1"].server), everyKind()
	clustered := []struct {
		name   string
		reader *query.Reader
	}{{"three servers", readerOf(t, clusters[0].source)}, {"copies", readerOf(t, copies.source)}, {"staged rows", readerOf(t, staged.source)}}
	for i, expr := range queries {
		q := chainQuery{expr: expr, start: 700 * time.Second, end: 2600 * time.Second, step: []time.Duration{17, 60, 300}[i/3%3] * time.Second}
		if i%5 == 4 {
			q.step = 0
		}
		want := q.run(t, alone)
		on := clustered[i%3]
		if d := querytest.Diff(want, q.run(t, on.reader), 1e-12); d != "" {
			t.Errorf("%s on %s: %s", q, on.name, d)
		}
	}
	parts := []float64{plansOf(t, clusters[0].reg, "divided"), plansOf(t, copies.reg, "divided"), plansOf(t, staged.reg, "divided")}
	if len(queries) < 350 || parts[0] < 15 || parts[1] < 35 || parts[2] < 35 {
		t.Errorf("%d queries, of which servers evaluated %v parts", len(queries), parts)
	}
}

// demoRows are 45 minutes of counters with resets, gauges with gaps, stale markers, NaN and infinities, and classic histograms, some rows written twice.
func demoRows(rng *rand.Rand) (all []*point.Batch) {
	counts := map[string]float64{}
	for at := point.Nanos(0); at < 2700; at += 15 {
		b := point.GetBatch(point.NewDict(0))
		again := point.GetBatch(b.Dict)
		add := func(v float64, pairs ...string) {
			b.Append(querytest.Intern(b.Dict, point.MakeLabels(pairs...)), at*1e9, v)
		}
		for n := range 24 {
			job, instance, mode := fmt.Sprint("j", n%2), fmt.Sprintf("host%d:9100", n/2%4), fmt.Sprint("m", n/8)
			key := job + instance + mode
			if counts[key] += float64(rng.IntN(100)) / 4; rng.IntN(60) == 0 {
				counts[key] = 0
			}
			if rng.IntN(30) == 0 {
				continue
			}
			v := 50 + 20*rng.NormFloat64()
			switch rng.IntN(120) {
			case 0:
				v = math.Float64frombits(point.StaleNaN)
			case 1:
				v = math.Inf(1)
			case 2:
				v = math.NaN()
			}
			add(counts[key], point.MetricName, "c", "instance", instance, "job", job, "mode", mode)
			add(v, point.MetricName, "g", "instance", instance, "job", job, "mode", mode)
			if rng.IntN(20) == 0 {
				again.Append(querytest.Intern(b.Dict, point.MakeLabels(point.MetricName, "g", "instance", instance, "job", job, "mode", mode)), at*1e9, rng.Float64())
			}
			for i, le := range []string{"0.1", "1", "+Inf"} {
				add(counts[key]*float64(i+1), point.MetricName, "d_bucket", "instance", instance, "job", job, "le", le, "mode", mode)
			}
		}
		if all = append(all, b); len(again.Times) > 0 {
			all = append(all, again)
		}
	}
	return all
}

// everyKind returns selectors, functions, operators and aggregations in many combinations.
func everyKind() (out []string) {
	f := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	for _, e := range []string{
		`42`, `time()`, `vector(3)`, `scalar(sum(g))`, `absent(g)`, `absent(none)`, `absent_over_time(g{job="x"}[5m])`, `absent_over_time(g[5s])`, `g`, `{__name__="g",job="j0"}`,
		`g{job!="j0"}`, `g{instance=~"host[01].*"}`, `g{instance!~"host[01].*"}`, `{__name__=~"c|g"}`, `g{none=""}`, `g{mode=""}`, `-g`, `sum(-rate(c[3m]))`, `g and c > 10`, `g and on (instance) c`,
		`g or c`, `g unless on (mode) c{mode="m0"}`, `clamp(g, 40, 60)`, `clamp_max(rate(c[1m]), 2)`, `label_replace(g, "x", "$1", "instance", "(.*):.*")`, `label_join(g, "y", "-", "job", "mode")`,
		`sum by (x) (label_replace(rate(c[2m]), "x", "$1", "instance", "host(.).*"))`, `g @ start()`, `sum(rate(c[5m] @ end()))`, `g offset 7m`, `g offset -3m`, `sum(g offset 5m) / sum(g)`,
		`count by (__name__) ({__name__=~".+"})`, `histogram_quantile(0.9, rate(d_bucket[1m]))`, `histogram_quantile(0.5, sum by (le) (rate(d_bucket[5m])))`,
		`histogram_quantile(0.99, sum by (le, job) (increase(d_bucket[10m])))`, `max_over_time((time() - g)[5m:10s])`, `avg_over_time(rate(c[1m])[10m:1m])`, `sum_over_time(sum(rate(c[1m]))[5m:15s])`,
		`min_over_time(topk(1, g)[5m:30s])`, `avg by (job) (g > 50) * 2 - 1`, `count(g > 1e9)`, `count(g > 40) / count(g)`, `sum by (job) (g) ^ 2`,
	} {
		f("%s", e)
	}
	for _, a := range []string{"sum", "avg", "min", "max", "count", "stddev", "stdvar", "group"} {
		for _, by := range []string{"", "by ()", "by (instance)", "by (job, mode)", "by (none)", "without ()", "without (instance)", "by (__name__)"} {
			f("%s %s (g)", a, by)
			f("%s %s (rate(c[1m]))", a, by)
		}
		f("%s by (job) (%s by (job, instance) (rate(c[7m])))", a, a)
	}
	for _, a := range []string{"topk", "bottomk", "quantile"} {
		for _, of := range []string{"c", "rate(c[1m])", "sum by (instance, mode) (rate(c[5m]))"} {
			f("%s(0.9 + 1, %s)", a, of)
			f("%s by (job) (2, %s)", a, of)
		}
	}
	f(`count_values("v", count by (job) (g))`)
	for _, fn := range []string{"rate", "increase", "delta", "idelta", "irate", "deriv", "changes", "resets", "sum_over_time", "avg_over_time", "min_over_time", "max_over_time", "count_over_time", "stddev_over_time",
		"stdvar_over_time", "last_over_time", "present_over_time"} {
		of := "g"
		if fn == "rate" || fn == "increase" || fn == "irate" || fn == "resets" {
			of = "c"
		}
		for _, w := range []string{"1s", "30s", "1m", "5m", "15m", "30m"} {
			f("%s(%s[%s])", fn, of, w)
		}
		f("%s(%s[3m] offset 4m)", fn, of)
		f("sum(%s(%s[2m] offset -1m))", fn, of)
		f("max(%s(%s[10m:30s]))", fn, of)
	}
	for _, p := range []string{"-0.5", "0.1", "0.95", "2"} {
		f("quantile_over_time(%s, g[1m])", p)
		f("quantile_over_time(%s, g[15m])", p)
	}
	f("predict_linear(g[15m], 600)")
	for _, fn := range []string{"abs", "ceil", "floor", "round", "exp", "sqrt", "ln", "sgn", "timestamp", "hour", "minute", "deg"} {
		f("%s(g)", fn)
	}
	for _, op := range []string{"+", "-", "*", "/", "%", "^", "==", "!=", "<", ">", "<=", ">=", "> bool", "== bool"} {
		f("g %s 50", op)
		f("50 %s g", op)
		f("g %s on (instance, job, mode) c", op)
		f("g %s on (instance, mode) group_left sum by (instance, mode) (c)", op)
		f("sum by (job) (rate(c[1m])) %s ignoring (x) sum by (job) (rate(c[5m]))", op)
	}
	return out
}
