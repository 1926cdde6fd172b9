package main

import (
	"net/url"
	"strings"
	"testing"
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
	l := startLimited(t, program(t), rules)
	ask := func(table, query string) string {
		t.Helper()
		code, text, err := l.get("/t/" + table + "/api/v1/query?query=" + url.QueryEscape(query))
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
	if after := l.metric(`spillway_limits_reloads_total{outcome="failed"}`); after != before+1 || !strings.Contains(l.log.String(), "non-zero modulus") {
		t.Errorf("a bad rule: %v reloads failed, %v before\n%s", after, before, &l.log)
	}
	if got := ask("trw1", `{__name__=~"gone.*", i="uno"}`); !strings.Contains(got, "gone") {
		t.Errorf("after a bad reload: %s", got)
	}
}
