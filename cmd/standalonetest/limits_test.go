package standalonetest

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/golang/snappy"
	"github.com/prometheus/prometheus/prompb"
	writev2 "github.com/prometheus/prometheus/prompb/io/prometheus/write/v2"

	"github.com/spillwaydb/spillway/cmd/internal/processtest"
	"github.com/spillwaydb/spillway/gateway/limits"
)

// TestLimitsOfTables tests real processes, each with other limits, with requests of every kind of client.
func TestLimitsOfTables(t *testing.T) {
	bin := processtest.Program(t)
	for name, test := range map[string]func(*testing.T, string){
		"EachSenderGetsItsOwnAnswerAtARate":                     eachSenderGetsItsOwnAnswerAtARate,
		"EachSenderGetsItsOwnAnswerAtTheSeriesLimit":            eachSenderGetsItsOwnAnswerAtTheSeriesLimit,
		"LabelsBeyondALimitNameTheirSeriesAndKeepTheirSiblings": labelsBeyondALimitNameTheirSeriesAndKeepTheirSiblings,
		"ALargeRequestIsRefusedWithoutReadingIt":                aLargeRequestIsRefusedWithoutReadingIt,
		"ABystanderIsServedBesideATableAtItsLimits":             aBystanderIsServedBesideATableAtItsLimits,
		"ADryRunLosesNothing":                                   aDryRunLosesNothing,
		"QueriesBeyondALimitAreRefusedWithItsName":              queriesBeyondALimitAreRefusedWithItsName,
		"ABadFileKeepsTheLimits":                                aBadFileKeepsTheLimits,
	} {
		t.Run(name, func(t *testing.T) { test(t, bin) })
	}
}

// limited is a process with its limits in a file that can be rewritten.
type limited struct {
	*processtest.Process
	file string
}

func startLimited(t *testing.T, bin, yaml string) *limited {
	l := &limited{file: filepath.Join(t.TempDir(), "spillway.yaml")}
	l.Process = processtest.NewOf(t, bin, "SPILLWAY_CONFIG_FILE="+l.file)
	l.write(yaml)
	l.Start()
	return l
}

func (l *limited) write(yaml string) {
	l.T.Helper()
	if err := os.WriteFile(l.file, []byte(yaml), 0o600); err != nil {
		l.T.Fatal(err)
	}
}

// reload rewrites the file, sends a SIGHUP and waits until it was applied, or refused.
func (l *limited) reload(yaml, outcome string) {
	l.T.Helper()
	name := `spillway_limits_reloads_total{outcome="` + outcome + `"}`
	before := l.metric(name)
	l.write(yaml)
	if err := l.Cmd.Process.Signal(syscall.SIGHUP); err != nil {
		l.T.Fatal(err)
	}
	for deadline := time.Now().Add(time.Minute); l.metric(name) == before; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			l.T.Fatalf("the file was not read\n%s", &l.Log)
		}
	}
}

// metric returns a metric's value; 0: it is not there.
func (l *limited) metric(name string) float64 {
	l.T.Helper()
	_, text, err := l.Get("/metrics")
	if err != nil {
		l.T.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if v, ok := strings.CutPrefix(strings.TrimSpace(line), name+" "); ok {
			f, err := strconv.ParseFloat(v, 64)
			if err != nil {
				l.T.Fatal(err)
			}
			return f
		}
	}
	return 0
}

// sent is an answer to a write.
type sent struct {
	status     int
	retryAfter string
	body       string
}

func (s sent) String() string {
	return fmt.Sprintf("%d, Retry-After %q: %s", s.status, s.retryAfter, s.body)
}

// writers send the same samples by every protocol: metric m{i="from"} … of so many series, now.
var writers = map[string]func(l *limited, table, metric string, series int) sent{
	"rw1":     (*limited).remoteWrite,
	"rw2":     (*limited).remoteWrite2,
	"influx1": func(l *limited, table, metric string, n int) sent { return l.lines("/write?db="+table, metric, n) },
	"influx2": func(l *limited, table, metric string, n int) sent {
		return l.lines("/api/v2/write?bucket="+table, metric, n)
	},
	"influx3": func(l *limited, table, metric string, n int) sent {
		return l.lines("/api/v3/write_lp?db="+table, metric, n)
	},
	"otlp": (*limited).otlp,
}

func (l *limited) send(path string, header http.Header, body []byte) sent {
	s, err := l.trySend(path, header, body)
	if err != nil {
		l.T.Fatalf("%s: %v\n%s", path, err, &l.Log)
	}
	return s
}

func (l *limited) trySend(path string, header http.Header, body []byte) (sent, error) {
	r, err := http.NewRequest(http.MethodPost, "http://"+l.Addr+path, bytes.NewReader(body))
	if err != nil {
		return sent{}, err
	}
	r.Header = header
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return sent{}, err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	return sent{answer.StatusCode, answer.Header.Get("Retry-After"), string(text)}, err
}

func (l *limited) lines(path, metric string, series int) sent {
	var b bytes.Buffer
	for i := range series {
		fmt.Fprintf(&b, "%s,i=%d v=%d\n", metric, i, i)
	}
	return l.send(path, nil, b.Bytes())
}

func (l *limited) remoteWrite(table, metric string, series int) sent {
	var w prompb.WriteRequest
	for i := range series {
		w.Timeseries = append(w.Timeseries, prompb.TimeSeries{
			Labels:  []prompb.Label{{Name: "__name__", Value: metric + "_v"}, {Name: "i", Value: strconv.Itoa(i)}},
			Samples: []prompb.Sample{{Timestamp: time.Now().UnixMilli(), Value: float64(i)}},
		})
	}
	b, err := w.Marshal()
	if err != nil {
		l.T.Fatal(err)
	}
	return l.send("/t/"+table+"/api/v1/write", http.Header{"Content-Encoding": {"snappy"}, "Content-Type": {"application/x-protobuf"}}, snappy.Encode(nil, b))
}

func (l *limited) remoteWrite2(table, metric string, series int) sent {
	w := writev2.Request{Symbols: []string{"", "__name__", metric + "_v", "i"}}
	for i := range series {
		w.Symbols = append(w.Symbols, strconv.Itoa(i))
		w.Timeseries = append(w.Timeseries, writev2.TimeSeries{
			LabelsRefs: []uint32{1, 2, 3, uint32(4 + i)},
			Samples:    []writev2.Sample{{Timestamp: time.Now().UnixMilli(), Value: float64(i)}},
		})
	}
	b, err := w.Marshal()
	if err != nil {
		l.T.Fatal(err)
	}
	return l.send("/t/"+table+"/api/v1/write", http.Header{"Content-Encoding": {"snappy"},
		"Content-Type": {"application/x-protobuf;proto=io.prometheus.write.v2.Request"}}, snappy.Encode(nil, b))
}

func (l *limited) otlp(table, metric string, series int) sent {
	var points []string
	for i := range series {
		points = append(points, fmt.Sprintf(`{"timeUnixNano":"%d","asDouble":%d,"attributes":[{"key":"i","value":{"stringValue":"%d"}}]}`, time.Now().UnixNano(), i, i))
	}
	body := fmt.Sprintf(`{"resourceMetrics":[{"scopeMetrics":[{"metrics":[{"name":"%s_v","gauge":{"dataPoints":[%s]}}]}]}]}`, metric, strings.Join(points, ","))
	return l.send("/t/"+table+"/v1/metrics", http.Header{"Content-Type": {"application/json"}}, []byte(body))
}

// eachSenderGetsItsOwnAnswerAtARate: a table has spent its burst for a long time, and every client must retry.
func eachSenderGetsItsOwnAnswerAtARate(t *testing.T, bin string) {
	const yaml = "limits: {remote_write_status: %d, defaults: {samples_per_second: 1, samples_burst: 1}}"
	l := startLimited(t, bin, fmt.Sprintf(yaml, 429))
	want := map[string]int{"rw1": 429, "influx1": 503, "influx2": 429, "influx3": 429, "otlp": 429}
	check := func(name string, status int) {
		t.Helper()
		s := writers[name](l, name, "m", 1)
		wait, err := strconv.Atoi(s.retryAfter)
		if s.status != status || err != nil || wait < 1 || wait > 60 || !strings.Contains(s.body, "samples_per_second") {
			t.Errorf("%s: %v; want %d", name, s, status)
		}
	}
	for name, status := range want {
		if s := writers[name](l, name, "m", 500); s.status/100 != 2 {
			t.Fatalf("%s: the first request is taken whole: %v", name, s)
		}
		check(name, status)
		if got := l.RowsOf(name, "m_v", "5m", time.Now().Add(time.Minute)); len(got) != 500 {
			t.Errorf("%s: %d series of 500 are there", name, len(got))
		}
	}
	l.reload(fmt.Sprintf(yaml, 503), "ok")
	check("rw1", 503)
	check("otlp", 429)
}

// eachSenderGetsItsOwnAnswerAtTheSeriesLimit: waiting does not help, so no client must retry, and the series within the
// limit are kept.
func eachSenderGetsItsOwnAnswerAtTheSeriesLimit(t *testing.T, bin string) {
	l := startLimited(t, bin, "limits: {defaults: {active_series: 10}}")
	want := map[string]struct {
		status int
		say    string
	}{
		"rw1": {400, "10 series are active"}, "influx1": {400, "partial write"}, "influx2": {422, "unprocessable entity"},
		"influx3": {400, "10 series are active"}, "otlp": {200, `"rejectedDataPoints"`},
	}
	for name, w := range want {
		for round := range 2 {
			s := writers[name](l, name, "m", 25)
			if s.status != w.status || !strings.Contains(s.body, w.say) || !strings.Contains(s.body, "active_series") || s.retryAfter != "" {
				t.Errorf("%s, round %d: %v; want %+v", name, round, s, w)
			}
		}
		if s := writers[name](l, name, "other", 1); s.status != w.status || strings.Contains(s.body, "unable to parse") {
			t.Errorf("%s, nothing stored: %v", name, s)
		}
		if got := l.RowsOf(name, "m_v", "5m", time.Now().Add(time.Minute)); len(got) != 10 {
			t.Errorf("%s: %d series are there, not 10", name, len(got))
		}
		if s := writers[name](l, name, "m", 10); s.status/100 != 2 || strings.Contains(s.body, "ejected") {
			t.Errorf("%s: series that are known: %v", name, s)
		}
	}
}

// labelsBeyondALimitNameTheirSeriesAndKeepTheirSiblings.
func labelsBeyondALimitNameTheirSeriesAndKeepTheirSiblings(t *testing.T, bin string) {
	l := startLimited(t, bin, "limits: {defaults: {label_value_bytes: 20}, tables: {wide: {label_value_bytes: 64KiB}}}")
	body := "m,i=1,host=short v=1\nm,i=2,host=" + strings.Repeat("x", 100) + " v=1\nm,i=3,host=short v=1\n"
	s := l.send("/write?db=x", nil, []byte(body))
	if s.status != 400 || !strings.Contains(s.body, "m,i=2") || !strings.Contains(s.body, "at most 20") || !strings.Contains(s.body, "dropped=1") {
		t.Errorf("%v", s)
	}
	if got := l.RowsOf("x", "m_v", "5m", time.Now().Add(time.Minute)); len(got) != 2 {
		t.Errorf("%d siblings", len(got))
	}
	if s := l.send("/write?db=wide", nil, []byte(body)); s.status != 204 {
		t.Errorf("a table that may: %v", s)
	}
	l.reload("limits: {defaults: {label_value_bytes: 200}}", "ok")
	if s := l.send("/write?db=x", nil, []byte(body)); s.status != 204 {
		t.Errorf("after the limit was raised: %v", s)
	}
	if n := l.metric(`spillway_limits_refused_total{limit="labels",mode="enforced",table="x"}`); n < 1 {
		t.Errorf("%v series are counted", n)
	}
}

// aLargeRequestIsRefusedWithoutReadingIt, and the connection goes on.
func aLargeRequestIsRefusedWithoutReadingIt(t *testing.T, bin string) {
	l := startLimited(t, bin, "limits: {defaults: {request_bytes: 1KiB}}")
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	for i := range 500 {
		fmt.Fprintf(z, "m,i=%d v=%d\n", i, i)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	if s := l.send("/write?db=x", nil, bytes.Repeat([]byte("m,i=1 v=1\n"), 200)); s.status != 413 || !strings.Contains(s.body, "request_bytes") {
		t.Errorf("%v", s)
	}
	if packed.Len() > 4096 || packed.Len() < 1024 {
		t.Fatalf("%d bytes", packed.Len())
	}
	if s := l.send("/write?db=x", http.Header{"Content-Encoding": {"gzip"}}, packed.Bytes()); s.status != 413 {
		t.Errorf("what is sent counts: %v", s)
	}
	if s := l.send("/write?db=x", nil, []byte("m,i=1 v=1\n")); s.status != 204 {
		t.Errorf("%v", s)
	}
}

// aBystanderIsServedBesideATableAtItsLimits: one table is flooded with samples and with new series by several senders
// while its limits are rewritten again and again; writes to another table must never be refused.
func aBystanderIsServedBesideATableAtItsLimits(t *testing.T, bin string) {
	const yaml = "limits: {new_series_grace: 1ms, defaults: {past_max: 1d}, tables: {noisy: {samples_per_second: %d, bytes_per_second: 1MiB, active_series: 2000, new_series_per_second: 100, request_concurrency: 4}}}"
	l := startLimited(t, bin, fmt.Sprintf(yaml, 5000))
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var wg sync.WaitGroup
	var floods, odd atomic.Int64
	for sender := range 6 {
		wg.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				var b bytes.Buffer
				for j := range 500 {
					fmt.Fprintf(&b, "m,i=%d v=%d\n", sender*1_000_000+i*500+j, i)
				}
				s, err := l.trySend("/api/v2/write?bucket=noisy", nil, b.Bytes())
				switch {
				case err != nil:
					t.Error(err)
					return
				case s.status == 429:
					floods.Add(1)
				case s.status != 204 && s.status != 422:
					odd.Add(1)
					t.Errorf("noisy: %v", s)
					return
				}
			}
		})
	}
	for i := 0; i < 200 || floods.Load() < 100; i++ {
		if s := l.send("/write?db=calm", nil, fmt.Appendf(nil, "m,i=%d v=%d\nm,i=x v=1\n", i, i)); s.status != 204 {
			t.Fatalf("calm, request %d: %v", i, s)
		}
		if i%50 == 25 {
			l.reload(fmt.Sprintf(yaml, 5000+i), "ok")
		}
		if odd.Load() > 0 {
			break
		}
	}
	stop()
	wg.Wait()
	if got := l.RowsOf("calm", "m_v", "5m", time.Now().Add(time.Minute)); len(got) < 200 {
		t.Errorf("%d series of the bystander are there", len(got))
	}
	if l.metric(`spillway_limits_refused_total{limit="samples_per_second",mode="enforced",table="noisy"}`)+
		l.metric(`spillway_limits_refused_total{limit="new_series_per_second",mode="enforced",table="noisy"}`) == 0 {
		t.Error("no refusal is counted")
	}
	if n := l.metric(`spillway_limits_active_series{table="noisy"}`); n == 0 || n > 2000 {
		t.Errorf("%v active series", n)
	}
	l.checkTop()
}

// checkTop looks for the table to blame as a person would.
func (l *limited) checkTop() {
	l.T.Helper()
	top := func(args ...string) string {
		out, err := exec.Command(l.Bin, append([]string{"table", "top", "--url=http://" + l.Addr}, args...)...).CombinedOutput()
		if err != nil {
			l.T.Fatalf("%v: %s", err, out)
		}
		return string(out)
	}
	var uses []limits.TableUse
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(200 * time.Millisecond) {
		if err := json.Unmarshal([]byte(top("-o", "json", "-n", "1")), &uses); err != nil {
			l.T.Fatal(err)
		}
		if len(uses) == 1 && uses[0].Table == "noisy" && len(uses[0].RefusedPerSecond) > 0 {
			break
		}
		if time.Now().After(deadline) {
			l.T.Fatalf("%+v", uses)
		}
	}
	if text := top(); !strings.Contains(text, "noisy") || !strings.Contains(text, "calm") || !strings.Contains(text, "refused/s") {
		l.T.Errorf("%s", text)
	}
	status, text, err := l.Get("/t/noisy/api/v1/status/tsdb")
	var answer struct{ Data struct{ Limits []limits.Use } }
	if err != nil || status != 200 || json.Unmarshal(text, &answer) != nil || len(answer.Data.Limits) != 5 {
		l.T.Errorf("status/tsdb: %d %v %s", status, err, text)
	}
}

// aDryRunLosesNothing: a flood beyond the limits, of which nothing is refused and all is counted.
func aDryRunLosesNothing(t *testing.T, bin string) {
	l := startLimited(t, bin, "limits: {new_series_grace: 1ms, defaults: {dry_run: true, samples_per_second: 1, samples_burst: 1, bytes_per_second: 1, active_series: 1, new_series_per_second: 1, new_series_burst: 1, label_value_bytes: 1, past_max: 1s, request_bytes: 10}}")
	for range 5 {
		if s := writers["rw1"](l, "x", "m", 100); s.status != 204 {
			t.Fatalf("%v", s)
		}
	}
	if s := l.send("/write?db=x", nil, fmt.Appendf(nil, "old,i=7 v=1 %d\n", time.Now().Add(-time.Minute).UnixNano())); s.status != 204 {
		t.Fatalf("%v", s)
	}
	if got := l.RowsOf("x", "m_v", "5m", time.Now().Add(time.Minute)); len(got) != 100 {
		t.Errorf("%d series", len(got))
	}
	for _, limit := range []string{"samples_per_second", "bytes_per_second", "active_series", "new_series_per_second", "labels", "past_max", "request_bytes"} {
		if l.metric(`spillway_limits_refused_total{limit="`+limit+`",mode="dry_run",table="x"}`) == 0 {
			t.Errorf("%s counted nothing", limit)
		}
		if l.metric(`spillway_limits_refused_total{limit="`+limit+`",mode="enforced",table="x"}`) != 0 {
			t.Errorf("%s refused something", limit)
		}
	}
}

// aBadFileKeepsTheLimits: with any mistake in any place.
func aBadFileKeepsTheLimits(t *testing.T, bin string) {
	l := startLimited(t, bin, "limits: {defaults: {request_bytes: 100}}")
	large := bytes.Repeat([]byte("m,i=1 v=1\n"), 20)
	for _, bad := range []string{
		"limits: {defaults: {request_bytes: plenty}}",
		"limits: {defaults: {reqest_bytes: 1MiB}}",
		"limits: {defaults: {label_value_bytes: 1GiB}}",
		"limits: {tables: {a/b: {}}}",
		"limits: {defaults: {request_bytes: 1MiB}}\nstorage: {no_such_key: 1}",
		"limits: {defaults: {request_bytes: 1MiB}}\nstorage: {minors_max: -1}", // a mistake elsewhere: all or nothing
		"limits: {defaults: {request_bytes: 1MiB}}\nlog_level: loud",
		"limits: [",
	} {
		l.reload(bad, "failed")
		if s := l.send("/write?db=x", nil, large); s.status != 413 {
			t.Errorf("%s: %v", bad, s)
		}
	}
	l.reload("limits: {defaults: {request_bytes: 1MiB}}", "ok")
	if s := l.send("/write?db=x", nil, large); s.status != 204 {
		t.Errorf("%v", s)
	}
	if _, text, err := l.Get("/api/v1/status/config"); err != nil || !strings.Contains(string(text), "request_bytes: 1MiB") {
		t.Errorf("the configuration in force: %v %s", err, text)
	}
	if said := l.Log.String(); strings.Contains(said, "needs a restart") || strings.Contains(said, "level=DEBUG") {
		t.Errorf("nothing else had changed\n%s", said)
	}
	l.reload("log_level: error\nquery: {running_max: 7}\nlimits: {defaults: {request_bytes: 1MiB}}", "ok")
	l.Eventually("the log says what needs a restart", func() bool { // the count that reload waits for comes before the line
		said := l.Log.String()
		return strings.Contains(said, "needs a restart") && strings.Contains(said, "key=query.running_max")
	})
	if err := os.Remove(l.file); err != nil {
		t.Fatal(err)
	}
	if code := l.Stop(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	l.write("limits: {defaults: {request_bytes: 1, samples_burst: 5}, tables: {x: {labels_per_series: 300}}}")
	out, err := exec.Command(l.Bin, "standalone", "--config.file="+l.file, "--data-dir="+filepath.Join(l.Dir, "data")).CombinedOutput()
	var ended *exec.ExitError
	if !errors.As(err, &ended) || !strings.Contains(string(out), "samples_burst is set") || !strings.Contains(string(out), "labels_per_series 300") {
		t.Errorf("a start with mistakes: %v %s", err, out)
	}
}

// queriesBeyondALimitAreRefusedWithItsName: columns and Prometheus' engine alike; a dry run answers and counts.
func queriesBeyondALimitAreRefusedWithItsName(t *testing.T, bin string) {
	const limit = "query_series: 20, query_samples: 900, query_range: 1h, query_bytes: 32MiB"
	l := startLimited(t, bin, "limits: {tables: {small: {"+limit+"}, dry: {dry_run: true, "+limit+"}, slow: {query_timeout: 1ms}}}")
	now := time.Now().Truncate(time.Second)
	for _, table := range []string{"small", "free", "dry", "slow"} {
		var b bytes.Buffer
		for i := range 100 {
			for k := range 10 {
				fmt.Fprintf(&b, "m,i=%d,half=%d v=%d %d\n", i, i%2, k, now.Add(-time.Duration(k)*time.Second).UnixNano())
			}
		}
		for k := range 500 {
			fmt.Fprintf(&b, "long,i=0 v=1 %d\nlong,i=1 v=1 %[1]d\n", now.Add(-time.Duration(k)*time.Second).UnixNano())
		}
		if s := l.send("/write?db="+table, nil, b.Bytes()); s.status != 204 {
			t.Fatal(s)
		}
	}
	ask := func(table, path string, params ...string) (int, string) {
		q := url.Values{"time": {strconv.FormatInt(now.Unix(), 10)}}
		for i := 0; i+1 < len(params); i += 2 {
			q.Set(params[i], params[i+1])
		}
		status, text, err := l.Get("/t/" + table + "/api/v1/" + path + "?" + q.Encode())
		if err != nil {
			t.Fatal(err)
		}
		return status, string(text)
	}
	rangeOf := func(from time.Duration) []string {
		return []string{"start", strconv.FormatInt(now.Add(-from).Unix(), 10), "end", strconv.FormatInt(now.Unix(), 10), "step", "60"}
	}
	beyond := []struct {
		limit, path string
		params      []string
	}{
		{"query_series", "query", []string{"query", "m_v"}},
		{"query_series", "query", []string{"query", "sum(m_v)"}},
		{"query_series", "query", []string{"query", "label_replace(m_v, 'a', '$1', 'i', '(.*)')"}},
		{"query_series", "series", []string{"match[]", "m_v"}},
		{"query_samples", "query", []string{"query", `sum(sum_over_time(long_v[10m]))`}},
		{"query_range", "query", []string{"query", `m_v{i="1"}[2h]`}},
		{"query_range", "query", []string{"query", `sum(rate(m_v{i="1"}[2h]))`}},
		{"query_range", "query_range", append([]string{"query", `m_v{i="1"}`}, rangeOf(2*time.Hour)...)},
		{"query_range", "query_exemplars", append([]string{"query", `m_v{i="1"}`}, rangeOf(2*time.Hour)...)},
		{"query_bytes", "query", []string{"query", `count_over_time(vector(1)[40m:1ms])`}},
	}
	for _, b := range beyond {
		if status, text := ask("small", b.path, b.params...); status != 422 || !strings.Contains(text, "(limit "+b.limit+")") || !strings.Contains(text, `table \"small\"`) {
			t.Errorf("small: %s %v: %d %.300s", b.limit, b.params, status, text)
		}
		for _, table := range []string{"free", "dry"} {
			if status, text := ask(table, b.path, b.params...); status != 200 {
				t.Errorf("%s: %s %v: %d %.300s", table, b.limit, b.params, status, text)
			}
		}
	}
	for table, mode := range map[string]string{"small": "enforced", "dry": "dry_run"} {
		for _, limit := range []string{"query_series", "query_samples", "query_range", "query_bytes"} {
			if l.metric(`spillway_limits_refused_total{limit="`+limit+`",mode="`+mode+`",table="`+table+`"}`) == 0 {
				t.Errorf("%s counts no %s", table, limit)
			}
		}
	}
	for _, within := range [][]string{{"query", "query", `sum(m_v{i=~"1.?"})`}, {"query", "query", `m_v{i="1"}[50m]`}, {"labels"}, {"label/i/values"}, {"series", "match[]", `long_v`}} {
		if status, text := ask("small", within[0], within[1:]...); status != 200 {
			t.Errorf("within: %v: %d %.300s", within, status, text)
		}
	}
	if status, text := ask("slow", "query", "query", `sum_over_time(vector(1)[40m:1ms])`); status != 503 || !strings.Contains(text, `"timeout"`) {
		t.Errorf("slow: %d %.300s", status, text)
	}
}
