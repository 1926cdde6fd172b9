package standalonetest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/prompb"
	writev2 "github.com/prometheus/prometheus/prompb/io/prometheus/write/v2"

	"github.com/spillwaydb/spillway/cmd/internal/processtest"
	"github.com/spillwaydb/spillway/gateway/ha"
	"github.com/spillwaydb/spillway/gateway/intake/kafka/kafkatest"
)

// pairRow is one sample of a pair's series, of one replica.
type pairRow struct {
	cluster, replica, i string
	value               float64
	at                  time.Time
}

func (r pairRow) labels() []string {
	return []string{"__name__", "paired_v", "cluster", r.cluster, "i", r.i, "replica", r.replica}
}

// pairWriters send rows by each protocol; the answer has the header.
var pairWriters = map[string]func(l *limited, table string, rows ...pairRow) (int, http.Header){
	"rw1": func(l *limited, table string, rows ...pairRow) (int, http.Header) {
		var w prompb.WriteRequest
		for _, r := range rows {
			ts := prompb.TimeSeries{Samples: []prompb.Sample{{Timestamp: r.at.UnixMilli(), Value: r.value}}}
			for n := r.labels(); len(n) > 0; n = n[2:] {
				ts.Labels = append(ts.Labels, prompb.Label{Name: n[0], Value: n[1]})
			}
			w.Timeseries = append(w.Timeseries, ts)
		}
		return l.post("/t/"+table+"/api/v1/write", "application/x-protobuf", processtest.Packed(l.T, w.Marshal))
	},
	"rw2": func(l *limited, table string, rows ...pairRow) (int, http.Header) {
		w := writev2.Request{Symbols: []string{""}}
		for _, r := range rows {
			ts := writev2.TimeSeries{Samples: []writev2.Sample{{Timestamp: r.at.UnixMilli(), Value: r.value}}}
			for _, s := range r.labels() {
				ts.LabelsRefs = append(ts.LabelsRefs, uint32(len(w.Symbols)))
				w.Symbols = append(w.Symbols, s)
			}
			w.Timeseries = append(w.Timeseries, ts)
		}
		return l.post("/t/"+table+"/api/v1/write", "application/x-protobuf;proto=io.prometheus.write.v2.Request", processtest.Packed(l.T, w.Marshal))
	},
	"influx1": func(l *limited, table string, rows ...pairRow) (int, http.Header) {
		return l.post("/write?db="+table, "text/plain", pairLines(rows))
	},
	"otlp": func(l *limited, table string, rows ...pairRow) (int, http.Header) {
		var points []string
		for _, r := range rows {
			var attributes []string
			for n := r.labels()[2:]; len(n) > 0; n = n[2:] {
				attributes = append(attributes, fmt.Sprintf(`{"key":%q,"value":{"stringValue":%q}}`, n[0], n[1]))
			}
			points = append(points, fmt.Sprintf(`{"timeUnixNano":"%d","asDouble":%g,"attributes":[%s]}`, r.at.UnixNano(), r.value, strings.Join(attributes, ",")))
		}
		return l.post("/t/"+table+"/v1/metrics", "application/json",
			fmt.Appendf(nil, `{"resourceMetrics":[{"scopeMetrics":[{"metrics":[{"name":"paired_v","gauge":{"dataPoints":[%s]}}]}]}]}`, strings.Join(points, ",")))
	},
}

func pairLines(rows []pairRow) []byte {
	var b bytes.Buffer
	for _, r := range rows {
		fmt.Fprintf(&b, "paired,cluster=%s,i=%s,replica=%s v=%g %d\n", r.cluster, r.i, r.replica, r.value, r.at.UnixNano())
	}
	return b.Bytes()
}

func (l *limited) post(path, kind string, body []byte) (int, http.Header) {
	l.T.Helper()
	r, err := http.NewRequest(http.MethodPost, "http://"+l.Addr+path, bytes.NewReader(body))
	if err != nil {
		l.T.Fatal(err)
	}
	r.Header.Set("Content-Type", kind)
	if strings.Contains(kind, "protobuf") {
		r.Header.Set("Content-Encoding", "snappy")
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		l.T.Fatal(err)
	}
	_ = answer.Body.Close()
	return answer.StatusCode, answer.Header
}

// values are the values of the series paired_v over the last hour, by its other labels.
func (l *limited) values(table string) string {
	l.T.Helper()
	code, text, err := l.Get("/t/" + table + "/api/v1/query?query=" + url.QueryEscape(`paired_v[1h]`))
	if err != nil || code != http.StatusOK {
		l.T.Fatalf("%d %s %v", code, text, err)
	}
	var a struct {
		Data struct {
			Result []struct {
				Metric map[string]string
				Values [][2]any
			}
		}
	}
	if err := json.Unmarshal(text, &a); err != nil {
		l.T.Fatal(err)
	}
	var all []string
	for _, s := range a.Data.Result {
		delete(s.Metric, "__name__")
		one := fmt.Sprint(s.Metric)
		for _, v := range s.Values {
			one += fmt.Sprint(" ", v[1])
		}
		all = append(all, strings.TrimPrefix(one, "map"))
	}
	return strings.Join(all, "; ")
}

const pairYAML = `
ha: {enabled: true, replica_label: replica, update_interval: 1s, failover_timeout: %s, clusters_max: 2, tables: {all: {enabled: false}}}
`

// TestOneReplicaOfAPairIsKept writes what an HA pair sends, by each protocol, to a real process: the first replica is kept, the other one is
// acked and counted, rows of both in one request are judged one by one, a third pair is refused, and a table may be left out.
func TestOneReplicaOfAPairIsKept(t *testing.T) {
	l := startLimited(t, processtest.Program(t), fmt.Sprintf(pairYAML, "1h"))
	now := time.Now().Truncate(time.Second).Add(-time.Minute)
	row := func(replica, i string, value float64, second int) pairRow {
		return pairRow{"x", replica, i, value, now.Add(time.Duration(second) * time.Second)}
	}
	for name, write := range pairWriters {
		taken, nothing := 204, 202
		switch name {
		case "influx1":
			nothing = 204
		case "otlp":
			taken, nothing = 200, 200
		}
		before := l.metric("spillway_tracker_duplicate_samples_total")
		f := func(status int, rows ...pairRow) http.Header {
			t.Helper()
			got, header := write(l, name, rows...)
			if got != status {
				t.Errorf("%s: %d, want %d\n%s", name, got, status, &l.Log)
			}
			return header
		}
		f(taken, row("a", "0", 1, 0), row("a", "1", 2, 0))
		for round := range 2 { // series that are new, series that are known
			header := f(nothing, row("b", "0", 10, 1), row("b", "1", 20, 1))
			if got := header.Get("X-Prometheus-Remote-Write-Samples-Written"); name == "rw2" && got != "2" {
				t.Errorf("round %d: %q samples are written, say headers", round, got)
			}
		}
		f(taken, row("b", "0", 10, 2), row("a", "0", 3, 2), row("b", "1", 20, 2), row("a", "1", 4, 2))
		if got, want := l.values(name), `[cluster:x i:0] 1 3; [cluster:x i:1] 2 4`; got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
		if n := l.metric("spillway_tracker_duplicate_samples_total") - before; n != 6 {
			t.Errorf("%s: %v duplicates are counted", name, n)
		}
		f(taken, pairRow{"y", "b", "0", 5, now})
		if status, _ := write(l, name, pairRow{"z", "a", "0", 6, now}, row("a", "0", 5, 4)); name != "otlp" && status != 400 {
			t.Errorf("%s: a pair too many: %d", name, status)
		}
		if got, want := l.values(name), `[cluster:x i:0] 1 3 5; [cluster:x i:1] 2 4; [cluster:y i:0] 5`; got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
	if got := l.metric("spillway_tracker_refused_samples_total"); got != float64(len(pairWriters)) {
		t.Errorf("%v samples are refused", got)
	}
	pairWriters["rw1"](l, "all", row("a", "0", 1, 0))
	pairWriters["rw1"](l, "all", row("b", "0", 1, 0))
	if got, want := l.values("all"), "[cluster:x i:0 replica:a] 1; [cluster:x i:0 replica:b] 1"; got != want {
		t.Errorf("a table that is left out: %s", got)
	}
	_, text, err := l.Get("/api/v1/status/ha")
	if err != nil || !strings.Contains(string(text), `"table":"rw1","cluster":"x","elected":"a"`) || !strings.Contains(string(text), `"other":"b"`) {
		t.Errorf("%s %v", text, err)
	}
	l.reload("ha: {enabled: false}\n", "ok")
	pairWriters["rw1"](l, "rw1", row("b", "0", 7, 5))
	if got := l.values("rw1"); !strings.Contains(got, "[cluster:x i:0 replica:b] 7") {
		t.Errorf("switched off by a reload: %s", got)
	}
	l.reload("ha: {failover_timeout: 1s}\n", "failed")
}

// TestTheOtherReplicaTakesOver: the elected one is silent, and rows of the other one are kept after the timeout. Its records come by Kafka.
func TestTheOtherReplicaTakesOver(t *testing.T) {
	cluster := kafkatest.Fake(t)
	cluster.Create(1, "metrics")
	l := startLimited(t, processtest.Program(t), fmt.Sprintf(pairYAML, "2s")+fmt.Sprintf("kafka: [{brokers: [%q], topics: [{name: metrics, format: line}]}]\n", strings.Join(cluster.Addrs, `","`)))
	const timeout = 2 * time.Second // on a machine that stands still for longer, any replica may be elected at any row
	began := time.Now()
	now := began.Add(-time.Minute)
	if status, _ := pairWriters["influx1"](l, "default", pairRow{"x", "a", "0", 1, now}); status != 204 {
		t.Fatal(status)
	}
	last := 0
	for end := time.Now().Add(time.Minute); !strings.Contains(l.values("default"), "1 "); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("the other replica does not take over: %s\n%s", l.values("default"), &l.Log)
		}
		last++
		cluster.Produce("metrics", string(pairLines([]pairRow{{"x", "b", "0", float64(1 + last), now.Add(time.Duration(last) * time.Millisecond)}})))
		if err := cluster.Flush(); err != nil {
			t.Fatal(err)
		}
	}
	if took := time.Since(began); took < timeout {
		t.Errorf("the other replica took over after %v, at its row %d", took, last)
	}
	if n := l.metric("spillway_tracker_elections_total"); n != 2 {
		t.Errorf("%v elections", n)
	}
	asked := time.Now() // the first replica comes back, just after a row of the other one
	pairWriters["influx1"](l, "default", pairRow{"x", "b", "0", 0.5, now.Add(-time.Second)})
	if status, _ := pairWriters["rw1"](l, "default", pairRow{"x", "a", "0", -1, now.Add(time.Minute)}); status != 202 {
		if time.Since(asked) >= timeout {
			t.Skip("the machine stood still for longer than the timeout")
		}
		t.Fatalf("the first replica came back, and was answered %d", status)
	}
	var s struct{ Data []ha.PairStatus }
	_, text, err := l.Get("/api/v1/status/ha")
	if err == nil {
		err = json.Unmarshal(text, &s)
	}
	if err != nil || len(s.Data) != 1 || s.Data[0].Replica != "b" || s.Data[0].Other != "a" || !s.Data[0].Agreed {
		t.Errorf("%s %v", text, err)
	}
}
