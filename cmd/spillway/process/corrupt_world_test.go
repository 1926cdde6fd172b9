package process

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"math"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/prompb"
	writev2 "github.com/prometheus/prometheus/prompb/io/prometheus/write/v2"

	"github.com/spillwaydb/spillway/cmd/internal/processtest"
)

// corruptWorld is the store to corrupt: written by a real process, kept as it was at several times, with the rows acked
// by then.
//
//	dir/early, dir/late     the store after two lives, ended by SIGTERM: old versions of files come from here
//	dir/killed              idle for more than two seconds, then killed
//	dir/clean               the same after one more life, ended by SIGTERM
//	dir/killed.json …       the expected answers of every table
type corruptWorld struct {
	t    *testing.T
	p    *processtest.Process
	dir  string
	from time.Time // of the first row, at the start of a day
	life int       // how often the process was started before
	sent map[string]map[string]map[int64]float64
}

// corruptDays is how many partitions each table has, except the one that grows.
const corruptDays = 3

// corruptTables are the written tables; each life makes another one, so that the lists of tables were last written at
// several times.
var corruptTables = []string{"default", "lines", "hists", "life0", "life1", "life2", "life3"}

// buildCorruptWorld fills the store, and stops when it holds something of every kind.
func buildCorruptWorld(t *testing.T, bin, dir string) {
	w := &corruptWorld{t: t, dir: dir, sent: map[string]map[string]map[int64]float64{}}
	w.from = time.Now().Add(-(corruptDays + 8) * 24 * time.Hour).Truncate(24 * time.Hour)
	lives := []struct {
		name  string
		flush bool
		kill  bool
	}{{"early", true, false}, {"late", true, false}, {"killed", false, true}, {"clean", false, false}}
	w.p = processtest.NewOf(t, bin)
	for i, life := range lives {
		w.p.Env = corruptEnviron(life.flush)
		w.p.Start()
		w.life = i
		w.write(i)
		if life.flush {
			w.flushed()
		}
		w.erase(i)
		w.write(i + 10) // most of these stay in the log
		want := w.read()
		w.compare(want)
		if life.kill {
			w.marked()
			w.p.Kill()
		} else if code := w.p.Stop(); code != 0 {
			t.Fatalf("exit code %d\n%s", code, &w.p.Log)
		}
		copyCorrupt(t, filepath.Join(w.p.Dir, "data"), filepath.Join(dir, life.name))
		text, err := json.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, life.name+".json"), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// corruptEnviron returns the settings of the writing processes: everything is flushed at once, or nothing is.
func corruptEnviron(flush bool) []string {
	age := "10h"
	if flush {
		age = "400ms"
	}
	return append(processtest.Environ(), "SPILLWAY_STORAGE_FLUSH_AGE="+age, "SPILLWAY_STORAGE_FLUSH_IDLE="+age, "SPILLWAY_STORAGE_MINORS_MAX=3",
		"SPILLWAY_STORAGE_FREE_BYTES_MIN=1", "SPILLWAY_TABLES_PARTITION_WIDTH=1d", "SPILLWAY_API_ADMIN=true", "SPILLWAY_STORAGE_MEMORY_BYTES=512MiB")
}

// flushed waits until no row is in the log only.
func (w *corruptWorld) flushed() {
	for deadline := time.Now().Add(processtest.Patience); ; time.Sleep(50 * time.Millisecond) {
		_, text, err := w.p.Get("/metrics")
		if err != nil {
			w.t.Fatal(err)
		}
		for _, line := range strings.Split(string(text), "\n") {
			if n, ok := strings.CutPrefix(line, "spillway_server_head_rows "); ok && n == "0" {
				return
			}
		}
		if time.Now().After(deadline) {
			w.t.Fatalf("the rows are not flushed within %v", processtest.Patience)
		}
	}
}

// marked waits until the log ends with the mark that says how far it is durable. It is written after an idle second, and ends with 24 bytes of zero;
// where it lies in two blocks of the file there may be fewer, and a minute is enough for it.
func (w *corruptWorld) marked() {
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		logs, err := filepath.Glob(filepath.Join(w.p.Dir, "data", "log", "*.log"))
		if err != nil || len(logs) == 0 {
			w.t.Fatal("no log: ", err)
		}
		b, err := os.ReadFile(slices.Max(logs))
		if err != nil {
			w.t.Fatal(err)
		}
		if bytes.HasSuffix(b, make([]byte, 24)) {
			return
		}
	}
}

// write sends rows by every protocol, in several requests, so that they end up in several segments.
func (w *corruptWorld) write(round int) {
	for k := range 3 {
		w.writeFloats(round*10 + k)
		w.writeLines(round*10 + k)
		w.writeHistograms(round*10 + k)
		w.writeTable(fmt.Sprint("life", w.life), round*10+k)
		if round < 2 { // lives that flush: so that there is something to compact
			time.Sleep(700 * time.Millisecond)
		}
	}
}

// days is the number of days for which the table "default" has rows: each life makes one of its partitions.
func (w *corruptWorld) days() int { return corruptDays + w.life }

// at returns the time of a round's rows in a day.
func (w *corruptWorld) at(day, round, i int) int64 {
	return w.from.UnixMilli() + int64(day)*24*3600_000 + int64(round)*200_000 + int64(i)*7_013
}

func (w *corruptWorld) note(table, series string, ms int64, v float64) {
	if w.sent[table] == nil {
		w.sent[table] = map[string]map[int64]float64{}
	}
	if w.sent[table][series] == nil {
		w.sent[table][series] = map[int64]float64{}
	}
	w.sent[table][series][ms] = v
}

// post sends a request that has to be acked. After 503 it is sent again, as clients do: the rows are the same.
func (w *corruptWorld) post(path, kind string, body []byte) {
	header := http.Header{"Content-Type": {kind}}
	if strings.Contains(kind, "protobuf") {
		header.Set("Content-Encoding", "snappy")
	}
	status, text, err := w.p.Do(http.MethodPost, path, header, body)
	for end := time.Now().Add(processtest.Patience); err == nil && status == http.StatusServiceUnavailable && time.Now().Before(end); {
		time.Sleep(50 * time.Millisecond)
		status, text, err = w.p.Do(http.MethodPost, path, header, body)
	}
	if err != nil || status/100 != 2 {
		w.t.Fatalf("%s: %d %s %v\n%s", path, status, text, err, &w.p.Log)
	}
}

// writeFloats writes counters and gauges by remote write 1, with metadata.
func (w *corruptWorld) writeFloats(round int) {
	r := prompb.WriteRequest{Metadata: []prompb.MetricMetadata{{MetricFamilyName: fmt.Sprint("m", round%7), Type: prompb.MetricMetadata_GAUGE, Help: "Help of it.", Unit: "s"}}}
	for day := range w.days() {
		for s := range 12 {
			name := fmt.Sprintf(`m%d{i="%d",job="j%d"}`, s%7, s, round%5)
			one := prompb.TimeSeries{Labels: []prompb.Label{{Name: "__name__", Value: fmt.Sprint("m", s%7)}, {Name: "i", Value: fmt.Sprint(s)}, {Name: "job", Value: fmt.Sprint("j", round%5)}}}
			for i := range 12 {
				v := float64(round*s) + float64(i)/8
				one.Samples = append(one.Samples, prompb.Sample{Timestamp: w.at(day, round, i), Value: v})
				w.note("default", name, w.at(day, round, i), v)
			}
			r.Timeseries = append(r.Timeseries, one)
		}
	}
	w.post("/api/v1/write", "application/x-protobuf", processtest.Packed(w.t, r.Marshal))
}

// writeLines writes line protocol to a table that the write creates.
func (w *corruptWorld) writeLines(round int) {
	var b []byte
	for day := range corruptDays {
		for s := range 8 {
			for i := range 4 {
				ms, v := w.at(day, round, i), float64(s)+float64(round)/16
				b = fmt.Appendf(b, "cpu,host=h%d usage=%v %d\n", s, v, ms)
				w.note("lines", fmt.Sprintf(`cpu_usage{host="h%d"}`, s), ms, v)
			}
		}
	}
	w.post("/write?db=lines&precision=ms", "text/plain", b)
}

// writeTable writes OpenTelemetry gauges to a table.
func (w *corruptWorld) writeTable(table string, round int) {
	var points []string
	for day := range corruptDays {
		for s := range 6 {
			ms, v := w.at(day, round, 0), float64(round)+float64(s)/4
			points = append(points, fmt.Sprintf(`{"asDouble":%v,"timeUnixNano":"%d","attributes":[{"key":"s","value":{"stringValue":"%d"}}]}`, v, ms*1e6, s))
			w.note(table, fmt.Sprintf(`level{s="%d"}`, s), ms, v)
		}
	}
	w.post("/t/"+table+"/v1/metrics", "application/json", fmt.Appendf(nil,
		`{"resourceMetrics":[{"scopeMetrics":[{"metrics":[{"name":"level","gauge":{"dataPoints":[%s]}}]}]}]}`, strings.Join(points, ",")))
}

// writeHistograms writes native histograms and counters with exemplars by remote write 2.
func (w *corruptWorld) writeHistograms(round int) {
	r := writev2.Request{Symbols: []string{"", "__name__", "latency", "requests", "i", "trace_id"}}
	symbol := func(s string) uint32 {
		r.Symbols = append(r.Symbols, s)
		return uint32(len(r.Symbols) - 1)
	}
	for day := range corruptDays {
		for s := range 4 {
			i := symbol(fmt.Sprint(s))
			ms := w.at(day, round, s)
			h := &histogram.Histogram{Schema: 1, ZeroThreshold: 1e-3, ZeroCount: 2, Count: 12, Sum: float64(round) + 0.5,
				PositiveSpans: []histogram.Span{{Offset: 0, Length: 2}, {Offset: 2, Length: 2}}, PositiveBuckets: []int64{1, 1, 1, 1}}
			r.Timeseries = append(r.Timeseries,
				writev2.TimeSeries{LabelsRefs: []uint32{1, 2, 4, i}, Histograms: []writev2.Histogram{writev2.FromIntHistogram(0, ms, h)}},
				writev2.TimeSeries{LabelsRefs: []uint32{1, 3, 4, i}, Samples: []writev2.Sample{{Timestamp: ms, Value: float64(round)}},
					Exemplars: []writev2.Exemplar{{LabelsRefs: []uint32{5, symbol(fmt.Sprint("t", round, s, day))}, Value: 1, Timestamp: ms}}})
			w.note("hists", fmt.Sprintf(`requests{i="%d"}`, s), ms, float64(round))
			w.note("hists", fmt.Sprintf(`latency{i="%d"}`, s), ms, float64(round)+0.5)
		}
	}
	w.post("/t/hists/api/v1/write", "application/x-protobuf;proto=io.prometheus.write.v2.Request", processtest.Packed(w.t, r.Marshal))
}

// erase deletes a few series of every table, over some of the time.
func (w *corruptWorld) erase(life int) {
	lo, hi := w.at(0, 0, 0)/1000, w.at(2, 50+life, 0)/1000
	for table, match := range map[string]string{
		"default": fmt.Sprintf(`{i="%d"}`, life), "lines": fmt.Sprintf(`{host="h%d"}`, life), "hists": fmt.Sprintf(`{i="%d"}`, life%4),
	} {
		q := url.Values{"match[]": {match}, "start": {strconv.FormatInt(lo, 10)}, "end": {strconv.FormatInt(hi, 10)}}
		w.post("/t/"+table+"/api/v1/admin/tsdb/delete_series?"+q.Encode(), "text/plain", nil)
		for series, rows := range w.sent[table] {
			if strings.Contains(series, match[1:len(match)-1]) {
				for ms := range rows {
					if ms >= lo*1000 && ms <= hi*1000 {
						delete(rows, ms)
					}
				}
			}
		}
	}
}

// compare checks the answers of a whole store against the acked rows: from here on the answer is the ledger.
func (w *corruptWorld) compare(got corruptAnswers) {
	w.t.Helper()
	for table, series := range w.sent {
		rows, want := got[table], 0
		for name, sent := range series {
			if len(sent) == 0 {
				continue
			}
			want++
			if have := rows.Series[name]; len(have) != len(sent) {
				w.t.Fatalf("table %s: %s has %d rows of %d", table, name, len(have), len(sent))
			}
			for _, r := range rows.Series[name] {
				if v, ok := sent[r.Ms]; !ok || r.sum() != v {
					w.t.Fatalf("table %s: %s at %d is %s, sent %v", table, name, r.Ms, r.Value, v)
				}
			}
		}
		if want != len(rows.Series) {
			w.t.Fatalf("table %s: %d series of %d", table, len(rows.Series), want)
		}
	}
	if len(got["hists"].Exemplars) < 100 || len(got["default"].Metadata) < 3 {
		w.t.Fatalf("%d bytes of exemplars, %d of metadata", len(got["hists"].Exemplars), len(got["default"].Metadata))
	}
}

// corruptAnswers are a store's answers, by table.
type corruptAnswers map[string]corruptRows

// corruptRows is all data of a table that can be queried.
type corruptRows struct {
	Series    map[string][]corruptRow
	Exemplars string
	Metadata  string
}

// corruptRow is a row: its value as JSON, also of a histogram.
type corruptRow struct {
	Ms    int64
	Value string
}

// sum returns the value, or the sum of a histogram.
func (r corruptRow) sum() float64 {
	var h struct{ Sum string }
	text := strings.Trim(r.Value, `"`)
	if strings.HasPrefix(r.Value, "{") && json.Unmarshal([]byte(r.Value), &h) == nil {
		text = h.Sum
	}
	v, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return math.NaN()
	}
	return v
}

// read asks a whole store for everything; an answer that reports damage ends the test.
func (w *corruptWorld) read() corruptAnswers {
	w.t.Helper()
	out := corruptAnswers{}
	for _, table := range corruptTables {
		if w.sent[table] == nil {
			continue
		}
		rows, said, err := askCorrupt(http.DefaultClient, "http://"+w.p.Addr, table, math.MinInt64, math.MaxInt64)
		if err != nil || said != "" {
			w.t.Fatalf("table %s: %s %v", table, said, err)
		}
		out[table] = rows
	}
	return out
}

// copyCorrupt copies a directory.
func copyCorrupt(t *testing.T, from, to string) {
	t.Helper()
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
}

// corruptFiles lists the files under a directory, by their paths from there.
func corruptFiles(dir string) (names []string, err error) {
	err = filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(dir, p)
		names = append(names, filepath.ToSlash(rel))
		return err
	})
	return names, err
}
