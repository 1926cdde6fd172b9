package main

import (
	"encoding/json"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/gateway/scrape"
	"github.com/spillwaydb/spillway/gateway/ui"
)

// own asks the process's own table for an expression of one value; false: it has none.
func (p *process) own(expr string) (float64, bool) {
	p.t.Helper()
	code, text, err := p.get("/t/" + scrape.Table + "/api/v1/query?" + url.Values{"query": {"scalar(" + expr + ")"}}.Encode())
	if err == nil && code == http.StatusNotFound {
		return 0, false // the table is made by the first scrape
	}
	if err != nil || code != http.StatusOK {
		p.t.Fatalf("%s: %d %.300s %v", expr, code, text, err)
	}
	var answer struct {
		Data struct{ Result []any }
	}
	if err := json.Unmarshal(text, &answer); err != nil || len(answer.Data.Result) != 2 {
		p.t.Fatalf("%s: %.300s %v", expr, text, err)
	}
	value := answer.Data.Result[1].(string)
	if value == "NaN" {
		return 0, false
	}
	var v float64
	if err := json.Unmarshal([]byte(value), &v); err != nil {
		p.t.Fatalf("%s: %q %v", expr, value, err)
	}
	return v, true
}

// untilOwn waits for a condition on a value of the process's own table.
func (p *process) untilOwn(expr string, good func(float64) bool) float64 {
	p.t.Helper()
	deadline := time.Now().Add(time.Minute)
	for {
		v, ok := p.own(expr)
		if ok && good(v) {
			return v
		}
		if time.Now().After(deadline) {
			p.t.Fatalf("%s is %v (%v) after a minute\n%s", expr, v, ok, &p.log)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// TestAProcessAloneShowsItsOwnHistory: a process without other servers keeps its metrics of the time before a user looks.
func TestAProcessAloneShowsItsOwnHistory(t *testing.T) {
	t.Parallel()
	p := newProcess(t, "SPILLWAY_SELF_SCRAPE_INTERVAL=1s", "SPILLWAY_API_ADMIN=true")
	p.start()
	if code, text, err := p.do(http.MethodPost, "/write?db=default", nil, []byte("cpu,host=a usage=1")); code != http.StatusNoContent {
		t.Fatalf("%d %s %v", code, text, err)
	}
	p.untilOwn(`sum(spillway_intake_rows_accepted_total{job="spillway"})`, func(v float64) bool { return v == 1 })
	scrapes := p.untilOwn(`count_over_time(up[1h])`, func(v float64) bool { return v >= 3 })

	// Writing must not make series, or the table would grow by being there.
	before, _ := p.own(`count({__name__!=""})`)
	for at := scrapes; ; at++ {
		p.untilOwn(`count_over_time(up[1h])`, func(v float64) bool { return v > at+2 })
		after, _ := p.own(`count({__name__!=""})`)
		if after == before {
			break
		}
		if at > scrapes+20 {
			t.Fatalf("still %v series after %v", after, before)
		}
		before = after
	}
	if v, ok := p.own(`sum(spillway_intake_rows_accepted_total)`); !ok || v != 1 {
		t.Errorf("its own rows are counted as a user's: %v", v)
	}
	if v, ok := p.own(`sum(spillway_limits_accepted_samples_total)`); ok && v > 1 {
		t.Errorf("its own rows count towards a user's limits: %v", v)
	}
	keeps := func() string {
		code, text, err := p.get(ui.Path)
		if err != nil || code != http.StatusOK {
			t.Fatalf("%d %v", code, err)
		}
		var s struct{ Data ui.Status }
		if err := json.Unmarshal(text, &s); err != nil {
			t.Fatal(err)
		}
		for _, table := range s.Data.Tables {
			if table.Name == scrape.Table {
				return table.Retention.String()
			}
		}
		return "no table " + scrape.Table
	}
	if got := keeps(); got != "168h0m0s" {
		t.Errorf("its own table keeps rows for %s", got)
	}

	// A table that a user drops comes back with its own retention, not with that of users' tables.
	if code, text, err := p.do(http.MethodPost, "/query?"+url.Values{"q": {`DROP DATABASE "` + scrape.Table + `"`}}.Encode(), nil, nil); code != http.StatusOK || strings.Contains(string(text), "error") {
		t.Fatalf("%d %s %v", code, text, err)
	}
	p.untilOwn(`count_over_time(up[1h])`, func(v float64) bool { return v >= 2 })
	if got := keeps(); got != "168h0m0s" {
		t.Errorf("its own table, made anew, keeps rows for %s", got)
	}
	if code := p.stop(); code != 0 {
		t.Fatalf("exit code %d\n%s", code, &p.log)
	}

	// Switched off, it leaves the history and adds nothing.
	p.env = append(p.env, "SPILLWAY_SELF_SCRAPE_INTERVAL=0")
	p.start()
	was := p.untilOwn(`count_over_time(up[1h])`, func(v float64) bool { return v >= 2 })
	time.Sleep(1500 * time.Millisecond) // longer than the interval was
	if v, _ := p.own(`count_over_time(up[1h])`); v > was {
		t.Errorf("switched off, and %v more scrapes", v-was)
	}
	if strings.Contains(p.log.String(), "cannot write its own metrics") {
		t.Errorf("%s", &p.log)
	}
}

// TestDashboardsShowAProcessAlone: every expression of grafana/ is one that the process evaluates over its own table, and the panels at
// the top of the dashboards that a process alone can fill has values.
func TestDashboardsShowAProcessAlone(t *testing.T) {
	t.Parallel()
	p := newProcess(t, "SPILLWAY_SELF_SCRAPE_INTERVAL=1s")
	p.start()
	if code, text, err := p.do(http.MethodPost, "/write?db=default", nil, []byte("cpu,host=a usage=1")); code != http.StatusNoContent {
		t.Fatalf("%d %s %v", code, text, err)
	}
	if code, text, err := p.get("/api/v1/query?query=cpu_usage"); code != http.StatusOK {
		t.Fatalf("%d %s %v", code, text, err)
	}
	p.untilOwn(`sum(count_over_time(spillway_query_queries_total{outcome="ok"}[1h]))`, func(v float64) bool { return v >= 3 })
	p.boards("overview", "ingest", "storage", "query", "tenant")
}

// boards evaluates every expression of grafana/ over the processes' own table. Single figures of the filled dashboards must have values.
func (p *process) boards(filled ...string) {
	t := p.t
	t.Helper()
	// Variables are Grafana's business: here they have its values for all, and for the step of a short interval.
	values := strings.NewReplacer("$__rate_interval", "1m", "$instance", ".*", "$table", ".*", "$cluster", ".*", "$topic", ".*")
	files, err := filepath.Glob("../../grafana/dashboards/*.json")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var board struct {
			Panels []struct {
				Title, Type string
				Targets     []struct{ Expr string }
			}
		}
		if err := json.Unmarshal(text, &board); err != nil {
			t.Fatal(err)
		}
		name, series := strings.TrimSuffix(filepath.Base(file), ".json"), 0
		for _, panel := range board.Panels {
			for _, target := range panel.Targets {
				code, text, err := p.get("/t/" + scrape.Table + "/api/v1/query?" + url.Values{"query": {values.Replace(target.Expr)}}.Encode())
				var answer struct {
					Data struct{ Result []any }
				}
				if err != nil || code != http.StatusOK || json.Unmarshal(text, &answer) != nil {
					t.Errorf("%s, %s: %s: %d %.300s %v", name, panel.Title, target.Expr, code, text, err)
				}
				series += len(answer.Data.Result)
				if panel.Type == "stat" && slices.Contains(filled, name) && len(answer.Data.Result) == 0 {
					t.Errorf("%s, %s is empty: %s", name, panel.Title, target.Expr)
				}
			}
		}
		t.Logf("%s: %d series", name, series)
	}
}
