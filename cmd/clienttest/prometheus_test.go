//go:build clients

package clienttest

import (
	"encoding/json"
	"fmt"
	"maps"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// remote is where and how a Prometheus sends.
type remote struct {
	url     string
	message string // protobuf_message; "" for a Prometheus without the setting
}

const (
	message1 = "prometheus.WriteRequest"
	message2 = "io.prometheus.write.v2.Request"
)

// promConfig makes a configuration. Settings that only Prometheus 3 has stand behind modern.
func promConfig(modern bool, targets []string, remotes []remote) string {
	var b strings.Builder
	b.WriteString("global:\n  scrape_interval: 1s\n  scrape_timeout: 1s\n  evaluation_interval: 1s\n")
	if modern {
		b.WriteString("  scrape_native_histograms: true\n  always_scrape_classic_histograms: true\n")
	}
	b.WriteString("rule_files: [rules.yml]\nscrape_configs:\n")
	for i, addr := range targets {
		fmt.Fprintf(&b, "- job_name: job%d\n  static_configs: [{targets: [%q]}]\n", i, addr)
	}
	b.WriteString("remote_write:\n")
	for _, r := range remotes {
		fmt.Fprintf(&b, "- url: %s/api/v1/write\n  send_exemplars: true\n  send_native_histograms: true\n", r.url)
		b.WriteString("  queue_config: {batch_send_deadline: 500ms, max_backoff: 1s}\n")
		if r.message == message2 {
			b.WriteString("  metadata_config: {send: false}\n") // 2.0 sends it with the series; the setting is of 1.0
		} else {
			b.WriteString("  metadata_config: {send_interval: 2s}\n")
		}
		if r.message != "" {
			fmt.Fprintf(&b, "  protobuf_message: %s\n", r.message)
		}
	}
	return b.String()
}

const promRules = `groups:
- name: recorded
  rules:
  - record: job:app_requests:rate5s
    expr: sum by (job) (rate(app_requests_total[5s]))
  - record: app:native:rate5s
    expr: rate(app_native_seconds[5s])
  - alert: AlwaysOn
    expr: vector(1)
`

// startPrometheus starts a Prometheus with its own data directory.
func startPrometheus(t *testing.T, binary, config, features string, args ...string) (api, *process) {
	t.Helper()
	file := write(t, "prometheus.yml", config)
	if err := writeBeside(file, "rules.yml", promRules); err != nil {
		t.Fatal(err)
	}
	addr := freeAddr(t)
	args = append([]string{
		"--config.file=" + file, "--storage.tsdb.path=" + filepath.Join(t.TempDir(), "tsdb"), "--web.listen-address=" + addr,
		"--enable-feature=" + features,
	}, args...)
	p := run(t, "prometheus", binary, args...)
	a := api{t: t, name: "prometheus", url: "http://" + addr}
	a.ready(p)
	return a, p
}

// scraped waits until Prometheus has scraped each of the jobs so many times more, and found its target, or not.
func scraped(t *testing.T, prom api, times int, found bool, jobs ...string) {
	t.Helper()
	before := map[string]int{}
	for _, job := range jobs {
		eventually(t, time.Minute, func() (err error) { before[job], err = scrapes(prom, job, found); return err })
	}
	for _, job := range jobs {
		eventually(t, 2*time.Minute, func() error {
			n, err := scrapes(prom, job, found)
			if err == nil && n < before[job]+times {
				err = fmt.Errorf("Prometheus has %d scrapes of %s, target found %t, and had %d; %d more are waited for", n, job, found, before[job], times)
			}
			return err
		})
	}
}

// scrapes counts the scrapes of a job that found its target, or did not.
func scrapes(prom api, job string, found bool) (n int, err error) {
	query := fmt.Sprintf(`sum_over_time(up{job=%q}[1h])`, job)
	if !found {
		query = fmt.Sprintf(`count_over_time(up{job=%q}[1h]) - %s`, job, query)
	}
	e, err := prom.get("/api/v1/query", "query", query)
	if err != nil {
		return 0, err
	}
	var vector struct {
		Result []struct {
			Value [2]json.RawMessage // the time, and the value as a string
		}
	}
	if err := json.Unmarshal(e.Data, &vector); err != nil || len(vector.Result) == 0 { // there was none yet
		return 0, err
	}
	_, err = fmt.Sscanf(string(vector.Result[0].Value[1]), `"%d"`, &n)
	return n, err
}

const modernFeatures = "exemplar-storage,metadata-wal-records,created-timestamp-zero-ingestion"

// questions are asked of both sides.
func questions() []string {
	return []string{
		`{__name__=~".+"}`,
		`{job="job1"}`,
		`absent({job="job1"})`,
		`rate(app_requests_total[5s])`,
		`increase(app_classic_seconds_count[10s])`,
		`sum by (code) (rate(app_requests_total[10s]))`,
		`app_temperature_celsius`,
		`{"app.queue depth"}`,
		`app_guest`,
		`count(app_guest) by (job)`,
		`histogram_quantile(0.9, rate(app_classic_seconds_bucket[10s]))`,
		`app_native_seconds`,
		`histogram_quantile(0.5, app_native_seconds)`,
		`histogram_quantile(0.99, sum by (job) (rate(app_native_seconds[10s])))`,
		`histogram_count(rate(app_both_seconds[10s]))`,
		`histogram_fraction(-1, 1, app_native_seconds)`,
		`app_summary_seconds`,
		`resets(app_native_seconds[20s])`,
		`changes(app_guest[20s])`,
		`count_over_time(app_guest[10s])`,
		`count_over_time(app_native_seconds[10s])`,
		`rate({__name__=~".+"}[10s])`, // an error, the same on both sides
		`count by (__name__) ({__name__=~".+"})`,
		`max_over_time(app_temperature_celsius[10s])`,
		`last_over_time(app_native_seconds[10s])`,
		`up`,
		`{__name__=~"scrape_.+"}`,
		`job:app_requests:rate5s`,
		`app:native:rate5s`,
		`ALERTS`,
		`ALERTS_FOR_STATE`,
		`label_replace(up, "x", "$1", "instance", ".*:(.*)")`,
		`max_over_time(rate(app_requests_total[5s])[10s:1s])`,
		`app_requests_total offset 5s`,
		`topk by (job) (1, app_guest)`,
		`app_classic_seconds_bucket{le="+Inf"} / ignoring(le) app_classic_seconds_count`,
		`timestamp(app_requests_total)`,
	}
}

// window is a part of the past, in whole seconds.
type window struct{ start, end time.Time }

// until is the time from start to a moment ago.
func until(start time.Time) window {
	return window{start.Truncate(time.Second), time.Now().Add(-2 * time.Second).Truncate(time.Second)}
}

// agrees asks both sides everything about the window; the error lists the first difference of each query.
func (w window) agrees(want, got api) error {
	wrong := w.rawAgrees(want, got, `{__name__=~".+"}`)
	for _, q := range questions() {
		params := []string{"query", q, "start", seconds(w.start), "end", seconds(w.end), "step", "1s"}
		if d := difference(want, got, "/api/v1/query_range", params...); d != "" {
			wrong = append(wrong, "query_range "+q+": "+d)
		}
		if d := difference(want, got, "/api/v1/query", "query", q, "time", seconds(w.end)); d != "" {
			wrong = append(wrong, "query "+q+": "+d)
		}
	}
	if len(wrong) > 0 {
		return fmt.Errorf("between %s and %s, - %s, + %s:\n%s", seconds(w.start), seconds(w.end), want.name, got.name, strings.Join(wrong, "\n"))
	}
	return nil
}

// rawAgrees compares samples as they were stored.
func (w window) rawAgrees(want, got api, selectors ...string) (wrong []string) {
	for _, q := range selectors {
		q += fmt.Sprintf("[%ds]", int(w.end.Sub(w.start).Seconds()))
		if d := difference(want, got, "/api/v1/query", "query", q, "time", seconds(w.end)); d != "" {
			wrong = append(wrong, "query "+q+": "+d)
		}
	}
	return wrong
}

// difference compares two answers to one request: data, its elements in any order, warnings and infos. It is empty where
// they agree.
func difference(want, got api, path string, params ...string) string {
	w, werr := want.get(path, params...)
	g, gerr := got.get(path, params...)
	if werr != nil || gerr != nil {
		return cmp.Diff(fmt.Sprint(werr), fmt.Sprint(gerr))
	}
	ws, gs := elements(w.Data), elements(g.Data)
	var says []string
	for _, key := range slices.Sorted(maps.Keys(ws)) {
		if gs[key] != ws[key] {
			says = append(says, key+apart(ws[key], gs[key]))
		}
		delete(gs, key)
	}
	for _, key := range slices.Sorted(maps.Keys(gs)) {
		says = append(says, key+apart("", gs[key]))
	}
	if len(says) > 0 {
		return fmt.Sprintf("%d differ, of %d:\n%s", len(says), len(ws), strings.Join(says[:min(len(says), 3)], "\n"))
	}
	return cmp.Diff([][]string{w.Warnings, w.Infos}, [][]string{g.Warnings, g.Infos})
}

// elements are the elements of data, or of data's result, by the series that they are about, or else by themselves.
func elements(data json.RawMessage) map[string]string {
	var vector struct {
		ResultType string
		Result     []json.RawMessage
	}
	var list []json.RawMessage
	if json.Unmarshal(data, &list) != nil && json.Unmarshal(data, &vector) == nil {
		list = vector.Result
	}
	if list == nil {
		list = []json.RawMessage{data}
	}
	found := map[string]string{"type": vector.ResultType}
	for _, e := range list {
		var about struct{ Metric, SeriesLabels json.RawMessage }
		_ = json.Unmarshal(e, &about) // names and values are no objects
		key := canonical(e)
		switch {
		case about.Metric != nil:
			key = canonical(about.Metric)
		case about.SeriesLabels != nil:
			key = canonical(about.SeriesLabels)
		}
		found[key] += canonical(e)
	}
	return found
}

// canonical writes JSON with its keys in order and its numbers as they came.
func canonical(text json.RawMessage) string {
	d := json.NewDecoder(strings.NewReader(string(text)))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return err.Error()
	}
	out, _ := json.Marshal(v)
	return string(out)
}

// apart shows two texts from shortly before the place where they part.
func apart(want, got string) string {
	n := 0
	for n < len(want) && n < len(got) && want[n] == got[n] {
		n++
	}
	from := func(s string) string { return s[max(0, min(n-80, len(s))):min(len(s), n+160)] }
	return "\n  - " + from(want) + "\n  + " + from(got)
}

// TestPrometheusReadsWhatItSent runs a Prometheus that sends by both versions of the protocol, each into a table of its
// own, and asks Spillway and Prometheus the same questions.
func TestPrometheusReadsWhatItSent(t *testing.T) {
	t.Parallel()
	binary := client(t, "prometheus")
	s := startSpillway(t)
	targets := []string{freeAddr(t), freeAddr(t)}
	config := promConfig(true, targets, []remote{{s.url + "/t/rw1", message1}, {s.url + "/t/rw2", message2}})
	prom, p := startPrometheus(t, binary, config, modernFeatures)
	// The targets come after its senders, which begin after it is ready: they send no older samples, such as zeros at created timestamps. That targets are down is sent, too.
	for _, table := range []string{"rw1", "rw2"} {
		eventually(t, time.Minute, func() error {
			up, err := s.of(table).get("/api/v1/query", "query", "up")
			if err == nil && len(elements(up.Data)) < 1+len(targets) {
				err = fmt.Errorf("table %s has no rows yet: %s", table, up.Data)
			}
			return err
		})
	}
	begin := time.Now()
	startExporter(t, targets[0], 1)
	leaves := startExporter(t, targets[1], 2)
	scraped(t, prom, 12, true, "job0", "job1")
	leaves.leave()
	scraped(t, prom, 8, false, "job1")
	w := until(begin)
	for _, table := range []string{"rw1", "rw2"} {
		a := s.of(table)
		eventually(t, 30*time.Second, func() error { return w.agrees(prom, a) })
		checkExemplars(t, w, prom, a)
		checkMetadata(t, prom, a)
		checkNames(t, prom, a)
		checkRemoteRead(t, binary, w, prom, a)
	}
	if bad := p.lines("level=ERROR", "level=WARN", "non-recoverable"); len(bad) > 0 {
		t.Errorf("Prometheus complains:\n%s", strings.Join(bad, "\n"))
	}
	if n := s.metric("spillway_intake_rows_refused_total"); n != 0 {
		t.Errorf("%v rows were refused", n)
	}
	s.now.stop()
	s.start()
	for _, table := range []string{"rw1", "rw2"} {
		a := s.of(table)
		eventually(t, 30*time.Second, func() error { return w.agrees(prom, a) })
		checkExemplars(t, w, prom, a)
	}
	p.stop()
}

func checkExemplars(t *testing.T, w window, want, got api) {
	t.Helper()
	for _, q := range []string{`{__name__=~".+"}`, `app_native_seconds`, `rate(app_requests_total[5m])`} {
		params := []string{"query", q, "start", seconds(w.start), "end", seconds(w.end)}
		e, err := want.get("/api/v1/query_exemplars", params...)
		if err != nil || strings.Count(string(e.Data), "trace_id") < 2 {
			t.Errorf("Prometheus has hardly any exemplars to compare for %s: %v %.200s", q, err, e.Data)
		}
		eventually(t, 30*time.Second, func() error { // they travel behind the samples of their scrape
			if d := difference(want, got, "/api/v1/query_exemplars", params...); d != "" {
				return fmt.Errorf("%s: exemplars of %s: %s", got.name, q, d)
			}
			return nil
		})
	}
}

// checkMetadata compares type, help and unit of every family.
func checkMetadata(t *testing.T, want, got api) {
	t.Helper()
	families := func(a api) (map[string][]map[string]string, error) {
		e, err := a.get("/api/v1/metadata")
		if err != nil {
			return nil, err
		}
		var m map[string][]map[string]string
		return m, json.Unmarshal(e.Data, &m)
	}
	eventually(t, 30*time.Second, func() error {
		w, err := families(want)
		if err != nil {
			return err
		}
		if len(w) < 8 {
			return fmt.Errorf("Prometheus describes only %d families", len(w))
		}
		g, err := families(got)
		if err != nil {
			return err
		}
		// By 2.0 it sends those of the scrapes' own series too, which its API does not list.
		maps.DeleteFunc(g, func(name string, _ []map[string]string) bool {
			return w[name] == nil && (name == "up" || strings.HasPrefix(name, "scrape_"))
		})
		if d := cmp.Diff(w, g); d != "" {
			return fmt.Errorf("%s: metadata: %s", got.name, d)
		}
		return nil
	})
}

// checkNames compares labels, their values and series. The range reaches beyond both ends of the data: within a narrow
// range both sides list the series with samples only roughly.
func checkNames(t *testing.T, want, got api) {
	t.Helper()
	bounds := []string{"start", seconds(time.Now().Add(-time.Hour)), "end", seconds(time.Now().Add(time.Hour))}
	asked := [][]string{
		{"/api/v1/labels"},
		{"/api/v1/labels", "match[]", "app_guest"},
		{"/api/v1/label/__name__/values"},
		{"/api/v1/label/guest/values"},
		{"/api/v1/label/le/values", "match[]", `{job="job0"}`},
		{"/api/v1/series", "match[]", `{__name__=~".+"}`},
		{"/api/v1/series", "match[]", `app_guest{guest=~"[12]"}`, "match[]", "up"},
	}
	for _, ask := range asked {
		eventually(t, 30*time.Second, func() error { // the latest samples are still on the way
			if d := difference(want, got, ask[0], append(ask[1:], bounds...)...); d != "" {
				return fmt.Errorf("%s: %v: %s", got.name, ask, d)
			}
			return nil
		})
	}
}

// checkRemoteRead starts a Prometheus without own data that reads from a table.
func checkRemoteRead(t *testing.T, binary string, w window, want, got api) {
	t.Helper()
	config := fmt.Sprintf("remote_read:\n- url: %s/api/v1/read\n  read_recent: true\n", got.url)
	reader, p := startPrometheus(t, binary, config, "exemplar-storage")
	reader.name = "prometheus that reads from " + got.name
	eventually(t, 30*time.Second, func() error { return w.agrees(want, reader) })
	p.stop()
}

// TestPrometheusLosesNothingOverRestarts stops and kills Spillway while a Prometheus sends by both versions.
func TestPrometheusLosesNothingOverRestarts(t *testing.T) {
	t.Parallel()
	binary := client(t, "prometheus")
	s := startSpillway(t)
	targets := []string{freeAddr(t), freeAddr(t)}
	config := promConfig(true, targets, []remote{{s.url + "/t/rw1", message1}, {s.url + "/t/rw2", message2}})
	prom, _ := startPrometheus(t, binary, config, modernFeatures)
	begin := time.Now()
	startExporter(t, targets[0], 3)
	leaves := startExporter(t, targets[1], 4)
	scraped(t, prom, 6, true, "job0", "job1") // these are sent at once
	s.now.stop()
	scraped(t, prom, 3, true, "job0", "job1") // these wait in Prometheus
	leaves.leave()
	scraped(t, prom, 1, false, "job1") // its stale markers wait in Prometheus
	s.start()
	for range 3 {
		scraped(t, prom, 3, true, "job0")
		s.now.kill()
		s.start()
	}
	scraped(t, prom, 3, true, "job0")
	w := until(begin)
	for _, table := range []string{"rw1", "rw2"} {
		a := s.of(table)
		eventually(t, time.Minute, func() error { return w.agrees(prom, a) })
		checkExemplars(t, w, prom, a)
	}
}

// TestOldPrometheusReadsWhatItSent does the same with the Prometheus of the system, if there is one: Debian's is years
// old, speaks version 1 only and scrapes by other rules.
func TestOldPrometheusReadsWhatItSent(t *testing.T) {
	t.Parallel()
	binary, err := exec.LookPath("prometheus")
	if err != nil {
		t.Skip("the system has no Prometheus of its own (Debian's package is called prometheus)")
	}
	says, _ := exec.Command(binary, "--version").CombinedOutput()
	if !strings.Contains(string(says), "version 2.") {
		t.Skipf("the system's Prometheus is not an old one: %.60s", says)
	}
	s := startSpillway(t)
	targets := []string{freeAddr(t), freeAddr(t)}
	prom, p := startPrometheus(t, binary, promConfig(false, targets, []remote{{url: s.url}}), "exemplar-storage,native-histograms")
	begin := time.Now()
	startExporter(t, targets[0], 5)
	leaves := startExporter(t, targets[1], 6)
	scraped(t, prom, 8, true, "job0", "job1")
	leaves.leave()
	scraped(t, prom, 6, false, "job1")
	w := until(begin)
	// A Prometheus that old mixes up native histograms when it answers with several such series at once.
	selectors := []string{`{__name__!~"app_native_seconds|app_both_seconds|app:native:rate5s"}`}
	for _, job := range []string{"job0", "job1"} {
		for _, name := range []string{"app_native_seconds", "app_both_seconds", "app:native:rate5s"} {
			selectors = append(selectors, fmt.Sprintf("{__name__=%q,job=%q}", name, job))
		}
	}
	eventually(t, 30*time.Second, func() error {
		if wrong := w.rawAgrees(prom, s.api, selectors...); len(wrong) > 0 {
			return fmt.Errorf("- %s, + %s:\n%s", prom.name, s.name, strings.Join(wrong, "\n"))
		}
		return nil
	})
	checkExemplars(t, w, prom, s.api)
	checkMetadata(t, prom, s.api)
	if bad := p.lines("level=error", "non-recoverable"); len(bad) > 0 {
		t.Errorf("Prometheus complains:\n%s", strings.Join(bad, "\n"))
	}
}
