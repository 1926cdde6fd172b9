package api_test

import (
	"bufio"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/prometheus/model/histogram"
	"google.golang.org/protobuf/encoding/protodelim"

	"github.com/spillwaydb/spillway/gateway/api"
	"github.com/spillwaydb/spillway/gateway/query"
	"github.com/spillwaydb/spillway/gateway/query/querytest"
	"github.com/spillwaydb/spillway/protocols/point"
)

// today is a store with samples of the last minutes.
func today(t testing.TB, now time.Time) *querytest.Store {
	st := querytest.NewStore()
	b := point.GetBatch(point.NewDict(0))
	series := func(pairs ...string) point.SeriesID { return querytest.Intern(b.Dict, point.MakeLabels(pairs...)) }
	ago := func(d time.Duration) point.Nanos { return now.Add(-d).UnixNano() }
	anna, berta := series("__name__", "miles", "boat", "anna"), series("__name__", "miles", "boat", "berta", "instance", "pier:1")
	b.Append(anna, ago(2*time.Minute), 1)
	b.Append(anna, ago(time.Minute), 2.5)
	b.Append(berta, ago(4*time.Minute), math.Inf(1))
	b.Append(series("__name__", "miles", "boat", "clara"), ago(6*time.Minute), 9) // older than the lookback
	gone := series("__name__", "gone")
	b.Append(gone, ago(2*time.Minute), 1)
	b.Append(gone, ago(time.Minute), stale())
	b.Append(series("__name__", "dots.in name", "größe", "weiß\n\""), ago(time.Minute), 4)
	hist := func(name string, h *histogram.Histogram) {
		b.Hists = append(b.Hists, point.HistRow{ID: series("__name__", name), Time: ago(time.Minute), H: point.AppendHistogram(nil, h)})
	}
	hist("load", &histogram.Histogram{Schema: 1, Count: 3, Sum: 12.5, ZeroThreshold: 0.001, ZeroCount: 1,
		PositiveSpans: []histogram.Span{{Offset: 2, Length: 1}}, PositiveBuckets: []int64{2}})
	hist("waves", &histogram.Histogram{Schema: histogram.CustomBucketsSchema, Count: 6, Sum: 20, CustomValues: []float64{1, 2, 4},
		PositiveSpans: []histogram.Span{{Offset: 0, Length: 1}, {Offset: 1, Length: 2}}, PositiveBuckets: []int64{2, -1, 2}})
	insert(t, st, "default", b)
	other := point.GetBatch(point.NewDict(0))
	other.Append(querytest.Intern(other.Dict, point.MakeLabels("__name__", "elsewhere")), ago(time.Minute), 7)
	insert(t, st, "other", other)
	return st
}

func federate(t testing.TB, a http.Handler, path, accept string, match ...string) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequest(http.MethodGet, path+"?"+url.Values{"match[]": match}.Encode(), nil)
	if accept != "" {
		r.Header.Set("Accept", accept)
	}
	return serve(a, r)
}

var millis = regexp.MustCompile(` (\d{13}|\d\.\d+e\+09)\n`)

func TestAPrometheusTakesSeriesOverByScraping(t *testing.T) {
	a := newAPI(t, today(t, time.Now()), query.Settings{}, api.Settings{})
	const everything = `{__name__=~".+"}`
	f := func(accept, want string, match ...string) {
		t.Helper()
		w := federate(t, a, "/federate", accept, match...)
		got := millis.ReplaceAllString(w.Body.String(), " T\n")
		if w.Code != http.StatusOK || got != want {
			t.Errorf("%s, %q: %d\n%s\nwant\n%s", match, accept, w.Code, got, want)
		}
	}
	miles := `# TYPE miles untyped
miles{boat="anna",instance=""} 2.5 T
miles{boat="berta",instance="pier:1"} +Inf T
`
	waves := `# TYPE waves histogram
waves_bucket{instance="",le="1"} 2 T
waves_bucket{instance="",le="2"} 2 T
waves_bucket{instance="",le="4"} 3 T
waves_bucket{instance="",le="+Inf"} 6 T
waves_sum{instance=""} 20 T
waves_count{instance=""} 6 T
`
	dots := "# TYPE dots_in_name untyped\ndots_in_name{gr__e=\"weiß\\n\\\"\",instance=\"\"} 4 T\n"
	f("", miles, "miles")
	f("text/plain;version=0.0.4;q=0.3,*/*;q=0.1", miles, `{boat!=""}`, "miles", `{boat="anna"}`)
	f("", dots+miles+waves, everything)
	f("", "", "nothing")
	f("", "")
	f("application/openmetrics-text;version=1.0.0", strings.Replace(miles, "untyped", "unknown", 1)+"# EOF\n", "miles")
	if w := federate(t, a, "/t/other/federate", "", everything); !strings.HasPrefix(w.Body.String(), "# TYPE elsewhere untyped\nelsewhere{instance=\"\"} 7 ") {
		t.Errorf("of another table: %s", w.Body)
	}
	for _, bad := range []string{"miles[5m]", "{", `{boat=""} and miles`} {
		if w := federate(t, a, "/federate", "", bad); w.Code != http.StatusBadRequest {
			t.Errorf("%s: %d %s", bad, w.Code, w.Body)
		}
	}
}

func TestAScraperOfProtobufGetsNativeHistograms(t *testing.T) {
	now := time.Now()
	a := newAPI(t, today(t, now), query.Settings{}, api.Settings{})
	const accept = `application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited;escaping=allow-utf-8`
	w := federate(t, a, "/federate", accept, `{__name__=~".+"}`)
	in := bufio.NewReader(w.Body)
	var got []string
	for {
		var f dto.MetricFamily
		if err := protodelim.UnmarshalFrom(in, &f); err != nil {
			break
		}
		got = append(got, fmt.Sprint(f.GetName(), " ", f.GetType(), " ", len(f.Metric)))
		if h := f.Metric[0].Histogram; f.GetName() == "load" && (h.GetSampleCountFloat() != 3 || h.GetSchema() != 1 || len(h.PositiveSpan) != 1 || h.PositiveCount[0] != 2 || h.GetZeroCountFloat() != 1) {
			t.Errorf("load: %v", h)
		}
		if at := f.Metric[0].GetTimestampMs(); at < now.Add(-5*time.Minute).UnixMilli() || at > now.UnixMilli() {
			t.Errorf("%s: at %d", f.GetName(), at)
		}
	}
	want := []string{"dots.in name UNTYPED 1", "load HISTOGRAM 1", "miles UNTYPED 2", "waves HISTOGRAM 1"}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// Pages of any origin may read, as from Prometheus, unless the settings say otherwise; a browser asks first.
func TestGrafanaInABrowserReadsFromAnotherOrigin(t *testing.T) {
	f := func(setting, origin, want string) {
		t.Helper()
		a := newAPI(t, today(t, time.Now()), query.Settings{}, api.Settings{CORSOrigin: setting})
		for _, method := range []string{http.MethodGet, http.MethodPost, http.MethodOptions} {
			for _, path := range []string{"/api/v1/query?query=1", "/t/other/api/v1/labels", "/nowhere"} {
				r := httptest.NewRequest(method, path, nil)
				r.Header.Set("Origin", origin)
				r.Header.Set("Access-Control-Request-Method", method)
				h := serve(a, r).Header()
				if got := h.Get("Access-Control-Allow-Origin"); got != want {
					t.Errorf("%s %s from %q where %q is allowed: %q, want %q", method, path, origin, setting, got, want)
				}
				if want != "" && (!strings.Contains(h.Get("Access-Control-Allow-Headers"), "Authorization") || !strings.Contains(h.Get("Access-Control-Allow-Methods"), "POST")) {
					t.Errorf("%v", h)
				}
				if !strings.Contains(strings.Join(h.Values("Vary"), ","), "Origin") {
					t.Errorf("a cache may give the answer for one origin to another: %v", h)
				}
			}
		}
	}
	f("", "http://grafana.example:3000", "http://grafana.example:3000")
	f("", "", "")
	f("none", "http://grafana.example:3000", "")
	f(`https?://.*\.example`, "https://a.example", "https://a.example")
	f(`https?://.*\.example`, "https://a.example.evil", "")
}
