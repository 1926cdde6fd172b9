package api_test

import (
	"encoding/json"
	"math"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/gateway/api"
	"github.com/spillwaydb/spillway/gateway/query"
	"github.com/spillwaydb/spillway/protocols/setting"
)

func TestParseTime(t *testing.T) {
	f := func(s string, want time.Time) {
		t.Helper()
		if got, err := api.ParseTime(s); err != nil || !got.Equal(want) {
			t.Errorf("%q: %v, error %v; want %v", s, got, err, want)
		}
	}
	f("0", time.Unix(0, 0))
	f("4", time.Unix(4, 0))
	f("-1.5", time.UnixMilli(-1500))
	f("1435781430.781", time.UnixMilli(1435781430781))
	f("1435781430.7815", time.UnixMilli(1435781430782)) // to whole milliseconds, as Prometheus does
	f("1e3", time.Unix(1000, 0))
	f("2015-07-01T20:10:51.781Z", time.UnixMilli(1435781451781))
	f("2015-07-01T22:10:51.781+02:00", time.UnixMilli(1435781451781))
	f("-292273086-05-16T16:47:06Z", time.Unix(math.MinInt64/1000+62135596801, 0))
	f("292277025-08-18T07:12:54.999999999Z", time.Unix(math.MaxInt64/1000-62135596801, 999999999))

	bad := func(s string) {
		t.Helper()
		if got, err := api.ParseTime(s); err == nil {
			t.Errorf("%q: %v, want an error", s, got)
		}
	}
	bad("")
	bad("now")
	bad("NaN")
	bad("Inf")
	bad("1e17")
	bad("2015-06-30T23:59:60Z")
}

func TestParseDuration(t *testing.T) {
	f := func(s string, want time.Duration) {
		t.Helper()
		if got, err := api.ParseDuration(s); err != nil || got != want {
			t.Errorf("%q: %v, error %v; want %v", s, got, err, want)
		}
	}
	f("1", time.Second)
	f("0.25", 250*time.Millisecond)
	f("-3", -3*time.Second)
	f("1h30m", 90*time.Minute)
	f("5d", 120*time.Hour)

	bad := func(s string) {
		t.Helper()
		if got, err := api.ParseDuration(s); err == nil {
			t.Errorf("%q: %v, want an error", s, got)
		}
	}
	bad("")
	bad("1x")
	bad("NaN")
	bad("-Inf")
	bad("1e10000")
	bad("9223372036.854775807")
	bad("-1h")
}

// FuzzParams asks with any parameters: the answer is always an envelope and no server error.
func FuzzParams(f *testing.F) {
	f.Add("query_range", "query=up&start=0&end=1e3&step=15&timeout=1s&lookback_delta=5m&limit=1&stats=all")
	f.Add("query", "query=wind[5m:1s]&time=1e9")
	f.Add("series", "match[]=up&start=-292273086-05-16T16:47:06Z&end=NaN&limit=9223372036854775808")
	f.Add("labels", "match[]={__name__=~\".%2B\"}&start=%ff;")
	f.Add("label/U__a_/values", "limit=0")
	f.Add("query_exemplars", "query=rate(a[1m])")
	f.Add("parse_query", "query=a[1h:1m] offset -1s @ start()")
	f.Add("format_query", "query=-+-1")
	f.Add("metadata", "limit=-1&limit_per_metric=x")
	h := newAPI(f, harbour(f), query.Settings{Timeout: setting.Span(time.Second), SamplesMax: 10_000}, api.Settings{PointsMax: 100})
	f.Fuzz(func(t *testing.T, path, params string) {
		u := &url.URL{Path: "/api/v1/" + path, RawQuery: params}
		if strings.HasPrefix(path, "admin") {
			t.Skip()
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, &http.Request{Method: http.MethodGet, URL: u, Header: http.Header{}, Body: http.NoBody})
		if w.Code == 404 || w.Code == 405 {
			return
		}
		var env struct{ Status, ErrorType string }
		if err := json.Unmarshal(w.Body.Bytes(), &env); err != nil {
			t.Fatalf("%d: %v in %q", w.Code, err, w.Body)
		}
		if ok := w.Code == 200; ok != (env.Status == "success") || w.Code == 500 || ok != (env.ErrorType == "") {
			t.Fatalf("%d: %s", w.Code, w.Body)
		}
	})
}

func FuzzRead(f *testing.F) {
	r := readRequest(f, nil, matching("wind", 0, 100))
	f.Add([]byte(bodyOf(f, r.Body)))
	f.Add([]byte("\xff\xff\xff\xff\x0f"))
	h := newAPI(f, harbour(f), query.Settings{Timeout: setting.Span(time.Second)}, api.Settings{})
	f.Fuzz(func(t *testing.T, body []byte) {
		w := serve(h, httptest.NewRequest(http.MethodPost, "/api/v1/read", strings.NewReader(string(body))))
		if w.Code >= 500 {
			t.Fatalf("%d: %s", w.Code, w.Body)
		}
	})
}
