package standalonetest

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/cmd/internal/processtest"
	"github.com/spillwaydb/spillway/cmd/spillway/client"
	"github.com/spillwaydb/spillway/cmd/spillway/topics"
	"github.com/spillwaydb/spillway/gateway/intake/kafka/kafkatest"
)

// TestSeriesAreRelabelledByEveryProtocol writes the same series by each protocol to a real process, which keeps some, rewrites some and
// drops some, and changes its rules while it runs.
func TestSeriesAreRelabelledByEveryProtocol(t *testing.T) {
	const rules = `
relabel:
  write_relabel_configs:
  - {source_labels: [__name__], regex: "gone.*", action: drop}
  - {source_labels: [i], regex: "1", target_label: i, replacement: "one"}
  tables:
    quiet:
      write_relabel_configs:
      - {action: drop, regex: ".*"}
`
	l := startLimited(t, processtest.Program(t), rules)
	ask := func(table, query string) string {
		t.Helper()
		code, text, err := l.Get("/t/" + table + "/api/v1/query?query=" + url.QueryEscape(query))
		if err != nil || code != 200 {
			t.Fatalf("%s: %d %s %v", query, code, text, err)
		}
		return string(text)
	}
	dropped := func() float64 { return l.metric("spillway_forward_relabel_dropped_samples_total") }
	for name, write := range writers {
		table := "t" + name
		for _, metric := range []string{"kept", "gone", "kept", "gone"} { // once new, once known
			if s := write(l, table, metric, 3); s.status != 204 && s.status != 200 {
				t.Errorf("%s: %s", name, s)
			}
		}
		if s := write(l, "quiet", "kept", 3); s.status != 204 && s.status != 200 {
			t.Errorf("%s: a table of which everything is dropped: %s", name, s)
		}
		if got := ask(table, `count by (i) (kept_v)`); strings.Count(got, `"i":"`) != 3 || !strings.Contains(got, `"i":"one"`) {
			t.Errorf("%s: %s", name, got)
		}
		if got := ask(table, `{__name__=~"gone.*"}`); strings.Contains(got, "gone") {
			t.Errorf("%s: %s", name, got)
		}
	}
	if got := ask("quiet", `{__name__=~".+"}`); !strings.Contains(got, `"result":[]`) {
		t.Errorf("a table of which everything is dropped: %s", got)
	}
	l.reload(strings.Replace(strings.Replace(rules, "gone.*", "kept.*", 1), `"one"`, `"uno"`, 1), "ok")
	for name, write := range writers {
		table := "t" + name
		for _, metric := range []string{"gone", "kept"} { // both are known by the rules before
			if s := write(l, table, metric, 3); s.status != 204 && s.status != 200 {
				t.Errorf("%s after the reload: %s", name, s)
			}
		}
		if got := ask(table, `{__name__=~"gone.*", i="uno"}`); !strings.Contains(got, "gone") {
			t.Errorf("%s after the reload: %s", name, got)
		}
	}
	// Counted when the next write to the table comes: of each table two times 3, of quiet 3 of each protocol but the last.
	if n, want := dropped(), float64(6*len(writers)); n < want {
		t.Errorf("%v samples were counted as dropped, not %v", n, want)
	}
	before := l.metric(`spillway_limits_reloads_total{outcome="failed"}`)
	l.reload(strings.Replace(rules, "action: drop}", "action: hashmod, target_label: x}", 1), "failed")
	if after := l.metric(`spillway_limits_reloads_total{outcome="failed"}`); after != before+1 || !strings.Contains(l.Log.String(), "non-zero modulus") {
		t.Errorf("a bad rule: %v reloads failed, %v before\n%s", after, before, &l.Log)
	}
	if got := ask("trw1", `{__name__=~"gone.*", i="uno"}`); !strings.Contains(got, "gone") {
		t.Errorf("after a bad reload: %s", got)
	}
}

// TestRecordsOfKafkaAreRelabelled: the rules hold for records too. Dropped rows count as accepted: their offsets are committed, and no record
// is put aside.
func TestRecordsOfKafkaAreRelabelled(t *testing.T) {
	t.Parallel()
	const rules = `
relabel:
  write_relabel_configs:
  - {source_labels: [__name__], regex: "gone.*", action: drop}
  - {source_labels: [i], regex: "1", target_label: i, replacement: "one"}
`
	cluster := kafkatest.Fake(t)
	cluster.Create(2, "metrics")
	produce := func(lines ...string) {
		t.Helper()
		for _, line := range lines {
			cluster.Produce("metrics", line)
		}
		if err := cluster.Flush(); err != nil {
			t.Fatal(err)
		}
	}
	reading := fmt.Sprintf("kafka: [{brokers: [%q], topics: [{name: metrics, format: line}]}]\n", strings.Join(cluster.Addrs, `","`))
	l := startLimited(t, processtest.Program(t), rules+reading)
	await := func(what string, done func() bool) {
		t.Helper()
		for end := time.Now().Add(time.Minute); !done(); time.Sleep(20 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%s\n%s", what, &l.Log)
			}
		}
	}
	ask := func(query string) string {
		t.Helper()
		code, text, err := l.Get("/api/v1/query?query=" + url.QueryEscape(query))
		if err != nil || code != http.StatusOK {
			t.Fatalf("%s: %d %s %v", query, code, text, err)
		}
		return string(text)
	}
	settled := func(records uint64) func() bool {
		return func() bool {
			s, err := topics.Fetch(t.Context(), client.Flags{}, "http://"+l.Addr)
			if err != nil {
				t.Fatal(err)
			}
			n := uint64(0)
			for _, p := range s.Clusters[0].Partitions {
				if p.Poison > 0 {
					t.Fatalf("put aside: %+v", p)
				}
				n += uint64(max(0, p.Committed))
			}
			return n == records
		}
	}
	produce("kept,i=0 v=0\ngone,i=0 v=0\nkept,i=1 v=1", "gone,i=0 v=2\ngone,i=1 v=2", "kept,i=2 v=3")
	await("not all offsets are committed", settled(3))
	if got := ask("count by (i) (kept_v)"); strings.Count(got, `"i":"`) != 3 || !strings.Contains(got, `"i":"one"`) {
		t.Errorf("kept: %s", got)
	}
	if got := ask(`{__name__=~"gone.*"}`); strings.Contains(got, "gone") {
		t.Errorf("dropped, and there: %s", got)
	}
	l.reload(strings.Replace(strings.Replace(rules, "gone.*", "kept.*", 1), `"one"`, `"uno"`, 1)+reading, "ok")
	produce("kept,i=9 v=0\ngone,i=1 v=1")
	await("not all offsets are committed after the reload", settled(4))
	if got := ask(`gone_v`); !strings.Contains(got, `"i":"uno"`) {
		t.Errorf("kept since the reload: %s", got)
	}
	if got := ask(`kept_v{i="9"}`); !strings.Contains(got, `"result":[]`) {
		t.Errorf("dropped since the reload, and there: %s", got)
	}
	if n := l.metric("spillway_forward_relabel_dropped_samples_total"); n < 3 {
		t.Errorf("%v samples are counted as dropped", n)
	}
}

// TestDroppedSeriesDoNotSpoilAnAtomicRequest: rows of dropped series leave before the rows are looked at, so they may lie in another
// partition, or at a time that is refused. The rewritten others are in one partition, or the request is refused whole.
func TestDroppedSeriesDoNotSpoilAnAtomicRequest(t *testing.T) {
	const rules = `
tables: {partition_width: 1h}
relabel:
  write_relabel_configs:
  - {source_labels: [__name__], regex: "gone.*", action: drop}
  - {source_labels: [__name__, bare], regex: "kept_v;yes", target_label: __name__, replacement: ""}
`
	l := startLimited(t, processtest.Program(t), rules)
	hour := time.Now().Truncate(time.Hour).Add(-3 * time.Hour)
	near, far, ahead := hour.Add(time.Minute), hour.Add(-time.Hour), time.Now().Add(1000*time.Hour)
	row := func(series string, at time.Time) string { return fmt.Sprintf("%s v=1 %d\n", series, at.UnixNano()) }
	rows := func(table string) string {
		t.Helper()
		code, text, err := l.Get("/t/" + table + "/api/v1/query?query=" + url.QueryEscape(`sum(count_over_time({__name__=~".+"}[1d]))`))
		if err != nil || code != http.StatusOK {
			t.Fatalf("%d %s %v", code, text, err)
		}
		_, value, _ := strings.Cut(string(text), `"value":[`) // [1795358266.681,"42"]
		_, n, _ := strings.Cut(value, `"`)
		n, _, _ = strings.Cut(n, `"`)
		return n
	}
	f := func(table, body string, status int, kept, says string) {
		t.Helper()
		for round := range 2 { // series that are new, series that are known
			s := l.send("/write?db="+table, http.Header{"X-Spillway-Atomic": {"true"}}, []byte(body))
			if s.status != status || !strings.Contains(s.body, says) {
				t.Errorf("%s, round %d: %v", table, round, s)
			}
			if got := rows(table); got != kept {
				t.Errorf("%s, round %d: %q rows are kept, want %q", table, round, got, kept)
			}
		}
	}
	// Without rows there is no answer to the query: "".
	f("elsewhere", row("gone,i=0", far)+row("kept,i=0", near)+row("gone,i=1", far)+row("kept,i=1", near), http.StatusNoContent, "2", "")
	f("ahead", row("kept,i=0", near)+row("gone,i=0", ahead), http.StatusNoContent, "1", "")
	f("apart", row("gone,i=0", far)+row("kept,i=0", near)+row("kept,i=1", far), http.StatusBadRequest, "", "number 3")
	f("nothing", row("gone,i=0", far)+row("gone,i=1", near), http.StatusNoContent, "", "")
	f("nameless", row("gone,i=0", far)+row("kept,i=0", near)+row("kept,bare=yes", near), http.StatusBadRequest, "", "kept whole or not at all")
}
