package query_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/prometheus/promql"

	"github.com/spillwaydb/spillway/gateway/query"
	"github.com/spillwaydb/spillway/gateway/query/querytest"
	"github.com/spillwaydb/spillway/protocols/budget"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
	"github.com/spillwaydb/spillway/protocols/setting"
)

// crowd is so many series of one row each, at time 0.
func crowd(t testing.TB, series int) *querytest.Store {
	t.Helper()
	st := querytest.NewStore()
	b := point.GetBatch(point.NewDict(0))
	for i := range series {
		id := querytest.Intern(b.Dict, point.MakeLabels("__name__", "miles", "boat", fmt.Sprintf("boat-%06d", i)))
		b.Append(id, 0, float64(i))
	}
	if err := querytest.Inserter(st, "default", 1)(context.Background(), b); err != nil {
		t.Fatal(err)
	}
	return st
}

func counted(t testing.TB, src query.Source, bytes int64, s query.Settings) (*query.Reader, *budget.Account) {
	t.Helper()
	memory := budget.New("queries", bytes)
	r, err := query.New(query.Deps{Source: src, Memory: memory}, s)
	if err != nil {
		t.Fatal(err)
	}
	return r, memory
}

// ask evaluates at one time, or over an hour by a second.
func ask(t testing.TB, r *query.Reader, text string, over time.Duration) (string, error) {
	t.Helper()
	var q promql.Query
	var err error
	if over == 0 {
		q, err = r.Engine().NewInstantQuery(t.Context(), r.Table("default"), nil, text, time.Unix(60, 0))
	} else {
		q, err = r.Engine().NewRangeQuery(t.Context(), r.Table("default"), nil, text, time.Unix(0, 0), time.Unix(0, 0).Add(over), time.Second)
	}
	if err != nil {
		return "", err
	}
	defer q.Close() // releases the result
	res := q.Exec(t.Context())
	if res.Err != nil {
		return "", res.Err
	}
	return res.Value.String(), nil
}

// max_over_time(vector(1)[1y:1ms]) ended the process within a second.
func TestProcessSurvivesSubqueriesOfAnyLength(t *testing.T) {
	r, memory := counted(t, fleet(t), 64<<20, query.Settings{})
	for _, text := range []string{
		"max_over_time(vector(1)[1y:1ms])",
		"max_over_time(max_over_time(vector(1)[1y:1y])[1y:1ms])",
		"max_over_time(max_over_time(vector(1)[10d:100ms])[100y:100y])",
		"max_over_time(miles[1y:1ms] @ 60)",
		"max_over_time(miles[1y:1ms] offset 10y)",
		"abs(sum(1 + (max_over_time(miles[1y:1ms]))))",
		"max_over_time(vector(1)[200y * 1:1ms])",
		strings.TrimSuffix(strings.Repeat("max_over_time(vector(1)[30d:1s]) + ", 10), "+ "),
	} {
		_, err := ask(t, r, text, 0)
		if !fault.Is(err, fault.TooLarge) || !strings.Contains(err.Error(), "[") || !strings.Contains(err.Error(), "steps") {
			t.Errorf("%s: %v, want an error that names the subquery and its steps", text, err)
		}
	}
	// Usual queries of Prometheus users are no bombs.
	for _, text := range []string{"max_over_time(vector(1)[1d:15s])", "max_over_time(miles[30d:1m])", "sum_over_time(vector(1)[5m * 2:1m])"} {
		if _, err := ask(t, r, text, time.Hour); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
	if used := memory.Used(); used != 0 {
		t.Errorf("%d bytes are booked after the last query", used)
	}
}

// The engine counts the samples below each window of each subquery: 60 within each other counted more than 64 bits hold, and the query ended
// in a panic, its client without an answer.
func TestSubqueriesWithinEachOtherAreAnswered(t *testing.T) {
	r, memory := counted(t, fleet(t), 64<<20, query.Settings{})
	nested := func(n int, window string) string {
		return strings.Repeat("sum_over_time(", n) + "miles" + strings.Repeat(window+")", n)
	}
	for _, text := range []string{nested(60, "[5m:1m]"), nested(64, "[5m:1m]"), nested(450, "[5m:1m]"), nested(30, "[1h:5m] offset 5m"), nested(60, "[5m:1m] @ 300"), "abs(-" + nested(60, "[5m:1m]") + ")"} {
		_, err := ask(t, r, text, 0)
		if !fault.Is(err, fault.TooLarge) || !strings.Contains(err.Error(), "within each other") {
			t.Errorf("%.50s: %v, want an error that says why", text, err)
		}
	}
	for _, text := range []string{nested(12, "[5m:1m]"), nested(3, "[1d:1m]"), nested(200, "[1m:1m]")} {
		if _, err := ask(t, r, text, 0); err != nil {
			t.Errorf("%.50s: %v", text, err)
		}
	}
	if used := memory.Used(); used != 0 {
		t.Errorf("%d bytes are booked after the last query", used)
	}
}

// The engine counts a sample once for each window that it lies in. A query of 17 subqueries within each other added 10¹⁵ and more to the counter of
// samples, which is a 64-bit float: after some of them it did not count small queries any more.
func TestSamplesAreCountedAfterSubqueriesWithinEachOther(t *testing.T) {
	reg := prometheus.NewRegistry()
	r, err := query.New(query.Deps{Source: crowd(t, 20), Registerer: reg}, query.Settings{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ask(t, r, strings.Repeat("sum_over_time(", 17)+"miles"+strings.Repeat("[5m:1m])", 17), 2*time.Hour); err != nil {
		t.Fatal(err)
	}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if n := f.GetMetric()[0].GetCounter().GetValue(); f.GetName() == "spillway_query_samples_total" && (n <= 0 || n > 1e12) {
			t.Errorf("one query added %g samples", n)
		}
	}
}

// Queries ignored --memory.
func TestMemoryOfOthersSurvivesAQueryThatWantsTooMuch(t *testing.T) {
	r, memory := counted(t, crowd(t, 20_000), 24<<20, query.Settings{})
	for _, text := range []string{
		"miles", "miles[1h]", "sum by (boat) (miles)", "quantile(0.5, miles)", "topk(1e9, miles)", "sort(miles)",
		`count_values("v", miles)`, "miles * on (boat) group_left miles", "miles and miles",
		`label_replace(miles, "a", "$1", "boat", "(.*)")`, "stddev(miles) by (boat)", "absent(miles) or miles", "sum_over_time(miles[1h:1s])",
	} {
		for _, over := range []time.Duration{0, time.Hour} {
			if strings.HasSuffix(text, "[1h]") && over > 0 {
				continue
			}
			_, err := ask(t, r, text, over)
			if over > 0 && !fault.Is(storageError(err), fault.TooLarge) {
				t.Errorf("%s over %s: %v, want an error of its memory", text, over, err)
			}
			if used := memory.Used(); used != 0 {
				t.Fatalf("%s: %d bytes are booked after the query", text, used)
			}
		}
	}
	if _, err := ask(t, r, "count(miles)", time.Hour); err != nil {
		t.Errorf("a query that holds little: %v", err)
	}
}

// storageError looks inside the engine's wrapping.
func storageError(err error) error {
	var store promql.ErrStorage
	if errors.As(err, &store) {
		return store.Err
	}
	return err
}

// label_replace within label_replace made gigabytes of a few bytes.
func TestProcessSurvivesLabelsThatGrow(t *testing.T) {
	r, memory := counted(t, crowd(t, 2000), 32<<20, query.Settings{})
	double := "miles"
	for range 30 {
		double = `label_replace(` + double + `, "boat", "$1$1", "boat", "(.*)")`
	}
	join := "miles"
	for range 8 {
		join = `label_join(` + join + `, "boat", "` + strings.Repeat("-", 100) + `", "boat", "boat", "boat", "boat", "boat", "boat", "boat", "boat")`
	}
	for _, text := range []string{
		double, join, "abs(" + double + ")",
		`label_replace(miles, "a", "` + strings.Repeat("$1", 10_000) + `", "boat", "(.*)")`,
		`label_replace(abs(miles), "a", "` + strings.Repeat("x", 100_000) + `", "boat", "(.*)")`,
	} {
		if _, err := ask(t, r, text, 0); err == nil || fault.Is(storageError(err), fault.Internal) {
			t.Errorf("%.200s: %v, want a refusal", text, err)
		}
	}
	chain := "miles"
	for i := range 20 {
		chain = fmt.Sprintf(`label_replace(%s, "l%d", "$1", "boat", "boat-(.*)")`, chain, i)
	}
	if _, err := ask(t, r, chain, 0); err != nil {
		t.Errorf("a chain as dashboards have it: %v", err)
	}
	if used := memory.Used(); used != 0 {
		t.Errorf("%d bytes are booked after the last query", used)
	}
}

// Ten regular expressions of 14 bytes each used half a gigabyte, in the parser.
func TestProcessSurvivesRegularExpressionsThatRepeat(t *testing.T) {
	r, _ := counted(t, fleet(t), 32<<20, query.Settings{})
	for _, text := range []string{
		`miles{boat=~"(` + strings.Repeat("a", 30) + `){1000}"}`, `miles{boat=~"((a|b|cccccc|[def]){30}){30}c{900}", boat!~"((aaaaaaaa){100}){10}"}`,
		"miles{boat=~`((abcdefghijklmnopqrstuvwxyz){9}){90}`}", `label_replace(miles, "a", "b", "c", "((xyz|12345|6789abcdef){10}){100}")`,
		"miles{" + strings.Repeat(`boat=~"a{1000}",`, 30) + "}",
	} {
		if _, err := ask(t, r, text, 0); !fault.Is(err, fault.Invalid) {
			t.Errorf("%.100s: %v, want Invalid", text, err)
		}
	}
	for _, text := range []string{
		`miles{boat=~"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)*"}`, `miles{boat="{1000}{1000}"}`,
		`miles{boat=~"` + strings.Repeat("host-12345|", 5000) + `x"}`,
	} {
		if _, err := ask(t, r, text, 0); err != nil {
			t.Errorf("%.100s: %v", text, err)
		}
	}
}

// A label_replace of 80 kB by a pattern of 10,000 groups used 3 GB in a process of 1 GiB: matching keeps the ends of all groups for each
// place in the pattern where it may be.
func TestProcessSurvivesPatternsOfManyGroups(t *testing.T) {
	r, memory := counted(t, fleet(t), 32<<20, query.Settings{})
	for _, text := range []string{
		`label_replace(miles, "a", "$1", "boat", "` + strings.Repeat("(a|b)?", 2000) + `")`, `miles{boat=~"` + strings.Repeat("(.*)", 2000) + `"}`,
		`miles{boat=~"` + strings.Repeat("(.?)", 100) + `((((((((((x)?)?)?)?)?)?)?)?)?y?){500}"}`,
		`miles{` + strings.Repeat(`boat!~"`+strings.Repeat("(a?)", 300)+`",`, 20) + `}`,
	} {
		if _, err := ask(t, r, text, 0); !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), "(?:") {
			t.Errorf("%.100s: %v, want Invalid, and what to write instead", text, err)
		}
	}
	for _, text := range []string{
		`label_replace(miles, "a", "$1$2$9", "boat", "` + strings.Repeat("([^-]*)-?", 20) + `")`,
		`miles{boat=~"` + strings.Repeat("(?:a|b)?", 2000) + `"}`, `miles{boat=~"(` + strings.Repeat("host-12345|", 5000) + `x)"}`,
		`miles{boat=~"` + strings.Repeat("(.*)", 300) + `"}`,
	} {
		if _, err := ask(t, r, text, 0); err != nil {
			t.Errorf("%.100s: %v", text, err)
		}
	}
	var named []string
	for i := range 900 {
		named = append(named, fmt.Sprintf("(host-%05d\\\\.example)", i))
	}
	// Names that someone put into a group each: a match is at one step of each name.
	if _, err := ask(t, r, `miles{boat!~"`+strings.Join(named, "|")+`"}`, 0); err != nil {
		t.Errorf("900 names in a group each: %v", err)
	}
	some := strings.Repeat("(a|b)?", 300)
	if _, err := query.BoundRegexes(some); err != nil {
		t.Errorf("a matcher of a remote read: %v", err)
	}
	if _, err := query.BoundRegexes(some, some, some, some, some, some); !fault.Is(err, fault.Invalid) {
		t.Errorf("six matchers of a remote read: %v, want Invalid", err)
	}
	if used := memory.Used(); used != 0 {
		t.Errorf("%d bytes are booked after the last query", used)
	}
}

// label_replace writes "^(?s:" before its pattern and ")$" behind it: x)?(a|b)?(y is no regular expression, and has one with them. Its groups and
// repetitions did not count.
func TestProcessSurvivesPatternsThatCloseTheGroupAroundThem(t *testing.T) {
	r, _ := counted(t, fleet(t), 32<<20, query.Settings{})
	of := func(pattern string) string { return `label_replace(miles, "a", "$1", "boat", "` + pattern + `")` }
	for _, text := range []string{
		of("x)?" + strings.Repeat("(a|b)?", 2000) + "(y"), of("x)?" + strings.Repeat("a{1000}", 30) + "(y"), of("x)|" + strings.Repeat("(host-12345)|", 500) + "(y"),
	} {
		if _, err := ask(t, r, text, 0); !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), "the regular expression") {
			t.Errorf("%.100s: %v, want Invalid, and that it is the regular expression", text, err)
		}
	}
	if _, err := ask(t, r, of("x)?(y"), 0); err != nil {
		t.Error(err)
	}
}

// The matcher may hold each class once for each repetition: ten patterns such as \pL{950} needed 76 MB, of which 2 MB were booked.
func TestMemoryOfOthersSurvivesClassesOfUnicodeThatRepeat(t *testing.T) {
	r, memory := counted(t, fleet(t), 32<<20, query.Settings{})
	if _, err := ask(t, r, `miles{`+strings.Repeat(`boat=~"\\pL{950}",`, 10)+`}`, 0); !fault.Is(err, fault.TooLarge) && !fault.Is(err, fault.Throttled) {
		t.Errorf("%v, want an error that says that there is no memory", err)
	}
	if _, err := ask(t, r, `miles{boat=~"\\pL{1,64}-[a-z0-9]{1,63}"}`, 0); err != nil {
		t.Error(err)
	}
	if used := memory.Used(); used != 0 {
		t.Errorf("%d bytes are booked after the last query", used)
	}
}

// A matcher of 15 kB that names \pL 5,000 times used 200 MB: each is a class of hundreds of ranges.
func TestProcessSurvivesClassesOfUnicode(t *testing.T) {
	r, _ := counted(t, fleet(t), 32<<20, query.Settings{})
	for _, text := range []string{
		"miles{boat=~`" + strings.Repeat(`\pL`, 1000) + "`}", `miles{boat=~"` + strings.Repeat(`[^\\P{Greek}]`, 300) + `"}`, `miles{boat=~"` + strings.Repeat(`\x5cpL`, 300) + `"}`,
		`label_replace(miles, "a", "$1", "boat", "` + strings.Repeat(`\\PL`, 101) + `") or miles{boat=~"` + strings.Repeat(`\\pN`, 100) + `"}`,
		`miles{` + strings.Repeat(`boat=~"a\x7b1000}",`, 30) + `}`, // braces as escapes of the string
	} {
		if _, err := ask(t, r, text, 0); !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), "the regular expression") {
			t.Errorf("%.50s: %v, want Invalid", text, err)
		}
	}
	for _, text := range []string{`miles{boat=~"[\\pL\\pN]+|\\p{Greek}*"}`, "miles{boat=~`" + strings.Repeat(`C:\\programs|`, 300) + "`}"} {
		if _, err := ask(t, r, text, 0); err != nil {
			t.Errorf("%.50s: %v", text, err)
		}
	}
}

// slow ignores that its context ends, and goes on until it is released.
type slow struct {
	query.Source
	released chan struct{}
}

func (s slow) Select(ctx context.Context, q *peer.Select) (peer.SeriesSet, error) {
	<-s.released
	return s.Source.Select(ctx, q)
}

// The engine sorts and matches for many seconds without checking its context; the client waited as long.
func TestClientIsAnsweredAtItsTimeoutWhateverTheEngineDoes(t *testing.T) {
	released := make(chan struct{})
	r, memory := counted(t, slow{fleet(t), released}, 32<<20, query.Settings{Timeout: setting.Span(50 * time.Millisecond)})
	q, err := r.Engine().NewInstantQuery(t.Context(), r.Table("default"), nil, "deriv(miles[1m])", time.Unix(60, 0))
	if err != nil {
		t.Fatal(err)
	}
	res := q.Exec(t.Context())
	var timeout promql.ErrQueryTimeout
	if !errors.As(res.Err, &timeout) {
		t.Errorf("%v, want a time-out", res.Err)
	}
	q.Close()
	if memory.Used() == 0 {
		t.Error("the memory was given back while the evaluation goes on")
	}
	close(released)
	for end := time.Now().Add(time.Minute); memory.Used() != 0 && time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond)
	}
	if used := memory.Used(); used != 0 {
		t.Errorf("%d bytes are booked after the evaluation", used)
	}
}

// Where memory is counted, an expression may be tried more than once: the result is the same.
func TestResultsAreTheSameHoweverOftenTheEngineIsAsked(t *testing.T) {
	src := crowd(t, 3000)
	plain := newReader(t, src, query.Settings{})
	tried, memory := counted(t, src, 1<<30, query.Settings{})
	for _, text := range []string{
		`sum(count_values("v", miles + time() * 0)) + sum(miles)`,
		`deriv(miles[1h]) or sum(miles) or count(deriv(miles[2h:1m]))`,
		`sum(max_over_time((miles + sum(miles))[10m:5s] @ 60))`,
	} {
		for _, over := range []time.Duration{0, 5 * time.Minute} {
			want, wantErr := ask(t, plain, text, over)
			got, gotErr := ask(t, tried, text, over)
			if wantErr != nil || gotErr != nil || want != got {
				t.Errorf("%s over %s: %.300s, %v, want %.300s, %v", text, over, got, gotErr, want, wantErr)
			}
		}
	}
	if used := memory.Used(); used != 0 {
		t.Errorf("%d bytes are booked after the last query", used)
	}
}

// TestSmallQueriesAreParsedWhileLargeOnesHoldAllMemory: the text of a query was booked without waiting, so that a dashboard's query was
// refused before it could wait for the part of the memory that is kept for small ones.
func TestSmallQueriesAreParsedWhileLargeOnesHoldAllMemory(t *testing.T) {
	r, memory := counted(t, fleet(t), 32<<20, query.Settings{})
	if err := memory.Reserve(memory.Free()); err != nil {
		t.Fatal(err)
	}
	ask := func() (promql.Query, error) {
		return r.Engine().NewInstantQuery(t.Context(), r.Table("default"), nil, "min(miles)", time.Unix(9, 0))
	}
	q, err := ask()
	if err != nil {
		t.Fatal(err)
	}
	free := time.AfterFunc(50*time.Millisecond, func() { memory.Release(32 << 20) })
	defer free.Stop()
	if res := q.Exec(t.Context()); res.Err != nil {
		t.Errorf("a small query did not wait for memory: %v", res.Err)
	}
	q.Close()

	var parsed []promql.Query
	for len(parsed) < 10_000 {
		if q, err = ask(); err != nil {
			break
		}
		parsed = append(parsed, q)
	}
	if !fault.Is(err, fault.Throttled) || len(parsed) < 100 || memory.Used() > 32<<20/8 {
		t.Errorf("%d queries were parsed, they hold %d bytes: %v", len(parsed), memory.Used(), err)
	}
	for _, q := range parsed {
		q.Close()
	}
	if used := memory.Used(); used != 0 {
		t.Errorf("%d bytes are booked afterwards", used)
	}
	if q, err = ask(); err != nil {
		t.Fatal(err)
	}
	q.Close()
}
