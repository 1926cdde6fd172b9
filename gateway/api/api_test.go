package api_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/prometheus/model/histogram"
	"go.uber.org/goleak"

	"github.com/spillwaydb/spillway/gateway/api"
	"github.com/spillwaydb/spillway/gateway/query"
	"github.com/spillwaydb/spillway/gateway/query/querytest"
	"github.com/spillwaydb/spillway/protocols/point"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// newAPI serves a source with the settings of the tests.
func newAPI(t testing.TB, src query.Source, qs query.Settings, as api.Settings) *api.API {
	t.Helper()
	reg := prometheus.NewPedanticRegistry()
	q, err := query.New(query.Deps{Source: src, Registerer: reg}, qs)
	if err != nil {
		t.Fatal(err)
	}
	a, err := api.New(api.Deps{
		Query: q, Registerer: reg,
		Build:  api.Build{Version: "1.2.3", Revision: "abc", Date: "today"},
		Config: func() string { return "listen: :9090\n" },
		Flags:  func() map[string]string { return map[string]string{"config.file": "spillway.yaml"} },
	}, as)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// harbour is the data of the tests: two boats, a gauge with a stale end, a native histogram, odd names, another table.
func harbour(t testing.TB) *querytest.Store {
	t.Helper()
	st := querytest.NewStore()
	b := point.GetBatch(point.NewDict(0))
	series := func(pairs ...string) point.SeriesID {
		return querytest.Intern(b.Dict, point.MakeLabels(pairs...))
	}
	anna := series("__name__", "boat_miles_total", "boat", "anna", "crew", "3")
	berta := series("__name__", "boat_miles_total", "boat", "berta")
	wind := series("__name__", "wind", "pier", "north")
	odd := series("__name__", "odd", "a.b", `quote " back \ line`+"\n", "größe", "weiß <&>")
	for i := int64(0); i < 10; i++ {
		t := point.NanosOf(i * 10_000)
		b.Append(anna, t, float64(i))
		b.Append(berta, t, float64(2*i)+0.5)
		b.Append(wind, t+123_456_789, -1/float64(i+1))
	}
	b.Append(wind, point.NanosOf(100_123), stale())
	b.Append(odd, point.NanosOf(90_000), 1e300)
	h := &histogram.Histogram{
		Schema: 1, Count: 9, Sum: 12.5, ZeroThreshold: 0.001, ZeroCount: 2,
		PositiveSpans: []histogram.Span{{Offset: 0, Length: 2}}, PositiveBuckets: []int64{3, 0},
		NegativeSpans: []histogram.Span{{Offset: 0, Length: 1}}, NegativeBuckets: []int64{1},
	}
	load := series("__name__", "load")
	b.Hists = append(b.Hists, point.HistRow{ID: load, Time: point.NanosOf(90_000), H: point.AppendHistogram(nil, h)})
	b.Exemplars = append(b.Exemplars, point.ExemplarRow{
		ID: anna, Time: point.NanosOf(20_500), Value: 1.5, Labels: labelsOf("trace", "t-1"),
	})
	insert(t, st, "default", b)
	other := point.GetBatch(point.NewDict(0))
	other.Append(querytest.Intern(other.Dict, point.MakeLabels("__name__", "elsewhere")), point.NanosOf(90_000), 7)
	insert(t, st, "other", other)
	err := st.PutMetadata(context.Background(), "default", []point.MetadataRow{
		{Metric: "boat_miles_total", Type: "counter", Help: "Miles sailed.", Unit: "miles"},
		{Metric: "wind", Type: "gauge", Help: "Wind."},
	})
	if err != nil {
		t.Fatal(err)
	}
	return st
}

func insert(t testing.TB, st *querytest.Store, table string, b *point.Batch) {
	t.Helper()
	if err := querytest.Inserter(st, table, 1)(context.Background(), b); err != nil {
		t.Fatal(err)
	}
	b.Put()
}

// labelsOf encodes labels without a metric name, as exemplars have.
func labelsOf(name, value string) point.Labels {
	return point.Labels(string(rune(len(name))) + name + string(rune(len(value))) + value)
}

// TestAnswers runs testdata/answers: each case is a request, its golden the status and the body.
//
//	get|post|put|options path?query     one per case; for post and put the input is the form in the body
func TestAnswers(t *testing.T) {
	st := harbour(t)
	open := newAPI(t, st, query.Settings{}, api.Settings{Admin: true, CORSOrigin: `https://.*\.example`})
	closed := newAPI(t, st, query.Settings{}, api.Settings{CORSOrigin: "none"})
	datadriven.Walk(t, "testdata/answers", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			handler := open
			if d.HasArg("closed") {
				handler = closed
			}
			return exchange(t, handler, d)
		})
		if n := st.Unclosed(); n != 0 {
			t.Errorf("%d series sets were left open", n)
		}
	})
}

func exchange(t *testing.T, h http.Handler, d *datadriven.TestData) string {
	t.Helper()
	var r *http.Request
	lines := strings.Split(d.Input, "\n")
	target := encodeTarget(lines[0])
	switch body := strings.Join(lines[1:], "&"); d.Cmd {
	case "post", "put":
		r = httptest.NewRequest(strings.ToUpper(d.Cmd), target, strings.NewReader(encodeForm(body)))
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	default:
		r = httptest.NewRequest(strings.ToUpper(d.Cmd), target, nil)
	}
	for _, arg := range d.CmdArgs {
		if len(arg.Vals) == 1 {
			r.Header.Set(arg.Key, arg.Vals[0])
		}
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	out := fmt.Sprintf("%d %s\n", w.Code, w.Header().Get("Content-Type"))
	for _, name := range []string{"Allow", "Retry-After", "Access-Control-Allow-Origin"} {
		if v := w.Header().Get(name); v != "" {
			out += name + ": " + v + "\n"
		}
	}
	if w.Body.Len() == 0 {
		return out
	}
	return out + pretty(w.Body.Bytes())
}

// encodeTarget escapes the values of a path's readable query: query=a+b means the plus.
func encodeTarget(s string) string {
	path, q, ok := strings.Cut(s, "?")
	if !ok {
		return path
	}
	return path + "?" + encodeForm(q)
}

func encodeForm(s string) string {
	var out []string
	for _, kv := range strings.Split(s, "&") {
		k, v, _ := strings.Cut(kv, "=")
		if k != "" {
			out = append(out, url.QueryEscape(k)+"="+url.QueryEscape(v))
		}
	}
	return strings.Join(out, "&")
}

// varying are the parts that differ from run to run.
var varying = regexp.MustCompile(`("(?:startTime|serverTime|lastConfigTime|CWD|hostname|GOGC|GODEBUG|\w+Time)": ?)("[^"]*"|[0-9.e-]+)`)

var goVersion = regexp.MustCompile(`("goVersion": )"[^"]*"`)

var numbers = regexp.MustCompile(`("(?:goroutineCount|GOMAXPROCS|GOMEMLIMIT)": ?)\d+`)

func pretty(b []byte) string {
	var out bytes.Buffer
	if json.Indent(&out, b, "", " ") != nil {
		return strings.TrimSpace(string(b)) + "\n"
	}
	text := out.String()
	if strings.Contains(text, "GOMAXPROCS") || strings.Contains(text, "timings") {
		text = varying.ReplaceAllString(text, "$1…")
	}
	text = goVersion.ReplaceAllString(text, "$1…")
	text = numbers.ReplaceAllString(text, "$1…")
	return compact(text) + "\n"
}

// compact puts the innermost arrays and objects back on one line, for reading.
func compact(s string) string {
	inner := regexp.MustCompile(`[\[{]\n\s+([^\[\]{}]*?)\n\s*[\]}]`)
	gap := regexp.MustCompile(`\n\s+`)
	return inner.ReplaceAllStringFunc(s, func(m string) string {
		return m[:1] + gap.ReplaceAllString(strings.TrimSpace(m[1:len(m)-1]), " ") + m[len(m)-1:]
	})
}

func get(t testing.TB, h http.Handler, target string, header ...string) *http.Response {
	t.Helper()
	r := httptest.NewRequest(http.MethodGet, target, nil)
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Result()
}

func bodyOf(t testing.TB, r io.Reader) string {
	t.Helper()
	b, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestAQueryExplainsItself where the request asks for it, and else not.
func TestAQueryExplainsItself(t *testing.T) {
	h := newAPI(t, harbour(t), query.Settings{}, api.Settings{})
	f := func(target string, want bool) {
		t.Helper()
		body, err := io.ReadAll(get(t, h, target).Body)
		if err != nil {
			t.Fatal(err)
		}
		var got struct {
			Data struct{ Explain *query.Explanation }
		}
		if err := json.Unmarshal(body, &got); err != nil {
			t.Fatal(err)
		}
		e := got.Data.Explain
		if (e != nil) != want {
			t.Fatalf("%s: %s", target, body)
		}
		if want && (e.Columns != "whole" || len(e.Parts) != 1 || e.Parts[0].What != "rows" || e.Parts[0].Rows == 0 || e.Parts[0].Series == 0) {
			t.Errorf("%s: %s", target, body)
		}
	}
	f("/api/v1/query?query=sum(wind)&time=95&explain=1", true)
	f("/api/v1/query_range?query=sum(wind)&start=60&end=95&step=5&explain=true", true)
	f("/api/v1/query?query=sum(wind)&time=95", false)
}
