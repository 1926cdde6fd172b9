//go:build clients

package clienttest

import (
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// grafanaAsks are requests as Grafana's data source for Prometheus sends them: its panels, its explorer, its variables and its query builder. A time stands
// for T+n, n seconds after the first sample.
var grafanaAsks = []struct {
	name, method, path, form string
}{
	{"the test of the data source", "POST", "/api/v1/query", "query=1%2B1&time=4"},
	{"a panel", "POST", "/api/v1/query_range", "end=T+600&query=sum+by%28code%29+%28rate%28http_requests_total%5B1m%5D%29%29&start=T+0&step=15"},
	{"a panel with a step of less than a second", "POST", "/api/v1/query_range", "end=T+60&query=temperature&start=T+0&step=0.5"},
	{"a panel of many series", "POST", "/api/v1/query_range", "end=T+600&query=%7Bjob%3D~%22.%2B%22%7D&start=T+0&step=60"},
	{"a heat map", "POST", "/api/v1/query_range", "end=T+600&query=sum+by%28le%29+%28increase%28latency_seconds_bucket%5B1m%5D%29%29&start=T+0&step=60"},
	{"a table", "POST", "/api/v1/query", "query=topk%283%2C+http_requests_total%29&time=T+600"},
	{"a range vector as a table", "POST", "/api/v1/query", "query=temperature%5B2m%5D&time=T+600"},
	{"a text", "POST", "/api/v1/query", "query=%22hello%22&time=T+600"},
	{"a number", "POST", "/api/v1/query_range", "end=T+60&query=vector%282%29&start=T+0&step=15"},
	{"nothing", "POST", "/api/v1/query_range", "end=T+60&query=no_such_metric&start=T+0&step=15"},
	{"exemplars beside a panel", "POST", "/api/v1/query_exemplars", "end=T+600&query=rate%28http_requests_total%5B1m%5D%29&start=T+0"},
	{"names of metrics", "GET", "/api/v1/label/__name__/values", "end=T+600&start=T+0"},
	{"label_values(metric, label)", "GET", "/api/v1/label/code/values", "end=T+600&match%5B%5D=http_requests_total&start=T+0"},
	{"label_values of a label that no series has", "GET", "/api/v1/label/nothing/values", "end=T+600&start=T+0"},
	{"label_names()", "POST", "/api/v1/labels", "end=T+600&start=T+0"},
	{"labels of a metric", "POST", "/api/v1/labels", "end=T+600&match%5B%5D=latency_seconds_bucket&start=T+0"},
	{"labels, as of versions that ask by GET", "GET", "/api/v1/labels", "end=T+600&match%5B%5D=temperature&start=T+0"},
	{"query_result and series of a selector", "GET", "/api/v1/series", "end=T+600&match%5B%5D=%7Bcode%3D%22500%22%7D&start=T+0"},
	{"series of two selectors", "POST", "/api/v1/series", "end=T+600&match%5B%5D=temperature&match%5B%5D=http_requests_total%7Bcode%3D%22200%22%7D&start=T+0"},
	{"an expression that does not parse", "POST", "/api/v1/query_range", "end=T+600&query=sum%28&start=T+0&step=15"},
	{"an expression of the wrong type", "POST", "/api/v1/query_range", "end=T+600&query=temperature%5B1m%5D&start=T+0&step=15"},
	{"a function that is not", "POST", "/api/v1/query", "query=nofunction%28temperature%29&time=T+600"},
	{"more points than there may be", "POST", "/api/v1/query_range", "end=T+600&query=temperature&start=T+0&step=0.01"},
	{"an end before the start", "POST", "/api/v1/query_range", "end=T+0&query=temperature&start=T+600&step=15"},
	{"a step of nothing", "POST", "/api/v1/query_range", "end=T+600&query=temperature&start=T+0&step=0"},
	{"series without a selector", "GET", "/api/v1/series", "end=T+600&start=T+0"},
	{"a selector that does not parse", "GET", "/api/v1/label/code/values", "match%5B%5D=%7B&start=T+0&end=T+600"},
	{"a pretty expression", "POST", "/api/v1/format_query", "query=sum%28rate%28http_requests_total%5B1m%5D%29%29by%28code%29"},
}

// page is the readings of a small shop every 15 s for ten minutes, as OpenMetrics.
func page(first time.Time) string {
	var b strings.Builder
	each := func(f func(n int, at int64)) {
		for n := range 41 {
			f(n, first.Add(time.Duration(n)*15*time.Second).Unix())
		}
	}
	b.WriteString("# TYPE http_requests counter\n")
	for i, code := range []string{"200", "404", "500"} {
		each(func(n int, at int64) {
			fmt.Fprintf(&b, "http_requests_total{job=\"shop\",code=%q} %d %d\n", code, n*(100>>(3*i)), at)
		})
	}
	b.WriteString("# TYPE temperature gauge\n")
	for room := range 2 {
		each(func(n int, at int64) {
			fmt.Fprintf(&b, "temperature{job=\"shop\",room=\"%d\"} %g %d\n", room, 20+float64(n%7)/4-float64(room), at)
		})
	}
	b.WriteString("# TYPE latency_seconds histogram\n")
	for i, le := range []string{"0.1", "1.0", "+Inf"} {
		each(func(n int, at int64) {
			fmt.Fprintf(&b, "latency_seconds_bucket{job=\"shop\",le=%q} %d %d\n", le, n*(i+1), at)
		})
	}
	b.WriteString("# EOF\n")
	return b.String()
}

// sent is the answer to one of those requests: status, type of the content, and the parts of the envelope.
func (a api) sent(method, path, form string) string {
	a.t.Helper()
	target, body := a.url+path, ""
	if method == http.MethodGet {
		target += "?" + form
	} else {
		body = form
	}
	rq, err := http.NewRequest(method, target, strings.NewReader(body))
	if err != nil {
		a.t.Fatal(err)
	}
	if body != "" {
		rq.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	resp, err := http.DefaultClient.Do(rq)
	if err != nil {
		a.t.Fatal(err)
	}
	defer resp.Body.Close()
	text := fmt.Sprintf("%d %s\n", resp.StatusCode, resp.Header.Get("Content-Type"))
	var e envelope
	if err := json.NewDecoder(resp.Body).Decode(&e); err != nil {
		a.t.Fatalf("%s: %s %s: %s%v", a.name, method, path, text, err)
	}
	text += fmt.Sprintf("%s %s %s\n", e.Status, e.ErrorType, e.Error)
	found := elements(e.Data)
	for _, key := range slices.Sorted(maps.Keys(found)) {
		text += key + " = " + found[key] + "\n"
	}
	return text
}

var recordGrafana = flag.Bool("record-grafana", false, "record Prometheus' answers to the requests of Grafana")

// grafanaRecording has the answers of Prometheus 3.15, by the name of the request.
const grafanaRecording = "testdata/grafana-prometheus-3.15.json"

// grafanaFirst is the time of the first sample: always the same, so that answers may be recorded.
var grafanaFirst = time.Date(2026, time.March, 1, 12, 0, 0, 0, time.UTC)

// answers are those to all requests of Grafana.
func (a api) answers() map[string]string {
	all := map[string]string{}
	for _, ask := range grafanaAsks {
		form := at(ask.form, grafanaFirst)
		if _, err := url.ParseQuery(form); err != nil {
			a.t.Fatal(err)
		}
		all[ask.name] = a.sent(ask.method, ask.path, form)
	}
	return all
}

// answersOfPrometheus starts a Prometheus with the samples of a file; nil: there is no Prometheus, or no promtool that makes blocks for it.
func answersOfPrometheus(t *testing.T, file string) map[string]string {
	t.Helper()
	promtool, err := exec.LookPath("promtool")
	if err != nil || installers["prometheus"]() != nil {
		return nil
	}
	blocks := filepath.Join(t.TempDir(), "tsdb")
	if said, err := exec.Command(promtool, "tsdb", "create-blocks-from", "openmetrics", file, blocks).CombinedOutput(); err != nil {
		t.Fatalf("promtool: %v\n%s", err, said)
	}
	addr := freeAddr(t)
	p := run(t, "prometheus", client(t, "prometheus"), "--config.file="+write(t, "prometheus.yml", "global: {}\n"), "--storage.tsdb.path="+blocks,
		"--storage.tsdb.retention.time=100y", "--web.listen-address="+addr, "--enable-feature=exemplar-storage")
	prom := api{t: t, name: "prometheus", url: "http://" + addr}
	prom.ready(p)
	return prom.answers()
}

// TestGrafanasRequestsAreAnsweredAsByPrometheus: the same samples are in both, and each request has the same answer. Where there is no
// Prometheus its recorded answers are compared with; where there is one, they are seen to be those that it gives. To record them again:
//
//	go test -tags clients ./cmd/clienttest -run GrafanasRequests -record-grafana
func TestGrafanasRequestsAreAnsweredAsByPrometheus(t *testing.T) {
	t.Parallel()
	file := write(t, "page.om", page(grafanaFirst))
	live := answersOfPrometheus(t, file)
	if *recordGrafana {
		text, err := json.MarshalIndent(live, "", " ")
		if err != nil || live == nil {
			t.Fatal("there is no Prometheus, or no promtool (of Debian's package prometheus): ", err)
		}
		if err := os.WriteFile(grafanaRecording, append(text, '\n'), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(grafanaRecording)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{}
	if err := json.Unmarshal(text, &want); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, live); live != nil && d != "" {
		t.Errorf("Prometheus does not answer as recorded, - recorded, + Prometheus:\n%s", d)
	}

	s := startSpillway(t)
	cmd := exec.CommandContext(t.Context(), spillwayBinary, "import", file, "--url", s.url)
	cmd.Env = os.Environ()
	if said, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("spillway import: %v\n%s", err, said)
	}
	for name, got := range s.answers() {
		if d := cmp.Diff(want[name], got); d != "" {
			t.Errorf("%s, - Prometheus, + Spillway:\n%s", name, d)
		}
	}
	if len(want) != len(grafanaAsks) {
		t.Errorf("%d answers are recorded, of %d requests: record them again", len(want), len(grafanaAsks))
	}
}

// at puts times into a form: T+n is n seconds after the first sample, in Grafana's way, with three decimals.
func at(form string, first time.Time) string {
	parts := strings.Split(form, "T+")
	for i, p := range parts[1:] {
		n := 0
		_, _ = fmt.Sscan(p[:strings.IndexAny(p+"&", "&")], &n) // the table is ours
		_, rest, more := strings.Cut(p, "&")
		parts[i+1] = seconds(first.Add(time.Duration(n) * time.Second))
		if more {
			parts[i+1] += "&" + rest
		}
	}
	return strings.Join(parts, "")
}
